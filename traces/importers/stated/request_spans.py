"""When single requests of a benchmark began and ended: how long they took together, and how many ran at once.

Together they say what the engine takes where it was kept busy: all were sent at once, or each as another
ended (a closed loop). Otherwise they waited for their arrivals, and the time is not the engine's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Skip
from tlt.traces.importers.reading.rows import iter_named_rows
from tlt.traces.importers.reading.values import number

AT_ONCE = 0.1  # of the whole time: all began within it
BUSY = 0.8  # of the most that ran at once, in the mean
MOST = 1_000_000
Span = tuple[float, float]


class Together(NamedTuple):
    """Seconds of all requests of a run; concurrency: None where all were sent at once."""

    seconds: float
    concurrency: int | None


def spans_of(head: Head) -> list[list[Span]] | None:
    """Return by run when each request began and ended, in seconds; None if the file does not state it."""
    fields = head.fields
    if {"output_toks", "scheduled_ts", "last_token_ts"} <= fields.keys():
        return _of_rows(head, ("scheduled_ts",), ("last_token_ts",), 1.0)
    if {"metadata", "metrics", "error"} <= fields.keys():
        return _of_rows(head, ("metadata", "request_start_ns"), ("metadata", "request_end_ns"), 1e-9)
    return _of_guidellm(head) if "benchmarks" in fields else None


def together(spans: list[Span]) -> Together | None:
    """Return what the requests of a run took together; None if they waited for their arrivals."""
    if not spans:
        return None
    begun, ended = np.array(spans).T
    whole = float(ended.max() - begun.min())
    if whole <= 0 or bool((ended < begun).any()):
        return None
    if begun.max() - begun.min() <= AT_ONCE * whole:
        return Together(whole, None)
    changes = np.concatenate(
        [np.stack([begun, np.ones_like(begun)]), np.stack([ended, -np.ones_like(ended)])], 1
    )
    order = np.lexsort((changes[1], changes[0]))
    most = int(np.cumsum(changes[1][order]).max())
    if float((ended - begun).sum()) / whole < BUSY * most:
        return None
    return Together(whole, most)


def _of_rows(
    head: Head, begin: tuple[str, ...], end: tuple[str, ...], unit_s: float
) -> list[list[Span]] | None:
    spans: list[Span] = []
    for found in iter_named_rows(head.path):
        if isinstance(found, Skip) or found[1].get("error"):
            continue
        span = _span(_within(found[1], begin), _within(found[1], end), unit_s)
        if span is None or len(spans) >= MOST:
            return None
        spans.append(span)
    return [spans]


def _of_guidellm(head: Head) -> list[list[Span]] | None:
    runs: dict[int, list[Span]] = defaultdict(list)
    for found in iter_named_rows(head.path):
        benchmarks = None if isinstance(found, Skip) else found[1].get("benchmarks")
        for index, benchmark in enumerate(benchmarks if isinstance(benchmarks, list) else ()):
            requests = _within(benchmark, ("requests", "successful"))
            for request in requests if isinstance(requests, list) else ():
                span = _span(
                    _within(request, ("request_start_time",)), _within(request, ("request_end_time",)), 1.0
                )
                if span is None:
                    return None
                runs[index].append(span)
    return [runs[index] for index in sorted(runs)] or None


def _within(value: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _span(begin: Any, end: Any, unit_s: float) -> Span | None:
    begun, ended = number(begin), number(end)
    return None if begun is None or ended is None else (begun * unit_s, ended * unit_s)
