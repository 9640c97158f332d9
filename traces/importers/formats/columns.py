"""Rows of one response each whose columns the user names: `--columns response_tokens=out_len,...`.

FIELD=COLUMN, with a dot for what lies within (`usage.completion_tokens`, `outputs.0.n`), and a colon for how
it is meant: `:count` the elements of a list (token ids), `:ms` the unit of a time, `truncated=REASON:length`
the value that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Response, Skip, Source, UnusableError
from tlt.traces.importers.reading.rows import iter_named_rows
from tlt.traces.importers.reading.values import digest, encoded, key_of, number, whole
from tltsched.errors import InputError, unknown_name

FIELDS = (
    "response_tokens", "prompt_tokens", "step", "group", "sample", "truncated", "arrived_s", "reward", "text",
)  # fmt: skip
NUMBERS = ("arrived_s", "reward")
TOKENS = ("response_tokens", "prompt_tokens")
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
OPTION = "--columns"
TRUE, FALSE = (True, 1, "true", "True", "1"), (False, 0, "false", "False", "0", None, "")


@dataclass(frozen=True)
class Column:
    """Where a field is found in a row; `how` is what stands behind the colon."""

    name: str
    how: str

    def of(self, row: dict[str, Any]) -> Any:
        """Return the value in a row, None if there is none."""
        if self.name in row:
            return row[self.name]
        value: Any = row
        for part in self.name.split("."):
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 10:
                value = value[int(part)] if int(part) < len(value) else None
            else:
                return None
        return value


def parsed(texts: tuple[str, ...]) -> dict[str, Column]:
    """Return the columns by field; raises InputError for what is no `FIELD=COLUMN`."""
    found: dict[str, Column] = {}
    for text in (part.strip() for given in texts for part in given.split(",") if part.strip()):
        field, equals, name = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise InputError(OPTION, text, "FIELD=COLUMN", "for example response_tokens=out_len")
        if field not in FIELDS:
            raise unknown_name(f"field of {OPTION}", field, FIELDS, "use one of these fields")
        found[field] = _column(field, name)
    if "response_tokens" not in found:
        raise InputError(
            OPTION, ",".join(texts), "response_tokens=COLUMN among them", "say which column has the lengths"
        )
    return found


def _column(field: str, text: str) -> Column:
    name, colon, how = text.rpartition(":")
    if not colon:
        name, how = text, ""
    allowed = {"arrived_s": tuple(UNITS), **dict.fromkeys(TOKENS, ("count",))}.get(field, ())
    if colon and field != "truncated" and how not in allowed:
        if not allowed:
            return Column(text, "")  # the colon is of the name
        raise unknown_name(f"unit of {field} in {OPTION}", how, allowed, f"write {field}={name}:{allowed[0]}")
    if field == "arrived_s" and not how:
        raise InputError(
            OPTION, f"{field}={text}", f"a unit: {', '.join(UNITS)}", f"write {field}={text}:s, or what it is"
        )
    return Column(name, how)


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    columns = parsed(options.columns)
    wanted = tuple(dict.fromkeys(column.name.split(".")[0] for column in columns.values()))
    wanted = tuple(dict.fromkeys([*wanted, *(column.name for column in columns.values())]))
    for found in iter_named_rows(source.path, wanted):
        if isinstance(found, Skip):
            yield found
            continue
        line, row = found
        try:
            yield _response(columns, row, line)
        except UnusableError as error:
            yield Skip(line, str(error), encoded_or_empty(row))


def encoded_or_empty(row: dict[str, Any]) -> bytes:
    """Return the beginning of a row as JSON; nothing if it has values that JSON does not know."""
    try:
        return encoded(row).encode("utf-8", "replace")[:400]
    except (TypeError, ValueError, OverflowError, RecursionError):
        return b""


def _response(columns: dict[str, Column], row: dict[str, Any], line: int) -> Response:
    tokens = _tokens(columns, "response_tokens", row)
    if tokens is None:
        raise UnusableError(f"{columns['response_tokens'].name} is missing or no whole number")
    group = key_of(columns["group"].of(row)) if "group" in columns else None
    step, sample = (whole(columns[name].of(row)) if name in columns else None for name in ("step", "sample"))
    at, reward = (number(columns[name].of(row)) if name in columns else None for name in NUMBERS)
    text = columns["text"].of(row) if "text" in columns else None
    return Response(
        line=line,
        group=line if group is None else group,
        response_tokens=tokens,
        prompt_tokens=_tokens(columns, "prompt_tokens", row) or 0,
        truncated=_truncated(columns, row),
        step=step,
        sample=sample,
        arrived_s=None if at is None else at * UNITS[columns["arrived_s"].how],
        reward=reward,
        text_hash=0 if text is None else digest(encoded(text)),
    )


def _tokens(columns: dict[str, Column], field: str, row: dict[str, Any]) -> int | None:
    column = columns.get(field)
    value = None if column is None else column.of(row)
    if column is not None and column.how == "count":
        return len(value) if isinstance(value, list) else None
    return None if isinstance(value, list) and len(value) != 1 else whole(value)


def _truncated(columns: dict[str, Column], row: dict[str, Any]) -> bool:
    column = columns.get("truncated")
    if column is None:
        return False
    value = column.of(row)
    if column.how:
        return str(value) == column.how
    if value in TRUE or value in FALSE:
        return value in TRUE
    raise UnusableError(f"{column.name} is neither true nor false: write truncated={column.name}:VALUE")


def _detect(head: Head) -> str:
    del head
    return f"columns are named with {OPTION}"


IMPORTER = Importer(
    name="columns",
    framework="columns that were named",
    file="JSONL, JSON array, CSV or parquet, a row a response",
    written_by="anything: --columns response_tokens=NAME,... says what the columns are",
    kind="unstated",
    lengths="exact",
    lost=("What the columns mean is as --columns states it.",),
    detect=_detect,
    read=_read,
)
