"""Metrics of training steps out of files that are read as a whole: tables, lists and documents of metrics.

CSV as W&B writes it, a JSON array of steps, `trainer_state.json` of the Hugging Face Trainer, a summary of
one step.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tlt.traces.importers.reading.head import JSON_ERRORS, Head, whole_text
from tlt.traces.importers.reading.items import Skip
from tlt.traces.importers.reading.lines import NO_END, Line, iter_lines, shown
from tlt.traces.importers.reading.metric_lines import NO_METRICS, PART, STEP_FIELDS, Metrics, of_fields
from tlt.traces.importers.reading.parquet import iter_rows
from tlt.traces.importers.reading.values import number_in, whole
from tltsched.errors import InputError

ROW_BYTES = 1 << 20
HISTORY = "log_history"
STEP_COLUMNS = (*STEP_FIELDS, "_runtime")  # one of these in a header makes it a table of steps
_OF_A_RUN = re.compile(r"^(.{1,200}?) - (\S.*)$")  # a column of W&B's page: "RUN - metric"
_BOUNDS = ("__MIN", "__MAX")


def is_table(head: Head) -> bool:
    """Return whether the first line is the header of a CSV of steps."""
    names = cells(head.lines[0]) if head.lines and not head.lines[0].too_long else None
    return bool(names) and len(names or ()) > 1 and any(name.strip() in STEP_FIELDS for name in names or ())


def is_document(head: Head) -> bool:
    """Return whether the file is a JSON array, or one object over several lines."""
    start = head.start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] == b"[":
        return start[1:].lstrip()[:1] in (b"{", b"")
    if start[:1] != b"{" or not head.lines:
        return False
    columns = any(bytes(head.fields[name])[:1] == b"{" for name in STEP_FIELDS if name in head.fields)
    return columns or HISTORY in head.fields or not _is_whole(head.lines[0])


def _is_whole(line: Line) -> bool:
    """Return whether a line is a JSON object by itself, or one of a log that begins with a brace."""
    return line.text.strip() != b"{" and line.text.rstrip()[-1:] == b"}"


def iter_table(path: Path) -> Iterator[Metrics | Skip]:
    """Yield the rows of a CSV of steps.

    Raises InputError if it holds several runs: their steps would be taken for those of one.
    """
    names: list[str] | None = None
    for line in iter_lines(path):
        row = None if line.too_long else cells(line)
        if row is None or (names is not None and len(row) != len(names)):
            yield Skip(line.number, "another number of cells than the header", line.text[:400])
        elif names is None:
            names = _metric_names(row, path)
        elif not line.ended:
            yield Skip(line.number, NO_END, line.text[:400])
        else:
            values = {
                name: read
                for name, cell in zip(names, row, strict=True)
                if name and (read := number_in(cell)) is not None
            }
            step = next((whole(values[name]) for name in STEP_FIELDS if name in values), None)
            known = step is not None and 0 <= step < 1 << 31 and len(values) > 1
            yield (
                Metrics(line.number, step, values, line.text[:400], PART in values)
                if known and step is not None
                else Skip(line.number, NO_METRICS, line.text[:400])
            )


def _metric_names(columns: list[str], path: Path) -> list[str]:
    """Return the names of metrics by column; "" for one that is none."""
    runs, names = set(), []
    for column in (column.strip() for column in columns):
        of_run = _OF_A_RUN.match(column)
        if of_run and "/" in of_run[2]:
            runs.add(of_run[1])
            names.append("" if of_run[2].endswith(_BOUNDS) else of_run[2])
        else:
            names.append(column)
    if len(runs) > 1:
        found = ", ".join(sorted(runs)[:5])
        raise InputError(
            f"runs in {shown(path)}", f"{len(runs)}: {found}", "one run", "export the columns of one run"
        )
    return names


def is_parquet(head: Head) -> bool:
    """Return whether the file is a parquet table of steps: a column of steps, and names with a slash."""
    names = head.columns
    return any(name in STEP_FIELDS for name in names) and any("/" in name for name in names)


def iter_parquet(path: Path) -> Iterator[Metrics | Skip]:
    """Yield the rows of a parquet table of steps."""
    names = tuple(name for name in Head(path).columns if "/" in name or name in STEP_FIELDS)
    for index, row in iter_rows(path, names):
        step, values = of_fields(row)
        if step is None or len(values) < 2:
            yield Skip(index, NO_METRICS)
        else:
            yield Metrics(index, step, values, f"step {step}".encode(), PART in values)


def iter_document(path: Path) -> Iterator[Metrics | Skip]:
    """Yield the steps of a JSON array, of `log_history`, or the one step of an object; reads up to 64 MiB."""
    rows = _rows(path)
    if rows is None:
        yield Skip(1, "not a JSON array or object of at most 64 MiB")
        return
    for index, row in enumerate(rows, start=1):
        step, values = of_fields(row)
        if step is None or not values:
            yield Skip(index, NO_METRICS, str(row)[:200].encode("utf-8", "backslashreplace"))
        else:
            yield Metrics(index, step, values, f"step {step}".encode(), PART in values)


def _rows(path: Path) -> list[Any] | None:
    text = whole_text(path)
    try:
        value = json.loads(text)
    except (*JSON_ERRORS, MemoryError):
        return None
    if isinstance(value, dict):
        history = value.get(HISTORY)
        return history if isinstance(history, list) else _by_column(value) or [value]
    return value if isinstance(value, list) else None


def _by_column(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of {name: {row: number}}, as pandas writes a table; none if it is not that."""
    if not any(name in STEP_FIELDS for name in value) or not all(isinstance(v, dict) for v in value.values()):
        return []
    rows: dict[str, dict[str, Any]] = {}
    for name, column in value.items():
        for row, number in column.items():
            rows.setdefault(row, {})[name] = number
    return list(rows.values())


def cells(line: Line, delimiter: str = ",") -> list[str] | None:
    """Return the cells of a line of CSV, None if it is none or longer than any row is."""
    if len(line.text) > ROW_BYTES:
        return None
    try:
        return next(csv.reader([line.text.decode("utf-8", "backslashreplace")], delimiter=delimiter), None)
    except (csv.Error, StopIteration):
        return None
