"""Longest first with known lengths: what a synchronous schedule could do if it could see the future.

The LPT rule (Graham, 1969): the longest request goes to the worker with the fewest tokens so far. It is a
schedule that nobody can run, and no bound: it scatters the samples of a prompt over workers, each of which
prefills it, so that schedules which keep them together can be faster. sim.advise.bounds has the bound of all.
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
