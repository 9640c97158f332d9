"""Lengths drawn from what metrics state of a step: one reader for every framework's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tlt.traces.common.seeds import LOGGED_LENGTHS, generator
from tlt.traces.importers.length_law import Aggregate, draw
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Reader, Response, Skip, Source
from tlt.traces.importers.reading.metric_lines import Metrics
from tlt.traces.importers.reading.metrics import iter_metrics, metric_names
from tltsched.errors import InputError

MOST_RESPONSES = 1 << 16  # of a step
MOST_GENERATED = 1 << 22  # of a file: 4,096 steps of 1,024 responses
MOST_TOKENS = 1 << 24
DRAWN = (
    "Only mean, maximum, minimum and share at the cap of a step are recorded: each step's lengths are drawn "
    "from a lognormal law fitted to them, cut at the maximum.",
    "Prompt groups are not recorded: each response is its own prompt.",
)
FILE_NAME = re.compile(
    r"(?:\.(?:log|txt|out|jsonl?|csv|parquet)(?:\.gz)?|(?:^|/)events\.out\.tfevents\.[^/]*)$"
)
Count = Callable[[Metrics, Options], int | str]
"""The number of responses of a step, or why it is not known."""


@dataclass(frozen=True)
class Names:
    """What a framework calls lengths: names of metrics, "" for what it does not log.

    before: what a tracker may put before each name.
    """

    mean: str
    longest: str
    shortest: str = ""
    truncated: str = ""
    median: str = ""
    prompt: str = ""
    before: tuple[str, ...] = ("",)

    @property
    def signs(self) -> tuple[str, ...]:
        """Names of metrics that say a log is of this framework."""
        named = (self.mean, self.longest, self.shortest, self.truncated)
        return tuple(prefix + name for prefix in self.before for name in named if name)

    def value(self, metrics: Metrics, name: str) -> float | None:
        """Return the value of a metric, None if it is not stated."""
        found = (metrics.values.get(prefix + name) for prefix in self.before)
        return next((value for value in found if value is not None), None) if name else None

    def detect(self, head: Head) -> str:
        """Return "" if the metrics at the beginning of a file have these names, else which one is missing."""
        stated = metric_names(head)
        for name in (self.mean, self.longest):
            if not any(prefix + name in stated for prefix in self.before):
                return f"no metric {name} of a step among its first ones"
        return ""

    def aggregate(self, metrics: Metrics, count: int) -> Aggregate | str:
        """Return what the metrics say of lengths, or why they say nothing of use."""
        mean, longest = self.value(metrics, self.mean), self.value(metrics, self.longest)
        if mean is None or longest is None:
            return f"metrics without {self.mean} and {self.longest}"
        if not 0 < mean <= longest <= MOST_TOKENS or longest < 1:
            return f"{self.mean} above {self.longest}, or out of range"
        share, shortest = self.value(metrics, self.truncated), self.value(metrics, self.shortest)
        share, shortest = share or 0.0, 1.0 if shortest is None else shortest
        if not 0 <= share <= 1 or not 0 <= shortest <= mean:
            return f"{self.truncated} or {self.shortest} out of range"
        median = self.value(metrics, self.median)
        if median is not None and not max(shortest, 1) <= median <= longest:
            median = None
        return Aggregate(mean, int(longest), int(shortest), share, count, median)


def reader(names: Names, count: Count) -> Reader:
    """Return the reader that draws the lengths of each step of a file."""

    def read(source: Source, options: Options) -> Iterator[Response | Skip]:
        made = 0
        drawn: set[int] = set()
        for metrics in iter_metrics(source.path):
            if isinstance(metrics, Skip):
                yield metrics
                continue
            try:
                responses = _responses(names, count, metrics, options)
            except InputError:
                if not made:  # no step says it
                    raise
                responses = "a step that does not say how many responses it has, as others do"
            found = responses if isinstance(responses, str) else names.aggregate(metrics, responses)
            if isinstance(found, str):
                yield Skip(metrics.line, found, metrics.text)
                continue
            if metrics.step in drawn:
                yield Skip(metrics.line, "a step that is stated again: the first counts", metrics.text)
                continue
            drawn.add(metrics.step)
            made += found.responses
            if made > MOST_GENERATED:
                told = f"a step beyond {MOST_GENERATED:,} generated responses"
                yield Skip(metrics.line, told, metrics.text)
                continue
            yield from _drawn(names, metrics, found, options)

    return read


def _responses(names: Names, count: Count, metrics: Metrics, options: Options) -> int | str:
    """Return how many responses a step has: what the log says, else what the user states."""
    if names.value(metrics, names.mean) is None:
        return f"metrics without {names.mean} and {names.longest}"
    found = count(metrics, options)
    if isinstance(found, int) and not 1 <= found <= MOST_RESPONSES:
        return "the metrics give no possible number of responses"
    return found


def _drawn(names: Names, metrics: Metrics, found: Aggregate, options: Options) -> Iterator[Response | Skip]:
    drawn = draw(found, generator(options.seed, LOGGED_LENGTHS, metrics.step))
    if drawn is None:
        yield Skip(metrics.line, "no lognormal law has this mean, maximum and clip ratio", metrics.text)
        return
    prompt = round(min(max(names.value(metrics, names.prompt) or 0.0, 0.0), MOST_TOKENS))
    pairs = zip(drawn.tokens.tolist(), drawn.truncated.tolist(), strict=True)
    for index, (tokens, truncated) in enumerate(pairs):
        group = (metrics.step << 32) + index
        yield Response(metrics.line, group, tokens, prompt, truncated, metrics.step, sample=0)
