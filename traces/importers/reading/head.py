"""The beginning of a file, read once, for every format to look at."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from tlt.traces.common.migrate import names_today
from tlt.traces.importers.reading.lines import (
    DOCUMENT_BYTES,
    LINE_BYTES,
    READ_ERRORS,
    Line,
    broken,
    iter_lines,
    opened,
)
from tlt.traces.lengths.files import is_trace_file
from tlt.traces.lengths.schema import ALL_COLUMNS, REQUIRED_COLUMN, TURN, TURN_COLUMNS
from tltsched.errors import InputError

HEAD_BYTES = 1 << 16
FIRST_LINES = 2_000  # a console log may talk for long before its first step
WHOLE_BYTES = 64 << 20
UTF16 = (b"\xff\xfe", b"\xfe\xff")
JSON_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, OverflowError)


def whole_text(path: Path) -> str:
    """Return a file as text, up to WHOLE_BYTES of it; raises InputError if it cannot be read."""
    file = opened(path)
    try:
        return file.read(WHOLE_BYTES).decode("utf-8-sig", "backslashreplace")
    except READ_ERRORS as error:
        raise broken(path, error) from None
    finally:
        file.close()


class Head:
    """What formats are told apart by. Nothing is read before it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def start(self) -> bytes:
        """The first bytes, decompressed if the file is gzip."""
        file = opened(self.path)
        try:
            return file.read(HEAD_BYTES)
        except READ_ERRORS as error:
            raise broken(self.path, error) from None
        finally:
            file.close()

    @cached_property
    def is_text(self) -> bool:
        """Whether the file is neither parquet nor zip."""
        return not self.start.startswith((b"PAR1", b"PK\x03\x04", b"\x80"))

    @cached_property
    def lines(self) -> list[Line]:
        """The first lines that are not blank; of a binary file none."""
        found: list[Line] = []
        held = 0
        if not self.is_text:
            return found
        try:
            for line in iter_lines(self.path, DOCUMENT_BYTES):
                found.append(line)
                held += len(line.text)
                if len(found) >= FIRST_LINES or held > LINE_BYTES:
                    break
        except InputError:
            if not found:
                raise
        return found

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Names and encoded values of the first line that is a JSON object, else of the first object."""
        for line in self.lines:
            if line.text.lstrip().startswith(b"{") and not line.too_long:
                found = _fields_of(line.text)
                if found:
                    return found
        if not self.is_text or self.start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
            return {}
        text = b"\n".join(line.text for line in self.lines)
        return _fields_of(text) if len(text) <= WHOLE_BYTES else {}

    @cached_property
    def header(self) -> str:
        """The first line as text, for the header of a CSV."""
        return self.lines[0].text[:4096].decode("utf-8", "replace").strip() if self.lines else ""

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns of a parquet file; none if it is not one."""
        if not self.start.startswith(b"PAR1"):
            return []
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(self.path).names)
        except (OSError, pa.ArrowException, MemoryError, ValueError):
            return []

    def lacks(self, *names: str) -> str:
        """Return "" if the first JSON object has all these fields, else what it lacks."""
        if not self.fields:
            return "no JSON object at its beginning"
        missing = [name for name in names if name not in self.fields]
        return f"no field {', '.join(missing)}" if missing else ""


def _fields_of(text: bytes) -> dict[str, Any]:
    """Return the names and encoded values of the object that `text` begins with; empty if there is none."""
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except JSON_ERRORS:
        pass
    try:  # NaN, or an object behind which another begins
        value, _ = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace").lstrip())
        return {name: msgspec.Raw(msgspec.json.encode(inner)) for name, inner in value.items()}
    except (*JSON_ERRORS, AttributeError):
        return {}


def holds_trace(path: Path) -> bool:
    """Return whether a file has the columns of a trace or of sessions, and no others."""
    if not path.is_file() or not is_trace_file(path):
        return False
    head = Head(path)
    names = head.columns or list(head.fields) or [name.strip() for name in head.header.split(",")]
    known = TURN_COLUMNS if TURN in names else ALL_COLUMNS
    return REQUIRED_COLUMN in names and set(names_today(names, ALL_COLUMNS)) <= set(known)
