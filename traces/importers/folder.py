"""Which files of a path are read: one file, or those of a folder whose names fit."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.items import Source
from tlt.traces.importers.reading.lines import shown
from tlt.traces.importers.report import Tally
from tltsched.errors import InputError

MOST_FILES = 500_000
MOST_DEPTH = 12
LARGEST_STEP = (1 << 31) - 1


def regular_files(path: Path, left: Tally) -> list[Path]:
    """Return `path` itself if it is a file, else the files below it, in natural order.

    Links to folders are not followed; links and what is no file are counted in `left`. Raises InputError.
    """
    kind = _kind(path)
    if kind == "file":
        return [path]
    if kind != "folder":
        raise InputError("path to import", str(path), "a file or a folder", f"this is {kind}")
    found: list[Path] = []
    for file in _walk(path, path, left, 0):
        found.append(file)
        if len(found) > MOST_FILES:
            raise InputError(
                f"files below {shown(path)}", f"over {MOST_FILES:,}", f"{MOST_FILES:,}", "import a subfolder"
            )
    return sorted(found, key=lambda file: natural(file.relative_to(path).as_posix()))


def _kind(path: Path) -> str:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return f"not to be read ({error.strerror or type(error).__name__})"
    except ValueError:
        return "no path"
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "neither (a device, a pipe or a socket)"


def _walk(top: Path, folder: Path, left: Tally, depth: int) -> Iterator[Path]:
    if depth > MOST_DEPTH:
        left.add(f"deeper than {MOST_DEPTH} folders", folder.relative_to(top).as_posix(), "")
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        left.add("a folder that cannot be opened", folder.relative_to(top).as_posix(), str(error.strerror))
        return
    for entry in entries:
        name = repr(Path(entry.path).relative_to(top).as_posix())[1:-1]
        if entry.is_symlink():
            left.add("a symbolic link, not followed", name, "")
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(top, Path(entry.path), left, depth + 1)
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
        else:
            left.add("a pipe, device or socket", name, "")


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts 2.jsonl before 10.jsonl."""
    parts = re.split(r"(\d+)", name)
    return [(int(part[:18]), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts]


def sources(importer: Importer, path: Path, files: list[Path], left: Tally) -> list[Source]:
    """Return the files to read in order of their step; those whose names do not fit are counted in `left`.

    A file that was named itself is read whatever its name.
    """
    alone = files == [path]
    found = []
    for file in files:
        name = file.name if alone else file.relative_to(path).as_posix()
        # The folders above it may say the step of a file that is named alone.
        fits = importer.file_name.search("/".join(file.absolute().parts[-3:]) if alone else name)
        if fits is None and not alone:
            left.add(f"a name that {importer.name} does not write", repr(name)[1:-1], "")
            continue
        found.append(Source(file, repr(name)[1:-1], _step(fits)))
    return sorted(found, key=lambda source: -1 if source.step is None else source.step)


def _step(fits: re.Match[str] | None) -> int | None:
    text = fits.groupdict().get("step") if fits else None
    step = int(text) if text and len(text) < 11 else None
    return step if step is not None and step <= LARGEST_STEP else None
