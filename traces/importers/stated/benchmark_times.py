"""How long the requests of a serving benchmark took, and how many ran at once.

Only where the engine was kept busy: at a finite rate the duration is that of their arrivals.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tlt.traces.importers.folder import regular_files
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Skip, Source
from tlt.traces.importers.reading.lines import shown
from tlt.traces.importers.reading.records import documents
from tlt.traces.importers.reading.values import number, whole
from tlt.traces.importers.report import Tally
from tlt.traces.importers.stated.request_spans import spans_of, together


class Result(msgspec.Struct):
    """The fields that are read."""

    output_lens: Any = None
    duration: Any = None
    request_rate: Any = None
    max_concurrency: Any = None


class BenchmarkTimes(NamedTuple):
    """Seconds of each run with its requests. concurrency: of all runs, None if it differs or has no limit."""

    durations_s: list[float]
    concurrency: int | None


def benchmark_times(path: Path) -> BenchmarkTimes | None:
    """Return the times of the results at `path`; None unless all of them state how long they took."""
    durations: list[float | None] = []
    limits: set[int | None] = set()
    for file in regular_files(path, Tally()):
        head = Head(file)
        if not head.is_text:
            continue
        spans = spans_of(head)
        if spans is not None:
            runs = [together(run) for run in spans]
            durations += [None if run is None else run.seconds for run in runs]
            limits |= {run.concurrency for run in runs if run is not None}
        elif "output_lens" in head.fields:
            for found in documents(Result, Source(file, shown(file))):
                if not isinstance(found, Skip) and isinstance(found[1].output_lens, list):
                    durations.append(_duration_s(found[1]))
                    limits.add(whole(found[1].max_concurrency))
    known = [seconds for seconds in durations if seconds is not None]
    if not known or len(known) < len(durations):
        return None
    limit = limits.pop() if len(limits) == 1 else None
    return BenchmarkTimes(known, limit if limit is not None and limit > 0 else None)


def _duration_s(result: Result) -> float | None:
    rate, seconds = result.request_rate, number(result.duration)
    at_once = rate == "inf" or (isinstance(rate, float) and math.isinf(rate))
    return seconds if at_once and seconds is not None and 0 < seconds < 1e9 else None
