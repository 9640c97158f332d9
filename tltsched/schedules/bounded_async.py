"""Bounded asynchronous rollouts, after AReaL (arXiv 2505.24298); ROLL Flash and verl's fully_async are alike.

Rollout workers never stop and other GPUs train. A step begins when the weights of the last one are out; its
batch is the first groups that are complete. Fresh groups are admitted while, if trained in the order of
admission, none would be staler than `staleness` policy updates: (staleness + 1) times the groups of a step
are under way at the start of each. With `sync_every` the batch is trained on in so many parts, as verl's
trigger_parameter_sync_step has it: a step is one part, it begins when the groups of the one before are
trained on, weights go out after the last part, and groups are admitted then. A weight update interrupts what
is being generated: contexts are prefilled again under the new weights, and the response goes on (tokens of
several versions). Modelled: weights are sent to all workers at once; a response's staleness counts from the
weights that began it, and since groups overtake one another it may exceed the bound. Not modelled: dropping
of stale responses, GPUs that change sides.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from tltsched.commands import TrainOn
from tltsched.errors import InputError
from tltsched.events import StepBegan
from tltsched.schedules.base import Moves, OnPolicy, Schedule, ScheduleConfig
from tltsched.schedules.cluster_view import ClusterView, assigns
from tltsched.schedules.groups import Groups


class BoundedAsyncConfig(ScheduleConfig, tag="bounded_async", frozen=True):
    """Rollouts that go on while the policy is trained on `trainer_share` of the GPUs."""

    keeps_order: ClassVar[bool] = False
    on_policy: ClassVar[OnPolicy] = "no"
    watches: ClassVar[bool] = True
    overlaps: ClassVar[bool] = True

    staleness: Annotated[
        float, Meta(description="policy updates by which responses may lag, in the order of admission; eta")
    ] = 1.0
    trainer_share: Annotated[
        float, Meta(description="share of the workers that train the policy instead of generating")
    ] = 0.25

    sync_every: Annotated[
        int, Meta(description="steps, parts of a batch, from one weight update of the rollouts to the next")
    ] = 1

    def __post_init__(self) -> None:
        if not 1 <= self.sync_every <= 1024:
            raise InputError("sync_every", self.sync_every, "1 to 1,024 steps", "1 updates after each step")
        if not 0.0 <= self.staleness <= 64.0:
            raise InputError("staleness", self.staleness, "0 to 64", "0 waits for each update")
        if not 0.0 < self.trainer_share < 1.0:
            raise InputError("trainer_share", self.trainer_share, "above 0, below 1", "give a share")

    def trainers(self, workers: int) -> int:
        """Return how many of `workers` train; at least one does and at least one generates.

        Raises InputError if there are too few.
        """
        if workers < 2:
            raise InputError("workers", workers, "2 or more", "one to generate and one to train")
        return min(max(1, round(self.trainer_share * workers)), workers - 1)

    def build(self, cluster_view: ClusterView) -> Schedule:
        """Return the schedule."""
        return BoundedAsync(cluster_view, self)


class BoundedAsync(Schedule):
    """Groups alive at the start of a step are under way, or complete and not yet trained on."""

    def __init__(self, cluster_view: ClusterView, config: BoundedAsyncConfig) -> None:
        super().__init__(cluster_view)
        self._config = config
        self._groups = Groups()
        self._goal = 0
        self._steps = 0  # that have ended

    def fresh_groups(self, groups: int) -> int:
        """Return how many groups the bound admits now: those of all parts until the next weight update."""
        if not self.syncs():
            return 0
        admitted = math.floor((self._config.staleness + 1.0) * groups * self._config.sync_every)
        return max(0, admitted - len(self._groups.members))

    def syncs(self) -> bool:
        """Return whether all parts of a batch are trained on."""
        return self._steps % self._config.sync_every == 0

    def refuses(self, event: StepBegan) -> str:
        """A step waits for as many groups as it trains on: there must be so many."""
        alive = self._groups.members.keys() | {request.group for request in event.requests}
        if 1 <= event.groups <= len(alive):
            return ""
        return f"would wait for ever for {event.groups} groups of {len(alive)}"

    def begin(self, event: StepBegan) -> Moves:
        """Deal the fresh requests out to the workers with the fewest."""
        self._goal = event.groups
        self._groups.add(event.requests)
        return assigns(self.cluster_view.deal(request.id for request in event.requests))

    def finished(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Count."""
        del worker
        self._groups.finish(requests)
        return ()

    def over(self) -> bool:
        """Return whether a batch is complete."""
        return len(self._groups.complete) >= self._goal

    def end(self) -> Moves:
        """Train on the groups that were complete first."""
        self._steps += 1
        chosen = list(self._groups.complete)[: self._goal]
        trained = [request for group in chosen for request in self._groups.batch(group)]
        for group in chosen:
            self._groups.forget(group)
        return (TrainOn(tuple(trained)),)
