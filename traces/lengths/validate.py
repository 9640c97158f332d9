"""Checks of values: a column of a file becomes a compact numpy array, or an error that says where."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tlt.traces.common.arrays import Bools
from tlt.traces.common.migrate import names_today
from tlt.traces.lengths.schema import (
    ALL_COLUMNS,
    COLUMNS,
    INT64_MAX,
    LIMITS,
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMN,
    TURN,
    TURN_COLUMNS,
    Origin,
    Trace,
    empty_trace,
)
from tltsched.errors import InputError

KEY = ["step", "prompt_id", "sample"]
KINDS = ALL_COLUMNS | TURN_COLUMNS  # column of a trace or of sessions -> dtype


@dataclass(frozen=True)
class Place:
    """Where a block of rows lies. The first row of the block is number `first`, counted in `unit` from 1."""

    file: str
    unit: Literal["line", "row", "session"]
    first: int

    def of(self, index: int) -> str:
        """Return the place of row `index` (0-based) of the block."""
        return f"{self.unit} {self.first + index} of {self.file}"


def checked_names(given: Iterable[str], file: str) -> list[str]:
    """Return what columns are called today; raises InputError for an unknown, doubled or missing one."""
    listed = list(given)
    allowed = TURN_COLUMNS if TURN in listed else ALL_COLUMNS
    try:
        names = names_today(listed, ALL_COLUMNS)
    except InputError as both:
        raise InputError(f"{both.field} in {file}", both.got, both.allowed, both.fix) from None
    for name in names:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"column of {file}", name, ", ".join(allowed), f"{hint}rename or drop it")
        if names.count(name) > 1:
            raise InputError(f"column of {file}", name, "each column once", "drop the second one")
    if REQUIRED_COLUMN not in names:
        raise InputError(f"columns of {file}", names, f"{REQUIRED_COLUMN} among them", "add that column")
    return names


def check_column(field: str, column: pa.Array, place: Place) -> npt.NDArray[Any]:
    """Return `column` (shape [n]) in the dtype of KINDS; raises InputError at its first bad value.

    Texts come back as objects, lists as an object array of int64 arrays, seconds that may lack as NaN.
    """
    kind = KINDS[field]
    if kind == "float64?":
        return _seconds_or_none(field, column, place)
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise _bad(field, "no value", place, row)
    if kind == "bool":
        return _booleans(field, column, place)
    if kind == "float64":
        return _floats(field, column, place)
    if kind == "text":
        return _texts(field, column, place)
    if kind == "list":
        return _lists(field, column, place)
    return _integers(field, column, place)


def column_of(field: str, values: Sequence[Any] | npt.NDArray[Any], place: Place) -> pa.Array:
    """Return Python or pandas `values` as an arrow array; NaN and None become nulls."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError):
        row = next((i for i, value in enumerate(values) if not _storable(value)), None)
        if row is None:
            raise InputError(
                f"{field} in {place.file}", "mixed types", _allowed(field), "use one type"
            ) from None
        raise _bad(field, values[row], place, row) from None


def complete(rows: pd.DataFrame, max_response_tokens: int | None) -> pd.DataFrame:
    """Return `rows` with the columns that the file lacked, in the order of COLUMNS.

    Defaults: step 0; each row its own prompt; sample = order within the prompt of a step; prompt length 0
    (not known); truncated where the response is as long as the cap, if one is known.
    """
    count = len(rows)
    filled = rows.copy(deep=False)
    if "step" not in filled:
        filled["step"] = np.zeros(count, np.int32)
    if "prompt_id" not in filled:
        filled["prompt_id"] = np.arange(count, dtype=np.int64)
    if "sample" not in filled:
        filled["sample"] = filled.groupby(["step", "prompt_id"], sort=False).cumcount().astype(np.int32)
    if "prompt_tokens" not in filled:
        filled["prompt_tokens"] = np.zeros(count, np.int32)
    if "truncated" not in filled:
        filled["truncated"] = at_cap(filled["response_tokens"].to_numpy(), max_response_tokens)
    return filled[[*COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in filled)]]


def at_cap(lengths: npt.NDArray[np.integer], max_response_tokens: int | None) -> Bools:
    """Return which `lengths` (tokens, shape [n]) reach the cap; none if it is not known."""
    return lengths >= (np.inf if max_response_tokens is None else max_response_tokens)


def check_below_cap(lengths: npt.NDArray[np.integer], max_response_tokens: int | None, place: Place) -> None:
    """Raise InputError if a length passes the cap that the origin states."""
    if max_response_tokens is not None and np.any(lengths > max_response_tokens):
        row = int(np.argmax(lengths > max_response_tokens))
        where = f"response_tokens in {place.of(row)}"
        allowed = f"at most the stated cap, {max_response_tokens}"
        raise InputError(where, int(lengths[row]), allowed, "correct the length or the cap")


def check_unique(rows: pd.DataFrame, file: str) -> None:
    """Raise InputError if two rows have the same step, prompt and sample."""
    doubled = rows.duplicated(KEY).to_numpy()
    if doubled.any():
        row = int(np.argmax(doubled))
        got = ", ".join(f"{name} {rows[name].iloc[row]}" for name in KEY)
        raise InputError(f"row {row + 1} of {file}", got, "each of these once", "drop or renumber the repeat")


