"""Longest first with known lengths: what a synchronous schedule could do if it could see the future.

The LPT rule (Graham, 1969): the longest request goes to the worker with the fewest tokens so far. It is a
bound for placement, not a schedule that anybody can run; sim.advise.bounds has the lower bound of any
schedule.
"""

from __future__ import annotations

from typing import ClassVar

from tltsched.dispatch import longest_first
from tltsched.events import StepBegan
from tltsched.schedules.base import Moves, Schedule, ScheduleConfig
from tltsched.schedules.cluster_view import ClusterView, assigns


class LongestFirstConfig(ScheduleConfig, tag="longest_first", frozen=True):
    """Clairvoyant: requests carry their lengths. It has no settings; `cluster.dispatch` is not used."""

    knows_lengths: ClassVar[bool] = True

    def build(self, cluster_view: ClusterView) -> Schedule:
        """Return the schedule."""
        return LongestFirst(cluster_view)


class LongestFirst(Schedule):
    """The LPT placement."""

    def begin(self, event: StepBegan) -> Moves:
        """Place every request, the longest first, where the fewest tokens are."""
        living = tuple(self.cluster_view.placed)
        placement = longest_first(event.requests, len(living))
        return assigns(
            {
                worker: [request.id for request in chosen]
                for worker, chosen in zip(living, placement, strict=True)
                if chosen
            }
        )
