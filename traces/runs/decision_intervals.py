"""Decision intervals out of a run's record: what was drafted, what it took, what was accepted where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tlt.traces.runs.acceptance_counts import PositionCounter
from tlt.traces.runs.engine_steps import STRETCH_COLUMNS
from tlt.traces.runs.records import read_records
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan


@dataclass(frozen=True)
class DecisionIntervals:
    """stretches: STRETCH_COLUMNS, a row a decision interval; positions: POSITION_COLUMNS."""

    stretches: pd.DataFrame
    positions: pd.DataFrame


def read_decision_intervals(path: Path) -> DecisionIntervals:
    """Read a record; raises InputError for a line that is none.

    An engine step whose draft configuration has depth d drafts positions 0 to d - 1. The context of a
    decision interval is the mean of those before and after it.
    """
    counter = PositionCounter()
    rows: list[tuple[Any, ...]] = []
    context_of: dict[int, float] = {}
    step_of: dict[int, int] = {}
    batch_of: dict[int, int] = {}
    for record in read_records(path):
        counter.take(record)
        body = record.body
        if isinstance(body, RolloutBegan):
            step_of[body.worker] = body.step
        elif isinstance(body, BatchFormed):
            context_of[body.worker] = body.context_tokens / max(body.requests, 1)
            batch_of[body.worker] = body.requests
        elif isinstance(body, DecisionEnded):
            first = batch_of.get(body.worker, body.requests + len(body.finished))
            step = step_of.get(body.worker, -1)
            rows.append((step, body.worker, *_stretch(body, context_of), first, body.requests))
            batch_of[body.worker] = body.requests
    frame = pd.DataFrame(rows, columns=list(STRETCH_COLUMNS)).astype(STRETCH_COLUMNS)
    used = (frame["engine_steps"] > 0) & (frame["request_steps"] > 0) & (frame["seconds"] > 0)
    return DecisionIntervals(frame[used].reset_index(drop=True), counter.table())


def positions(path: Path) -> pd.DataFrame:
    """Return how many drafts were accepted at each position in each step; empty without the file."""
    if not path.is_file():
        return PositionCounter().table()
    return read_decision_intervals(path).positions


def _stretch(interval: DecisionEnded, context_of: dict[int, float]) -> tuple[Any, ...]:
    after = interval.context_tokens / interval.requests if interval.requests else None
    before = context_of.get(interval.worker, after or 0.0)
    context_of[interval.worker] = before if after is None else after
    draft_config = interval.draft_config
    return (
        str(draft_config), draft_config.depth, interval.engine_steps, interval.request_steps,
        interval.decode_s,
        (before + context_of[interval.worker]) / 2, sum(interval.accepted_by_position),
    )  # fmt: skip
