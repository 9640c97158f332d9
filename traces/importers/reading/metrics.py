"""Metrics of training steps out of a file in any layout: lines, a table, a document, TensorBoard events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tlt.traces.importers.reading.event_files import is_event_file, iter_scalars
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Skip
from tlt.traces.importers.reading.metric_lines import MOST_METRICS, Metrics, iter_metric_lines
from tlt.traces.importers.reading.metric_tables import (
    is_document,
    is_parquet,
    is_table,
    iter_document,
    iter_parquet,
    iter_table,
)

OPEN_STEPS = 64  # a trainer and a rollout that print of different steps are at most a few apart
SAMPLED = 200  # metrics that are looked at to tell a format


def iter_metrics(path: Path) -> Iterator[Metrics | Skip]:
    """Yield what a file states of each step, or a Skip for a line or row that states nothing.

    Parts of one step are joined. Memory: one document of at most 64 MiB, or 64 steps. Raises InputError.
    """
    yield from _joined(_parts(path))


def metric_names(head: Head) -> frozenset[str]:
    """Return the names of the metrics that the beginning of a file states; none for a file without."""
    if head.start.startswith(b"PK\x03\x04") or (head.start.startswith(b"PAR1") and not is_parquet(head)):
        return frozenset()
    known = vars(head).get("metric_names")  # asked once a format
    if known is None:
        known = vars(head)["metric_names"] = _names(head)
    return frozenset(known)


def _names(head: Head) -> set[str]:
    names: set[str] = set()
    found = 0
    lines = len(head.lines)
    for metrics in _parts(head.path):
        if not isinstance(metrics, Skip):
            names.update(metrics.values)
            found += 1
        elif lines and metrics.line > head.lines[-1].number:
            break
        if found >= SAMPLED:
            break
    return names


def _parts(path: Path) -> Iterator[Metrics | Skip]:
    head = Head(path)
    if is_event_file(head.start):
        for index, (step, name, value) in enumerate(iter_scalars(path), start=1):
            yield Metrics(index, step, {name: value}, name.encode()[:400], part=True)
    elif is_parquet(head):
        yield from iter_parquet(path)
    elif is_document(head):
        yield from iter_document(path)
    elif is_table(head):
        yield from iter_table(path)
    else:
        yield from iter_metric_lines(path)


def _joined(parts: Iterator[Metrics | Skip]) -> Iterator[Metrics | Skip]:
    """Yield what is no part as it comes, and parts joined by step, in the order in which steps began.

    A number that is stated again is of a run that began again: the step begins anew.
    """
    held: dict[int, Metrics] = {}
    for found in parts:
        if isinstance(found, Skip) or not found.part:
            yield found
            continue
        begun = held.get(found.step)
        if begun is None:
            if len(held) >= OPEN_STEPS:
                yield held.pop(next(iter(held)))
            held[found.step] = found
        elif any(
            begun.values.get(name, value) != value
            for name, value in found.values.items()
            if not name.startswith("_")  # a tracker's own count of rows
        ):
            yield held.pop(found.step)
            held[found.step] = found
        elif len(begun.values) < MOST_METRICS:
            begun.values |= found.values
    yield from held.values()
