"""What a file looks like, what is missing for lengths, and the commands that read it: `tlt trace peek`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.detect import claims_of
from tlt.traces.importers.folder import regular_files
from tlt.traces.importers.formats.columns import FIELDS
from tlt.traces.importers.formats.metrics.of_trainers import NOT_COUNTED
from tlt.traces.importers.nearest import PHASES, Use, lengths_reason, nearest, other_uses
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Skip
from tlt.traces.importers.reading.lines import shown
from tlt.traces.importers.reading.metrics import metric_names
from tlt.traces.importers.reading.rows import iter_named_rows, layout_of
from tlt.traces.importers.reading.values import excerpt_of, number
from tlt.traces.importers.report import Tally
from tltsched.errors import InputError

SAMPLED_ROWS = 200
MOST_FIELDS = 60
MOST_DEPTH = 3  # of what lies within
TABLES = ("parquet", "CSV", "JSON lines", "JSON")
# field of a trace -> what its column may be called, the surest first
LIKELY: dict[str, tuple[re.Pattern[str], ...]] = {
    "response_tokens": tuple(
        map(
            re.compile,
            (
                r"(?:output|response|completion|generat|decode)[a-z]*_?(?:tok|len|length|count|size)",
                r"(?:^|_|\.)(?:out|gen|resp)[a-z]*_?(?:tok|len)", r"num_?(?:generated|output|new)_?tok",
                r"completion_tokens|output_ids$|response_ids$",
            ),
        )
    ),
    "prompt_tokens": tuple(
        map(
            re.compile,
            (r"(?:prompt|input|context)[a-z]*_?(?:tok|len|length|count|size)", r"(?:^|_|\.)in_?(?:tok|len)"),
        )
    ),
    "group": (re.compile(r"(?:prompt|group|problem|question|example|task)_?(?:id|uid|index|idx)"),
              re.compile(r"^uid$")),
    "step": (re.compile(r"(?:^|_)(?:global_?)?step$"),),
    "truncated": (re.compile(r"truncat|clipped"),),
}  # fmt: skip
# a sum, a mean or a limit is no length of one response
OF_ALL = re.compile(
    r"(?:^|[_./])(?:total|sum|mean|avg|average|max|min|limit|budget|rate|throughput|p\d\d)(?:[_./]|$)"
    r"|per_(?:s|gpu)"
)
NEEDED = {
    "prompt_tokens": "prompt lengths: 512 tokens are assumed",
    "group": "which responses are to one prompt: each counts as its own",
    "step": "RL steps: all are step 0",
    "truncated": "which responses were cut: --cap marks those that reach it",
}


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the rows: what it holds, of the rows that were looked at."""

    name: str
    holds: str  # whole numbers, numbers, texts, lists of whole numbers, ...
    example: str


class Peek(msgspec.Struct, frozen=True, kw_only=True):
    """What is found in a file. format: empty if no format claims it. reasons: of those that do not."""

    source: str
    layout: str
    rows: int
    fields: tuple[Field, ...]
    metrics: tuple[str, ...]
    format: str
    nearest: str
    gives: tuple[str, ...]
    lacks: tuple[str, ...]
    commands: tuple[str, ...]
    reasons: dict[str, str]


def peek(path: Path) -> Peek:
    """Return what the beginning of a file looks like; raises InputError if it is none or cannot be read."""
    if regular_files(path, Tally()) != [path]:
        raise InputError("file to look at", str(path), "a file", "name one of the folder")
    head = Head(path)
    layout = layout_of(head)
    rows = list(_sample(path)) if layout in TABLES else []
    claims = claims_of(head)
    fitting = [name for name, why in claims.items() if not why]
    columns = _proposed(rows) if not fitting else {}
    near = nearest(head, claims) if not fitting else None
    uses = other_uses(head)
    return Peek(
        source=shown(path),
        layout=layout,
        rows=len(rows),
        fields=tuple(_fields(rows)),
        metrics=tuple(sorted(metric_names(head)))[:MOST_FIELDS],
        format=", ".join(fitting),
        nearest=f"{near.name}: {near.reason}" if near else "",
        gives=(*(_told(name) for name in fitting), *(use.what for use in uses)),
        lacks=tuple(_lacks(head, fitting, columns, rows)),
        commands=tuple(_commands(path, fitting, columns, uses)),
        reasons={name: why for name, why in claims.items() if why},
    )


