"""Synchronous rollouts, as verl's default trainer has them: the step waits for its longest response."""

from __future__ import annotations

from tltsched.schedules.base import Schedule, ScheduleConfig
from tltsched.schedules.cluster_view import ClusterView


class SynchronousConfig(ScheduleConfig, tag="synchronous", frozen=True):
    """All requests are placed when the step begins, by `cluster.dispatch`. It has no settings."""

    def build(self, cluster_view: ClusterView) -> Schedule:
        """Return the schedule."""
        return Schedule(cluster_view)
