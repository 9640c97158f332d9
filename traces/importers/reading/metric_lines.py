"""Metrics of training steps, line by line: console logs and JSONL files of metrics.

Layouts of one line: `step:N - key:value - key:value` (verl), `perf N: {...}` (slime), a Python dict (TRL,
ms-swift), a JSON object. `step:N` alone is followed by lines of ` - key:value`, one metric each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tlt.traces.importers.reading.head import JSON_ERRORS
from tlt.traces.importers.reading.items import Skip
from tlt.traces.importers.reading.lines import NO_END, Line, iter_lines
from tlt.traces.importers.reading.values import number, number_in, whole

NO_METRICS = "a line without metrics of a step"
NOT_WHOLE = "the last step lacks metrics of the one before: it may still be written"
LINE_BYTES = 4 << 20
PART = "rollout/step"  # slime tracks a step in several rows
MOST_METRICS = 10_000  # of one step
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RAY = re.compile(r"^\s*\([\w.:/ -]{1,80}pid=\d+[^)]{0,80}\)\s?")
_STEP = re.compile(r"(?:^|[\s)'\"])step:(\d{1,9})(?: - |\s*$)")
_ONE = re.compile(r"^\s*- ([^\s:][^:]{0,200}):\s*(\S.*)$")
_OF_ROLLOUT = re.compile(r"(?:^|[\s-])(?:perf|rollout|multi_turn) (\d{1,9}): (?=\{)")
_PAIR = re.compile(
    r"""['"]([^'"]{1,200})['"]:\s*(?:'([^']{0,60})'|([^\s,{}\[\]'"][^,{}\[\]'"]{0,60}))(?=\s*[,}])"""
)
_BAR = re.compile(r"\|\s*(\d{1,9})/\d{1,9} \[")
STEP_FIELDS = (
    "step", "rollout/step", "train/global_step", "_step", "training/global_step", "trainer/global_step",
    "global_step", "Step",
)  # fmt: skip
OF_STEPS = "global_step/max_steps"  # ms-swift: '12/900'


class Metrics(msgspec.Struct):
    """The finite numbers that are stated about one step. line: where first; text: the beginning of it.

    part: others of the same step belong to it, as those that several processes of slime print.
    """

    line: int
    step: int
    values: dict[str, float]
    text: bytes
    part: bool = False


class Lines:
    """Metrics out of lines that are taken one after the other.

    A dict of TRL has no step: it is that of the progress bar before it if that goes on, else the next one.
    """

    def __init__(self) -> None:
        self.open: Metrics | None = None  # of a step whose metrics stand on lines of their own
        self.last = 0  # step of the last dict
        self.bar = 0
        self.names: set[str] = set()  # that the last such step stated

    def take(self, line: Line) -> Iterator[Metrics | Skip]:
        """Yield what is complete with this line."""
        if line.too_long:
            yield Skip(line.number, NO_METRICS, line.text[:400])
            return
        plain = _plain(line.text)
        if self.open is not None:
            one = _ONE.match(plain)
            if one and len(self.open.values) < MOST_METRICS:
                value = number_in(one[2])
                if value is not None and line.ended:
                    self.open.values[one[1].strip()] = value
                return
        found, waits = self._of_line(line, plain)
        if found is not None and not waits and not line.ended and plain.rstrip()[-1:] != "}":
            yield Skip(line.number, NO_END, line.text[:400])
        elif waits:
            yield from self.rest()
            self.open = found
        else:
            yield found or Skip(line.number, NO_METRICS, line.text[:400])

    def rest(self, *, at_end: bool = False) -> Iterator[Metrics | Skip]:
        """Yield the step that is still open.

        The last one of a file may still be written: it lacks what the step before stated.
        """
        if self.open is not None:
            left, self.open = self.open, None
            if at_end and self.names - left.values.keys():
                yield Skip(left.line, NOT_WHOLE, left.text)
            else:
                yield left if left.values else Skip(left.line, NO_METRICS, left.text)
            self.names = set(left.values)

    def _of_line(self, line: Line, plain: str) -> tuple[Metrics | None, bool]:
        """Return what the line states, and whether more lines of the same step follow."""
        text = line.text[:400]
        if plain.lstrip().startswith("{"):
            step, values = of_fields(_decoded(line.text))
            if values and step is not None:
                return Metrics(line.number, step, values, text, PART in values), False
        begins = _STEP.search(plain)
        if begins:
            values = _dashed(plain[begins.end() :])
            waits = not values and not plain[begins.end() :].strip()
            metrics = Metrics(line.number, int(begins[1]), values, text)
            return (metrics, waits) if values or waits else (None, False)
        rollout = _OF_ROLLOUT.search(plain)
        if rollout:
            values = _pairs(plain[rollout.end() :])[0]
            return (Metrics(line.number, int(rollout[1]), values, text, part=True) if values else None), False
        return self._of_dict(line, plain), False

    def _of_dict(self, line: Line, plain: str) -> Metrics | None:
        at = plain.find("{'")
        bars = _BAR.findall(plain if at < 0 else plain[:at])
        self.bar = int(bars[-1]) if bars else self.bar
        if at < 0 or plain.rstrip()[-1:] != "}":
            return None
        values, stated = _pairs(plain[at:])
        if not any("/" in name or name == "loss" for name in values) or "train_runtime" in values:
            return None
        step = stated if stated is not None else self.bar if self.bar > self.last else self.last + 1
        self.last = step
        return Metrics(line.number, step, values, line.text[:400])


def iter_metric_lines(path: Any) -> Iterator[Metrics | Skip]:
    """Yield what the lines of `path` state about steps, and a Skip for each that states nothing."""
    lines = Lines()
    for line in iter_lines(path, LINE_BYTES):
        yield from lines.take(line)
    yield from lines.rest(at_end=True)


def of_fields(fields: Any) -> tuple[int | None, dict[str, float]]:
    """Return the step and the finite numbers of a JSON object; those under `data` count as its own."""
    inner = fields.get("data") if isinstance(fields, dict) else None
    fields = fields | inner if isinstance(inner, dict) else fields
    if not isinstance(fields, dict):
        return None, {}
    step = next((whole(fields[name]) for name in STEP_FIELDS if name in fields), None)
    stated = fields.get(OF_STEPS)
    step = _first_of(stated) if step is None and isinstance(stated, str) else step
    values = {key: read for key, value in fields.items() if (read := number(value)) is not None}
    return step if step is not None and 0 <= step < 1 << 31 else None, values


def _plain(text: bytes) -> str:
    """Return a line without colours and without Ray's prefix."""
    plain = text.decode("utf-8", "replace")
    plain = _ANSI.sub("", plain) if "\x1b" in plain else plain
    return _RAY.sub("", plain, count=1)


def _dashed(text: str) -> dict[str, float]:
    values = {}
    for part in text.split(" - "):
        key, _, value = part.strip().rpartition(":")
        read = number_in(value)
        if key and read is not None:
            values[key] = read
    return values


def _pairs(text: str) -> tuple[dict[str, float], int | None]:
    """Return the numbers of a printed dict, quoted ones too, and the step that it states."""
    values: dict[str, float] = {}
    step = None
    for key, quoted, bare in _PAIR.findall(text):
        read = number_in(quoted or bare)
        if read is not None:
            values[key] = read
        if key == OF_STEPS:
            step = _first_of(quoted)
        elif key in STEP_FIELDS and read is not None and step is None:
            step = whole(read)
    return values, step if step is not None and 0 <= step < 1 << 31 else None


def _first_of(text: str) -> int | None:
    first = text.partition("/")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and len(first) < 10 else None


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except JSON_ERRORS:
        return None
