"""Acceptance by position, counted from the records of a run.

Position j (from 0) of a chain is drafted in each engine step of a decision interval whose chain has more than
j drafts, so accepted[j] / engine steps[j] is P(accepted drafts > j) over the decision intervals that drafted
as many.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from tlt.traces.common.arrays import Floats
from tltsched.event_log import Record
from tltsched.events import DecisionEnded, RolloutBegan


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


def position_counts(records: Iterable[Record]) -> dict[int, PositionCounts]:
    """Return the counts of each rollout, by RL step; a rollout without drafts has none."""
    counts: dict[int, PositionCounts] = {}
    step_of: dict[str, int] = {}
    for record in records:
        event = record.body
        if isinstance(event, RolloutBegan):
            step_of[record.owner] = event.step
        if isinstance(event, DecisionEnded) and event.draft_config.depth and record.owner in step_of:
            step, depth = step_of[record.owner], event.draft_config.depth
            accepted = _padded(np.asarray(event.accepted_by_position[:depth], np.float64), depth)
            decision_interval = PositionCounts(accepted, np.full(depth, float(event.request_steps)))
            counts[step] = counts.get(step, NOTHING) + decision_interval
    return counts


def _padded(values: Floats, length: int) -> Floats:
    return np.pad(values, (0, length - len(values)))
