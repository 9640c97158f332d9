"""Lines of a text file in bounded memory, plain or gzip, whatever their ends and however long."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tltsched.errors import InputError

LINE_BYTES = 64 << 20  # a response of 100,000 tokens with its probabilities is about 5 MiB
DOCUMENT_BYTES = 512 << 20  # a benchmark that writes all its requests into one line
SHOWN_BYTES = 400
CHUNK_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
# Text of rollouts shrinks 3- to 30-fold; what shrinks more from far on is made to fill a disk.
MAX_RATIO, RATIO_FROM_BYTES = 300, 32 << 20
NO_END = "the last line has no end: it may still be written"
READ_ERRORS = (OSError, EOFError, zlib.error)


class Line:
    """One line without its end. `text` holds only its first bytes if it is `too_long`.

    ended: whether the end is there; the last line of a file that is still written may be cut within a number.
    """

    __slots__ = ("ended", "number", "text", "too_long")

    def __init__(self, number: int, text: bytes, too_long: bool, ended: bool = True) -> None:
        self.number, self.text, self.too_long, self.ended = number, text, too_long, ended


class Bounded:
    """A file, decompressed if it is gzip; raises InputError if that grows out of proportion."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = path.open("rb")
        zipped = self.raw.read(2) == GZIP_MAGIC
        self.raw.seek(0)
        self.stream: gzip.GzipFile | BinaryIO = gzip.GzipFile(fileobj=self.raw) if zipped else self.raw
        self.zipped = zipped
        self.read_bytes = 0

    def readline(self, limit: int) -> bytes:
        """Return up to `limit` bytes of the line at hand."""
        return self._counted(self.stream.readline(limit))

    def read(self, limit: int) -> bytes:
        """Return up to `limit` bytes."""
        parts, left = [], limit
        while left > 0:
            part = self._counted(self.stream.read(min(left, CHUNK_BYTES)))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the file."""
        self.stream.close()
        self.raw.close()

    def _counted(self, data: bytes) -> bytes:
        self.read_bytes += len(data)
        if self.zipped and self.read_bytes > max(RATIO_FROM_BYTES, MAX_RATIO * self.raw.tell()):
            raise BrokenFileError(
                f"contents of {shown(self.path)}",
                "a gzip file that grows out of proportion",
                f"at most {MAX_RATIO} times its own size",
                "decompress it yourself if it is sound",
            )
        return data


def iter_lines(path: Path, limit: int = LINE_BYTES) -> Iterator[Line]:
    """Yield the lines of `path` that are not blank. Memory: one line of at most `limit` bytes.

    A byte order mark of UTF-8 is dropped. Raises InputError if the file cannot be read on.
    """
    file = opened(path)
    number = 0
    try:
        while True:
            number += 1
            text = file.readline(limit)
            if not text:
                return
            too_long = len(text) == limit and not text.endswith(b"\n")
            if too_long:
                text = text[:SHOWN_BYTES]
                _drop_rest(file)
            ended = too_long or text.endswith((b"\n", b"\r"))
            text = text.rstrip(b"\r\n")
            if number == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")
            if text and not text.isspace():
                yield Line(number, text, too_long, ended)
    except READ_ERRORS as error:
        raise broken(path, error) from None
    finally:
        file.close()


def _drop_rest(file: Bounded) -> None:
    while True:
        part = file.readline(CHUNK_BYTES)
        if not part or part.endswith(b"\n"):
            return


def opened(path: Path) -> Bounded:
    """Open `path`; raises InputError if that cannot be."""
    try:
        return Bounded(path)
    except OSError as error:
        raise broken(path, error) from None


class BrokenFileError(InputError):
    """A file cannot be read (on). Of a folder the other files still can."""


def shown(path: Path) -> str:
    """Return a file's name in which nothing can act on a terminal."""
    return repr(path.name)[1:-1]


def broken(path: Path, error: Exception) -> BrokenFileError:
    """Return what a user is told when a file cannot be read (on)."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return BrokenFileError(
        f"contents of {shown(path)}", text, "a whole file", "check that it was written in full"
    )
