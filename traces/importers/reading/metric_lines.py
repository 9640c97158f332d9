"""Metrics of training steps, out of a console log or a JSONL file of metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tlt.traces.importers.reading.head import JSON_ERRORS
from tlt.traces.importers.reading.items import Skip
from tlt.traces.importers.reading.lines import Line, iter_lines
from tlt.traces.importers.reading.values import number, number_in, whole

NO_METRICS = "a line without metrics of a step"
LINE_BYTES = 4 << 20
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(r"(?:^|[\s)'\"])step:(\d{1,9}) - ")
STEP_FIELDS = ("step", "_step", "training/global_step")


class Metrics(msgspec.Struct):
    """The finite numbers that one line states about one step."""

    line: int
    step: int
    values: dict[str, float]
    text: bytes  # the beginning of the line


def iter_metrics(path: Any) -> Iterator[Metrics | Skip]:
    """Yield what each line of `path` states about a step, or that it states nothing.

    Lines are `step:N - key:value - key:value`, with or without colours and what Ray puts before it, or JSON
    objects with the step and the metrics side by side or under `data`.
    """
    for line in iter_lines(path, LINE_BYTES):
        found = None if line.too_long else metrics_of(line)
        yield found or Skip(line.number, NO_METRICS, line.text[:400])


def metrics_of(line: Line) -> Metrics | None:
    """Return what a line states about a step, if it states something."""
    if line.text.lstrip().startswith(b"{"):
        step, values = _json(line.text)
    else:
        step, values = _console(line.text)
    return Metrics(line.number, step, values, line.text[:400]) if values and step is not None else None


def _console(text: bytes) -> tuple[int | None, dict[str, float]]:
    if b"step:" not in text:
        return None, {}
    plain = _ANSI.sub("", text.decode("utf-8", "replace"))
    found = _STEP.search(plain)
    if found is None:
        return None, {}
    values = {}
    for part in plain[found.end() :].split(" - "):
        key, _, value = part.strip().rpartition(":")
        read = number_in(value)
        if key and read is not None:
            values[key] = read
    return int(found.group(1)), values


def _json(text: bytes) -> tuple[int | None, dict[str, float]]:
    try:
        fields = msgspec.json.decode(text)
    except JSON_ERRORS:
        return None, {}
    inner = fields.get("data") if isinstance(fields, dict) else None
    fields = fields | inner if isinstance(inner, dict) else fields
    if not isinstance(fields, dict):
        return None, {}
    step = next((whole(fields[name]) for name in STEP_FIELDS if name in fields), None)
    values = {key: read for key, value in fields.items() if (read := number(value)) is not None}
    return step if step is not None and 0 <= step < 1 << 31 else None, values
