"""Trace files as a stream of checked blocks, so that a file larger than memory can be read.

A block is a table with the columns that the file has, in their compact dtypes. Errors name the line (CSV and
JSONL, counted from 1, the header included) or the row (parquet).
"""

from __future__ import annotations

import difflib
import gzip
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from msgspec import UNSET, UnsetType

from tlt.traces.common import migrate
from tlt.traces.lengths.run_as_trace import as_trace_columns, is_responses
from tlt.traces.lengths.schema import ALL_COLUMNS, TURN, empty_trace
from tlt.traces.lengths.turns_as_trace import as_responses
from tlt.traces.lengths.validate import KINDS, Place, check_column, checked_names, column_of
from tlt.traces.runs.runfolder import RESPONSE_COLUMNS
from tltsched.errors import InputError

CSV_BLOCK_BYTES = 1 << 22  # about 10^5 rows: the text of a block is far larger than its checked columns
UNREADABLE = (msgspec.MsgspecError, RecursionError)  # the last one: nested beyond reason
BLOCK_ROWS = 1 << 16
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
READ_ERRORS = (OSError, EOFError, zlib.error, UnicodeError, pa.ArrowException)


def suffix_of(path: Path) -> str:
    """Return which of SUFFIXES `path` ends in; raises InputError for any other."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if path.name.lower().endswith(suffix):
            return suffix
    near = difflib.get_close_matches(path.suffix.lower(), SUFFIXES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "the ending of the name says the format"
    raise InputError("trace file", path.name, f"names that end in {', '.join(SUFFIXES)}", hint)


def iter_blocks(path: Path) -> Iterator[tuple[Place, pd.DataFrame]]:
    """Yield (place, table) for each block of responses of the file at `path`, in order.

    Sessions come as one block, a response each. Raises what `iter_rows` raises.
    """
    turns: list[pd.DataFrame] = []
    for place, block in iter_rows(path):
        if TURN in block:
            turns.append(block)
        else:
            yield place, block
    if turns:
        yield Place(path.name, "session", 1), as_responses(turns, path.name)


def iter_rows(path: Path) -> Iterator[tuple[Place, pd.DataFrame]]:
    """Yield (place, table) for each block of rows, responses or turns of sessions, in order.

    Raises InputError at the first thing that cannot be used, and at the end if there was no row at all.
    """
    reader = READERS[suffix_of(path)]
    if not path.is_file():
        raise InputError("trace file", str(path), "a file that exists", "check the path")
    if not path.stat().st_size:
        raise empty_trace(path.name)
    rows = 0
    try:
        for place, columns in reader(path):
            checked = {name: check_column(name, column, place) for name, column in columns.items()}
            block = pd.DataFrame(checked)
            rows += len(block)
            yield place, block
    except READ_ERRORS as error:
        raise unreadable(path, error) from None
    if not rows:
        raise empty_trace(path.name)


def unreadable(path: Path, error: Exception) -> InputError:
    """Return what a user is told when a library cannot read the file at all."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    encoding = "" if suffix_of(path) == ".parquet" else " in UTF-8"
    return InputError(
        f"contents of {path.name}", text, f"{suffix_of(path)}{encoding}", "check that the file is whole"
    )


Columns = dict[str, Any]  # name -> arrow array
OLD_NAMES = migrate.new_names(migrate.NAMES, ALL_COLUMNS)  # that a file may have instead of today's
NAMES = KINDS | {old: ALL_COLUMNS[new] for old, new in OLD_NAMES.items()}  # -> dtype


