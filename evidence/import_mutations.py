"""Broken and hostile files made from the importers' samples: a seeded case is a path to import and a label.

Used by the script beside this file and by tests/traces/test_import_fuzz.py.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

Bytes = Callable[[bytes, np.random.Generator], bytes]

VALUES = (
    b"1" + b"0" * 400, b"1" + b"0" * 5000, b"-7", b"1e999", b"NaN", b"-Infinity", b"true", b"null", b'"12"',
    b"[]", b"{}", b"[[[3]]]", b"0.5", b"9223372036854775808", b"2147483648", b"0", b'"\\ud800"',
    b"[" * 3000 + b"]" * 3000, b"1e308", b"1e-300",
)  # fmt: skip
CODES = (b"cos\nsystem\n(S'touch EXECUTED'\ntR.", b"\x80\x02cbuiltins\neval\nU\x031+1\x85R.")
NUMBER = re.compile(rb"(?<![\w.\"])-?\d+(?:\.\d+)?(?![\w.\"])")


def truncate(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut the end off."""
    return data[: rng.integers(len(data) + 1)]


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    """Change some bytes."""
    changed = bytearray(data)
    for at in rng.integers(len(data), size=rng.integers(1, 65)) if data else ():
        changed[at] = rng.integers(256)
    return bytes(changed)


def insert(data: bytes, rng: np.random.Generator) -> bytes:
    """Put NUL bytes, colours, overlong lines or random bytes somewhere."""
    what = (
        b"\0" * 50,
        b"\x1b[31m\x1b]0;x\x07",
        b"x" * 1_000_000,
        rng.bytes(200),
        b"\r\n\r\n",
        b"\xe2\x80\xae",
    )
    at = rng.integers(len(data) + 1)
    return data[:at] + what[rng.integers(len(what))] + data[at:]


def retype(data: bytes, rng: np.random.Generator) -> bytes:
    """Replace some numbers by other values, some of them huge."""
    for _ in range(rng.integers(1, 4)):
        places = list(NUMBER.finditer(data, 0, 1 << 16))
        if places:
            place = places[rng.integers(len(places))]
            data = data[: place.start()] + VALUES[rng.integers(len(VALUES))] + data[place.end() :]
    return data


def drop_key(data: bytes, rng: np.random.Generator) -> bytes:
    """Rename one field or column."""
    keys = re.findall(rb"[a-z_]{4,}", data)
    return data.replace(keys[rng.integers(len(keys))], b"other", 1) if keys else data


def nest(data: bytes, rng: np.random.Generator) -> bytes:
    """Put a line of deep nesting before the rest."""
    depth = int(rng.integers(100, 200_000))
    kinds = (b"[" * depth, b'{"a":' * depth, b'{"input":' + b"[" * depth + b"]" * depth + b"}")
    return kinds[rng.integers(len(kinds))] + b"\n" + data


def recode(data: bytes, rng: np.random.Generator) -> bytes:
    """Write in another encoding, or in two."""
    text = data.decode("latin-1")
    kind = rng.integers(4)
    if kind == 0:
        return text.encode("utf-16")
    if kind == 1:
        return b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")
    half = len(text) // 2
    return data[:half] + text[half:].encode("utf-16-le" if kind == 2 else "utf-32")


def repeat(data: bytes, rng: np.random.Generator) -> bytes:
    """Repeat and shuffle lines."""
    lines = data[: 1 << 20].splitlines(keepends=True)[:5000] * int(rng.integers(2, 20))
    return b"".join(lines[i] for i in rng.permutation(len(lines)))


def zipped(data: bytes, rng: np.random.Generator) -> bytes:
    """Compress; sometimes a bomb, a broken end, or bytes behind the end."""
    kind = rng.integers(4)
    if kind == 0:
        lines = data.splitlines(keepends=True) or [b"\n"]
        return gzip.compress(lines[rng.integers(len(lines))] * (48_000_000 // max(len(data), 1)), 1)
    packed = gzip.compress(data)
    if kind == 1:
        return gzip.compress(b"\0" * (64 << 20), 9)
    return packed[: rng.integers(len(packed))] if kind == 2 else packed + rng.bytes(20)


def archive(data: bytes, rng: np.random.Generator) -> bytes:
    """Make a zip archive with a data.pkl that is hostile."""
    del data
    kind = rng.integers(7)
    pickle = (
        b"\x80\x02" + b"N0" * (1 << 20),  # much to do, almost nothing if compressed
        b"\x80\x02]q\x00" + b"(" + b"h\x00" * 200_000 + b"e.",
        b"\x80\x04\x8d" + (1 << 60).to_bytes(8, "little") + b"x",
        CODES[rng.integers(len(CODES))],
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x02\x8b" + (1 << 24).to_bytes(4, "little") + b"\x7f" * (1 << 24) + b".",
        b"\x80\x02}q\x00(X\x07\x00\x00\x00samplesq\x01]q\x02(h\x02h\x00K\x05NX\x01\x00\x00\x00aeu.",
    )[kind]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if rng.integers(2) else zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", pickle)
        if rng.integers(3) == 0:
            file.writestr("other/data.pkl", b"N.")
    return out.getvalue()


OF_BYTES: tuple[Bytes, ...] = (
    truncate, flip, flip, insert, retype, retype, retype, drop_key, nest, recode, repeat, zipped, archive,
)  # fmt: skip
PLACES = (
    "loop",
    "fifo",
    "device link",
    "folder with links and pipes",
    "empty folder",
    "empty file",
    "odd names",
)


def make_case(samples: list[Path], top: Path, rng: np.random.Generator) -> tuple[str, Path]:
    """Write one case into the folder `top` and return its label and the path to import."""
    sample = samples[rng.integers(len(samples))]
    if rng.integers(12) == 0:
        kind = PLACES[rng.integers(len(PLACES))]
        return kind, _place(kind, sample.read_bytes(), sample.name, top)
    data, labels = sample.read_bytes(), []
    for _ in range(rng.integers(1, 3)):
        change = OF_BYTES[rng.integers(len(OF_BYTES))]
        data = change(data, rng)
        labels.append(change.__name__)
    path = top / sample.name
    path.write_bytes(data)
    return f"{sample.name}: {' + '.join(labels)}", path


def _place(kind: str, data: bytes, name: str, top: Path) -> Path:
    path = top / "case"
    if kind == "loop":
        path.symlink_to(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device link":
        path.symlink_to("/dev/zero")
    elif kind == "empty file":
        path.touch()
    else:
        path.mkdir()
        if kind == "odd names":
            (path / "a\nb\x1b[31m.jsonl").write_bytes(data)
            (path / os.fsdecode(b"\xff\xfe.jsonl")).write_bytes(data)
        elif kind != "empty folder":
            (path / name).write_bytes(data)
            (path / "up").symlink_to(path)
            (path / "lost").symlink_to(path / "nowhere")
            os.mkfifo(path / "pipe.jsonl")
            (path / "zero.jsonl").symlink_to("/dev/zero")
    return path
