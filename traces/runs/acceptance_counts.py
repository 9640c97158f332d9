"""Acceptance by position, counted from the records of a run.

Position j (from 0) of a chain is drafted in each engine step of a decision interval whose chain has more than
j drafts, so accepted[j] / engine steps[j] is P(accepted drafts > j) over the decision intervals that drafted
as many.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Floats
from tltsched.event_log import Record
from tltsched.events import DecisionEnded, RolloutBegan

POSITION_COLUMNS = {
    "step": "int32",
    "position": "int16",  # of the draft, from 0
    "drafted": "int64",  # request-steps that drafted this far
    "accepted": "int64",  # of these, accepted at this position
}


class PositionCounts(msgspec.Struct, frozen=True):
    """Drafts accepted and request-steps that drafted so far, by position, [depth]; counts add up."""

    accepted: Floats
    engine_steps: Floats

    def __add__(self, other: PositionCounts) -> PositionCounts:
        """Return the counts of both."""
        depth = max(len(self.accepted), len(other.accepted))
        return PositionCounts(
            _padded(self.accepted, depth) + _padded(other.accepted, depth),
            _padded(self.engine_steps, depth) + _padded(other.engine_steps, depth),
        )

    def survival(self) -> Floats:
        """Return P(accepted drafts >= j) for j = 1.. of the positions that were drafted; never rises."""
        drafted = self.engine_steps > 0
        return np.minimum.accumulate(self.accepted[drafted] / self.engine_steps[drafted])


NOTHING = PositionCounts(np.zeros(0), np.zeros(0))


class PositionCounter:
    """Counts as the records of a run pass by."""

    def __init__(self) -> None:
        self.by_step: dict[int, PositionCounts] = {}  # RL step -> counts; none where nothing was drafted
        self._step_of: dict[str, int] = {}

    def take(self, record: Record) -> None:
        """Count a record; a decision interval before the first rollout of its worker counts to step -1."""
        event = record.body
        if isinstance(event, RolloutBegan):
            self._step_of[record.owner] = event.step
        if isinstance(event, DecisionEnded) and event.draft_config.depth:
            step, depth = self._step_of.get(record.owner, -1), event.draft_config.depth
            accepted = _padded(np.asarray(event.accepted_by_position[:depth], np.float64), depth)
            interval = PositionCounts(accepted, np.full(depth, float(event.request_steps)))
            self.by_step[step] = self.by_step.get(step, NOTHING) + interval

    def table(self) -> pd.DataFrame:
        """Return POSITION_COLUMNS, in order of step and position."""
        rows = [
            (step, position, drafted, accepted)
            for step, counts in sorted(self.by_step.items())
            for position, (drafted, accepted) in enumerate(
                zip(counts.engine_steps.tolist(), counts.accepted.tolist(), strict=True)
            )
        ]
        return pd.DataFrame(rows, columns=list(POSITION_COLUMNS)).astype(POSITION_COLUMNS)


def position_counts(records: Iterable[Record]) -> dict[int, PositionCounts]:
    """Return the counts of each rollout, by RL step; a rollout without drafts has none."""
    counter = PositionCounter()
    for record in records:
        counter.take(record)
    return counter.by_step


def _padded(values: Floats, length: int) -> Floats:
    return np.pad(values, (0, length - len(values)))
