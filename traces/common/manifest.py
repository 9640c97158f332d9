"""What a folder of results holds, with sizes and hashes: a file that was changed or cut is named.

    tlt-manifest.json   {"files": {"steps.parquet": {"bytes": 4711, "sha256": "..."}}, "sha256": "..."}

The manifest goes before files change and comes back when all are written. A folder without one is of an
earlier version, or was not finished: its files are read as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tlt.traces.common.writing import write_file
from tltsched.errors import InputError

MANIFEST = "tlt-manifest.json"
SEALED = (".json", ".jsonl", ".parquet")
STAMPS = ("replay.json", "training.json")  # of runs that grow: never listed
# What reports make of the other files whenever they are asked for.
LEFT_OUT = ("answer.json", "crosscheck.json", "trace.json", "train.json", *STAMPS)
AGAIN = (
    "restore a copy, or make it again: what was simulated by the same command, what was measured in another "
    "folder"
)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file as it was written."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of a folder; `sha256` is of the list itself, so that a change here is found as well."""

    files: dict[str, Entry]
    sha256: str


@contextmanager
def sealed(folder: Path, suffixes: Sequence[str] = SEALED) -> Iterator[None]:
    """Let the files of a folder change inside, and write the manifest of those with `suffixes` that it holds.

    The folder is made if it does not exist; an error leaves it without a manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    yield
    paths = sorted(path for path in folder.iterdir() if path.suffix in suffixes and path.is_file())
    _write(folder, {path.name: _entry(path) for path in paths if path.name not in (MANIFEST, *LEFT_OUT)})


def seal_also(folder: Path, name: str) -> None:
    """Take one more file, or that it is gone, into the manifest of a folder that is sealed."""
    if not (folder / MANIFEST).is_file():
        return
    files = {known: entry for known, entry in _read(folder).items() if known != name}
    if (folder / name).is_file():
        files[name] = _entry(folder / name)
    _write(folder, files)


def verify(path: Path) -> None:
    """Raise InputError if a file is not as its folder's manifest has it; nothing without a manifest."""
    if path.name not in STAMPS and (path.parent / MANIFEST).is_file():
        expected = _read(path.parent).get(path.name)
        if expected is not None and path.is_file():
            _compare(path, expected)


def verify_all(folder: Path) -> None:
    """Raise InputError unless all files of a folder's manifest are there and unchanged."""
    if not (folder / MANIFEST).is_file():
        return
    for name, expected in _read(folder).items():
        path = folder / name
        if not path.is_file():
            raise InputError("file", f"{path}, which is gone", f"the files of {MANIFEST}", AGAIN)
        _compare(path, expected)


def is_whole(folder: Path) -> bool:
    """Return whether a folder is sealed and all its files are as they were written."""
    try:
        verify_all(folder)
    except InputError:
        return False
    return (folder / MANIFEST).is_file()


def _write(folder: Path, files: dict[str, Entry]) -> None:
    found = Manifest(files, _digest(files))
    write_file(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


def _read(folder: Path) -> dict[str, Entry]:
    """Return the files of a manifest; raises InputError if it was changed itself."""
    path = folder / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("manifest", f"{path}: {error}", "the manifest as it was written", AGAIN) from None
    if found.sha256 != _digest(found.files):
        raise InputError("manifest", f"{path} was changed", "the manifest as it was written", AGAIN)
    return found.files


def _digest(files: dict[str, Entry]) -> str:
    return hashlib.sha256(msgspec.json.encode(files)).hexdigest()


def _entry(path: Path) -> Entry:
    with path.open("rb") as file:
        return Entry(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _compare(path: Path, expected: Entry) -> None:
    size = path.stat().st_size
    if size != expected.bytes:
        change = "has grown to" if size > expected.bytes else "was cut to"
        allowed = f"the {expected.bytes:,} bytes that were written"
        raise InputError("file", f"{path}, which {change} {size:,} bytes", allowed, AGAIN)
    if _entry(path) != expected:
        raise InputError("file", f"{path}, which was changed", "the file as it was written (sha256)", AGAIN)
