"""Rows of a table or list in any of its layouts, as names and values: JSONL, a JSON array, CSV, parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from tlt.traces.importers.reading.head import JSON_ERRORS, WHOLE_BYTES, Head, whole_text
from tlt.traces.importers.reading.items import Skip
from tlt.traces.importers.reading.lines import NO_END, Line, iter_lines
from tlt.traces.importers.reading.metric_tables import cells
from tlt.traces.importers.reading.parquet import iter_rows
from tlt.traces.importers.reading.values import number_in

Layout = Literal["parquet", "CSV", "JSON lines", "JSON", "text", "pickle", "zip archive", "binary", "empty"]
Row = tuple[int, dict[str, Any]]
DELIMITERS = (",", "\t", ";")
NO_ROW = "not a row with names and values"


def layout_of(head: Head) -> Layout:
    """Return how a file is laid out."""
    start = head.start
    if not start.strip():
        return "empty"
    for magic, layout in ((b"PAR1", "parquet"), (b"PK\x03\x04", "zip archive"), (b"\x80", "pickle")):
        if start.startswith(magic):
            return layout  # type: ignore[return-value]
    if b"\0" in start[:4096]:
        return "binary"
    first = head.lines[0].text.strip() if head.lines else b""
    if first.startswith(b"{") and _decoded(head.lines[0]) is not None:
        return "JSON lines"
    if first.startswith((b"{", b"[")):
        return "JSON"
    return "CSV" if len(_names(head)) > 1 else "text"


def delimiter_of(head: Head) -> str:
    """Return what stands between the cells of the first line."""
    return max(DELIMITERS, key=lambda mark: head.header.count(mark))


def _names(head: Head) -> list[str]:
    """Return the names of a CSV's first line, none if it does not look like names."""
    found = cells(head.lines[0], delimiter_of(head)) if head.lines else None
    names = [cell.strip() for cell in found or ()]
    fits = all(len(name) < 100 and number_in(name) is None for name in names)
    fits = fits and all(names[1:])  # pandas leaves the name of its index empty
    return names if fits and len(set(names)) == len(names) else []


def iter_named_rows(path: Path, wanted: tuple[str, ...] = ()) -> Iterator[Row | Skip]:
    """Yield (line or row from 1, names and values), or a Skip for what is no row.

    wanted: columns of a parquet file that are needed; none: all. Values of a CSV that are numbers are given
    as numbers. Memory: a row, or a JSON document of at most 64 MiB. Raises InputError.
    """
    head = Head(path)
    layout = layout_of(head)
    if layout == "parquet":
        yield from iter_rows(path, wanted or tuple(head.columns))
    elif layout == "CSV":
        yield from _of_csv(path, delimiter_of(head))
    elif layout == "JSON":
        yield from _of_document(path)
    elif layout == "JSON lines":
        for line in iter_lines(path):
            value = None if line.too_long else _decoded(line)
            yield (line.number, value) if value is not None else Skip(line.number, NO_ROW, line.text[:400])
    else:
        yield Skip(1, f"{layout}: no rows with names and values")


def _of_csv(path: Path, delimiter: str) -> Iterator[Row | Skip]:
    names: list[str] | None = None
    for line in iter_lines(path):
        found = None if line.too_long else cells(line, delimiter)
        if found is None or (names is not None and len(found) != len(names)):
            yield Skip(line.number, "another number of cells than the header", line.text[:400])
        elif names is None:
            names = [cell.strip() for cell in found]
        elif not line.ended:
            yield Skip(line.number, NO_END, line.text[:400])
        else:
            values = (cell if (read := number_in(cell)) is None else _whole(read) for cell in found)
            yield line.number, dict(zip(names, values, strict=True))


def _of_document(path: Path) -> Iterator[Row | Skip]:
    text = whole_text(path)
    try:
        value = json.loads(text)
    except (*JSON_ERRORS, MemoryError):
        yield Skip(1, f"no JSON document of at most {WHOLE_BYTES >> 20} MiB", text[:200].encode())
        return
    for index, row in enumerate(value if isinstance(value, list) else [value], start=1):
        yield (index, row) if isinstance(row, dict) else Skip(index, NO_ROW, str(row)[:200].encode())


def _decoded(line: Line) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(line.text)
    except JSON_ERRORS:
        try:
            value = json.loads(line.text) if b"NaN" in line.text or b"Infinity" in line.text else None
        except JSON_ERRORS:
            return None
    return value if isinstance(value, dict) else None


def _whole(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < 2.0**53 else value
