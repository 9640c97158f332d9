"""Files that are written whole or not at all: a reader sees the old one or the new one, never half of it.

A symbolic link is replaced, not followed: what it points at is somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the name of a file to write, which takes the place of `path` unless an error ends it."""
    part = path.with_name(f".{path.name[-200:]}.part")  # what a killed process leaves is used again
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file."""
    with replacing(path) as part:
        part.write_bytes(content)