def _sample(path: Path) -> Iterator[dict[str, Any]]:
    taken = 0
    for found in iter_named_rows(path):
        if not isinstance(found, Skip):
            yield found[1]
            taken += 1
        if taken >= SAMPLED_ROWS:
            return


def _flat(row: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict) and depth < MOST_DEPTH:
            yield from _flat(value, f"{before}{name}.", depth + 1)
        else:
            yield f"{before}{name}", value


def _by_name(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in _flat(row):
            if name and (name in values or len(values) < MOST_FIELDS):
                values.setdefault(name, []).append(value)
    return values


def _fields(rows: list[dict[str, Any]]) -> Iterator[Field]:
    for name, values in _by_name(rows).items():
        known = [value for value in values if value is not None]
        holds = sorted({_kind(value) for value in known}) or ["nothing"]
        numbers = [found for value in known if (found := number(value)) is not None]
        told = (
            f"{min(numbers):,.10g} to {max(numbers):,.10g}"
            if len(numbers) == len(known) > 1
            else excerpt_of(str(known[0])[:400].encode("utf-8", "replace"), 60)
            if known
            else ""
        )
        yield Field(name=excerpt_of(name.encode("utf-8", "replace")), holds=" or ".join(holds), example=told)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "whole numbers"
    if isinstance(value, float):
        return "numbers"
    if isinstance(value, list):
        return f"lists of {_kind(value[0])}" if value else "empty lists"
    return "records" if isinstance(value, dict) else "texts"


def _proposed(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the columns that look like fields of a trace, as `--columns` takes them."""
    values = _by_name(rows)
    kinds = {name: {_kind(one) for one in found if one is not None} for name, found in values.items()}
    proposed: dict[str, str] = {}
    for field in FIELDS:
        for pattern in LIKELY.get(field, ()):
            fitting = [
                name for name in values
                if name not in proposed.values() and pattern.search(name.lower())
                and not OF_ALL.search(name.lower()) and _suits(field, kinds[name])
            ]  # fmt: skip
            if fitting:
                listed = "lists of whole numbers" in kinds[fitting[0]] and field.endswith("_tokens")
                proposed[field] = fitting[0] + (":count" if listed else "")
                break
    return proposed


def _suits(field: str, kinds: set[str]) -> bool:
    if field in ("response_tokens", "prompt_tokens"):
        return kinds in ({"whole numbers"}, {"lists of whole numbers"})
    if field == "truncated":
        return kinds <= {"true or false", "whole numbers"} and bool(kinds)
    return kinds <= {"whole numbers", "texts"} and bool(kinds)


def _told(name: str) -> str:
    one = IMPORTERS[name]
    return f"lengths as {name} ({one.framework}): {one.lengths}"


def _lacks(
    head: Head, fitting: list[str], columns: dict[str, str], rows: list[dict[str, Any]]
) -> Iterator[str]:
    if fitting:
        yield from (sentence for name in fitting for sentence in IMPORTERS[name].lost)
        return
    why = lengths_reason(head)
    if why:
        yield why
    elif rows and "response_tokens" not in columns:
        yield "a column of response lengths in tokens: none is called so"
    elif not rows:
        yield "response lengths: no rows with names and values"
    if "response_tokens" in columns:
        yield from (sentence for field, sentence in NEEDED.items() if field not in columns)


def _commands(path: Path, fitting: list[str], columns: dict[str, str], uses: list[Use]) -> Iterator[str]:
    name = shlex.quote(str(path)) if str(path).isprintable() else shown(path)
    phases = any(use.command == PHASES for use in uses)
    if fitting:
        one = IMPORTERS[fitting[0]]
        named = f" --format {one.name}" if len(fitting) > 1 else ""
        texts = " --tokenizer tokenizer.json" if one.lengths == "re-tokenised" else ""
        counted = " --responses N" if NOT_COUNTED in one.lost else ""
        times = " --phases phases.json" if phases else ""
        yield f"tlt trace import {name}{named}{texts}{counted}{times} --out lengths.parquet"
        yield f"tlt trace doctor {name}{named}{texts}{counted}"
    elif "response_tokens" in columns:
        given = shlex.quote(",".join(f"{field}={column}" for field, column in columns.items()))
        yield f"tlt trace import {name} --columns {given} --out lengths.parquet"
    yield from (use.command.replace("PATH", name) for use in uses if not (fitting and use.command == PHASES))