def to_trace(frame: pd.DataFrame, origin: Origin) -> Trace:
    """Return a checked Trace from a table that has at least response_tokens; raises InputError."""
    name = origin.source
    names = checked_names(map(str, frame.columns), name)
    if frame.empty:
        raise empty_trace(name)
    place = Place(name, "row", 1)
    checked = {
        field: check_column(field, column_of(field, values.to_numpy(), place), place)
        for field, (_, values) in zip(names, frame.items(), strict=True)
    }
    check_below_cap(checked["response_tokens"], origin.max_response_tokens, place)
    rows = complete(pd.DataFrame(checked), origin.max_response_tokens)
    check_unique(rows, name)
    return Trace(rows, origin)


def _allowed(field: str) -> str:
    kind = KINDS[field]
    if kind == "bool":
        return "true or false"
    if kind == "float64?":
        return "seconds, finite, 0 or more, or no value"
    if kind == "float64":
        return "seconds, finite, 0 or more" if field.endswith("_s") else "finite numbers"
    if kind == "text":
        return "a word"
    if kind == "list":
        return "whole numbers, with spaces between them in a CSV"
    low, high = LIMITS[field]
    return f"whole numbers from {low} to {high}"


def _bad(field: str, got: object, place: Place, row: int) -> InputError:
    return InputError(f"{field} in {place.of(row)}", got, _allowed(field), "correct or drop that row")


def _storable(value: object) -> bool:
    if isinstance(value, (int, np.integer)):
        return -INT64_MAX <= int(value) <= INT64_MAX
    return value is None or isinstance(value, (float, np.floating))


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _cast(field: str, column: pa.Array, kind: pa.DataType, place: Place) -> pa.Array:
    """Cast `column` to `kind`, or raise at the first value that cannot be."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        for row in range(len(column)):
            try:
                column.slice(row, 1).cast(kind)
            except pa.ArrowInvalid:
                raise _bad(field, column[row].as_py(), place, row) from None
        raise  # cannot be: the whole failed, so one of its rows does


def _numbers(field: str, column: pa.Array, place: Place) -> pa.Array:
    """Return `column` as int64 or float64."""
    if _is_text(column):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            return _cast(field, column, pa.float64(), place)
    if pa.types.is_integer(column.type):
        return _cast(field, column, pa.int64(), place)
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    got = f"type {column.type}"
    raise InputError(f"{field} in {place.file}", got, _allowed(field), "convert the column to numbers")


def _array(column: pa.Array) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _integers(field: str, column: pa.Array, place: Place) -> npt.NDArray[Any]:
    values = _array(_numbers(field, column, place))
    low, high = LIMITS[field]
    bad = ~((values >= low) & (values <= high))
    if values.dtype == np.float64:
        # 2**63 as a float passes `<= INT64_MAX` and would wrap around.
        bad |= ~np.isfinite(values) | (values != np.floor(values)) | (np.abs(values) >= 2.0**63)
    if bad.any():
        row = int(np.argmax(bad))
        raise _bad(field, column[row].as_py(), place, row)
    return values.astype(KINDS[field])


def _floats(field: str, column: pa.Array, place: Place) -> npt.NDArray[Any]:
    numbers = _numbers(field, column, place).cast(pa.float64(), safe=False)
    values = _array(numbers)
    bad = ~np.isfinite(values)
    if field.endswith("_s"):
        bad |= values < 0
    if bad.any():
        row = int(np.argmax(bad))
        raise _bad(field, column[row].as_py(), place, row)
    return values


def _seconds_or_none(field: str, column: pa.Array, place: Place) -> npt.NDArray[Any]:
    """Return seconds, NaN where there is no value: null, or nothing between two commas."""
    if _is_text(column):
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    lacks = _array(pc.is_null(column))
    if lacks.all():
        return np.full(len(column), np.nan)
    seconds = np.full(len(column), np.nan)
    seconds[~lacks] = _floats(field, pc.fill_null(column, "0" if _is_text(column) else 0), place)[~lacks]
    return seconds


def _texts(field: str, column: pa.Array, place: Place) -> npt.NDArray[Any]:
    if not _is_text(column):
        raise _bad(field, column[0].as_py(), place, 0)
    return np.array(column.to_pylist(), dtype=object)


def _lists(field: str, column: pa.Array, place: Place) -> npt.NDArray[Any]:
    """Return an array of arrays; of a CSV the numbers stand in one text, with spaces between them."""
    rows = np.empty(len(column), dtype=object)
    for index, value in enumerate(column.to_pylist()):
        try:
            rows[index] = np.array(value.split() if isinstance(value, str) else value, dtype=np.int64)
        except (ValueError, TypeError, OverflowError):
            raise _bad(field, str(value)[:80], place, index) from None
    return rows


def _booleans(field: str, column: pa.Array, place: Place) -> npt.NDArray[Any]:
    if pa.types.is_boolean(column.type):
        return _array(column)
    if _is_text(column):
        return _array(_cast(field, column, pa.bool_(), place))
    values = _array(_numbers(field, column, place))
    bad = (values != 0) & (values != 1)
    if bad.any():
        row = int(np.argmax(bad))
        raise _bad(field, column[row].as_py(), place, row)
    return values.astype(bool)
