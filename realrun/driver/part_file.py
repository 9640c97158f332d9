"""One finished step of a measurement on disk: whole, unchanged and of this run, or named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tlt.realrun.driver.step import LiveStep, decode_step
from tlt.traces.common.writing import write_file
from tltsched.errors import InputError

SUFFIX = ".msgpack"
AGAIN = "delete it and the later ones beside it: the same command measures them again"


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step with what it belongs to, and a hash of both."""

    run: str  # fingerprint of settings, policies and lengths
    step: bytes
    sha256: str


def part_paths(folder: Path) -> list[Path]:
    """Return the parts of a folder by number; as text 10000 would come before 9999."""
    paths = (path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())  # others are somebody's own
    return sorted(paths, key=lambda path: int(path.stem))


def run_of(path: Path) -> str:
    """Return the fingerprint that a part has; empty if it is damaged or of an earlier version."""
    try:
        part = msgspec.msgpack.decode(path.read_bytes(), type=Part)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return part.run if part.sha256 == _digest(part.run, part.step) else ""


def write_part(folder: Path, run: str, step: LiveStep) -> None:
    """Write a finished step, whole or not at all."""
    content = msgspec.msgpack.encode(step)
    part = Part(run, content, _digest(run, content))
    write_file(folder / f"{step.step:04}{SUFFIX}", msgspec.msgpack.encode(part))


def read_parts(folder: Path, run: str, fix: str = AGAIN) -> Iterator[tuple[Path, LiveStep]]:
    """Yield the parts of a folder in order.

    Raises InputError for one that is of another run, or damaged: then `fix` says what to do.
    """
    for path in part_paths(folder):
        yield path, _read(path, run, fix)


def _read(path: Path, run: str, fix: str) -> LiveStep:
    content = path.read_bytes()
    try:
        try:
            part = msgspec.msgpack.decode(content, type=Part)
        except msgspec.ValidationError:  # as earlier versions wrote it: the step alone
            return decode_step(content)
        if part.sha256 == _digest(part.run, part.step):
            if part.run != run:
                raise InputError(
                    "finished step", str(path), "one of like settings, lengths and formats",
                    "choose another --out: measurements are not overwritten",
                )  # fmt: skip
            return decode_step(part.step)
        why = "it was changed"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)
    raise InputError("finished step", f"{path}: {why}", "the step as it was written", fix)


def _digest(run: str, content: bytes) -> str:
    return hashlib.sha256(run.encode() + content).hexdigest()