def _csv_blocks(path: Path) -> Iterator[tuple[Place, Columns]]:
    broken: list[Any] = []

    def note(row: Any) -> str:
        broken.append(row)
        return "error"

    # Text in, numbers by `check_column`: arrow's own conversion does not say which line it failed on.
    convert = pa_csv.ConvertOptions(column_types=dict.fromkeys(NAMES, pa.string()))
    parse = pa_csv.ParseOptions(invalid_row_handler=note, ignore_empty_lines=False)
    read = pa_csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_BYTES)
    compression = "gzip" if path.name.lower().endswith(".gz") else None
    line = 2
    try:
        with pa.input_stream(str(path), compression=compression) as stream:
            reader = pa_csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
            names = checked_names(reader.schema.names, path.name)
            for batch in reader:
                yield Place(path.name, "line", line), dict(zip(names, batch.columns, strict=True))
                line += len(batch)
    except pa.ArrowInvalid:
        if not broken:
            raise
        row = broken[0]
        where = f"line {row.number} of {path.name}" if row.number else f"a line of {path.name}"
        allowed = f"{row.expected_columns} columns, as in the header"
        got = f"{row.actual_columns} columns: {row.text}"
        raise InputError(
            where, got, allowed, "the file may be cut short; correct or drop that line"
        ) from None


def _parquet_blocks(path: Path) -> Iterator[tuple[Place, Columns]]:
    with pq.ParquetFile(path, pre_buffer=False) as file:
        given = file.schema_arrow.names
        of_run = is_responses(given)
        names = migrate.names_today(given, RESPONSE_COLUMNS) if of_run else checked_names(given, path.name)
        row = 1
        for batch in file.iter_batches(batch_size=BLOCK_ROWS, use_threads=False):
            columns = dict(zip(names, batch.columns, strict=True))
            yield Place(path.name, "row", row), as_trace_columns(columns) if of_run else columns
            row += len(batch)


_TYPES: dict[str, Any] = {"bool": bool, "text": str, "list": list[int], "float64?": int | float | None}
# One line of JSONL. Made from the schema so that the two cannot disagree.
_Line: Any = msgspec.defstruct(
    "_Line",
    [("response_tokens", int | float)]
    + [
        (name, _TYPES.get(kind, int | float) | UnsetType, UNSET)
        for name, kind in NAMES.items()
        if name != "response_tokens"
    ],
    forbid_unknown_fields=True,
    gc=False,
)


def _open_lines(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")


def _jsonl_blocks(path: Path) -> Iterator[tuple[Place, Columns]]:
    decode = msgspec.json.Decoder(_Line).decode
    names: list[str] | None = None
    number = 1
    with _open_lines(path) as lines:
        while texts := list(islice(lines, BLOCK_ROWS)):
            place = Place(path.name, "line", number)
            rows = []
            for index, text in enumerate(texts):
                try:
                    rows.append(decode(text))
                except UNREADABLE as error:
                    raise _line_error(text, error, place, index) from None
            if names is None:
                names = [name for name in NAMES if getattr(rows[0], name) is not UNSET]
                checked_names(names, place.of(0))
            yield place, _line_columns(rows, names, place)
            number += len(rows)


def _line_columns(rows: list[Any], names: list[str], place: Place) -> Columns:
    """Return the columns of `rows`; every line must have the fields of the first one."""
    columns = {}
    for name in NAMES:
        values = [getattr(row, name) for row in rows]
        known = name in names
        odd = next((i for i, value in enumerate(values) if (value is UNSET) == known), None)
        if odd is not None:
            got = f"{'no ' if known else ''}{name}"
            raise InputError(
                place.of(odd), got, f"the fields of line 1: {', '.join(names)}", "make lines alike"
            )
        if known:
            columns[OLD_NAMES.get(name, name)] = column_of(name, values, place)
    return columns


def _line_error(text: bytes, error: Exception, place: Place, index: int) -> InputError:
    try:
        fields = msgspec.json.decode(text)
    except (*UNREADABLE, UnicodeError):
        fields = None
    if isinstance(fields, dict):
        try:
            checked_names(fields, place.of(index))
        except InputError as clearer:
            return clearer
    return InputError(place.of(index), str(error), "one JSON object a line", "correct or drop that line")


READERS: dict[str, Callable[[Path], Iterator[tuple[Place, Columns]]]] = {
    ".parquet": _parquet_blocks,
    ".csv": _csv_blocks,
    ".csv.gz": _csv_blocks,
    ".jsonl": _jsonl_blocks,
    ".jsonl.gz": _jsonl_blocks,
}
