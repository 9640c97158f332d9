"""Tail batching, after RollPacker (arXiv 2509.21009): long responses are put off and batched together.

A short round begins more prompts and more samples a prompt than the step trains on, keeps the first prompts
whose samples are done, and stops the rest: their prompts go to a long queue. When the queue holds the prompts
of a step, a long round generates them from the start, without over-submission. Every token that is trained on
comes from the current weights; only the order of the prompts changes. Modelled: a prompt in the queue starts
from scratch, its spare samples are given up, and a kept prompt's spare samples are stopped at once. Not
modelled: elastic tensor parallelism, reward scheduling, stream training.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from tltsched.commands import Drop, Restart, TrainOn
from tltsched.errors import InputError
from tltsched.events import StepBegan
from tltsched.schedules.base import Move, Moves, Schedule, ScheduleConfig
from tltsched.schedules.cluster_view import ClusterView, assigns
from tltsched.schedules.groups import Groups


class TailBatchingConfig(ScheduleConfig, tag="tail_batching", frozen=True):
    """Short rounds that over-submit, and long rounds of what they put off."""

    keeps_order: ClassVar[bool] = False
    watches: ClassVar[bool] = True
    withdraws: ClassVar[bool] = True

    prompt_ratio: Annotated[float, Meta(description="prompts of a short round, over those it trains on")] = (
        1.25
    )
    sample_ratio: Annotated[
        float, Meta(description="samples of a prompt in a short round, over those it trains on")
    ] = 1.25

    def __post_init__(self) -> None:
        for field in ("prompt_ratio", "sample_ratio"):
            if not 1.0 <= getattr(self, field) <= 64.0:
                raise InputError(field, getattr(self, field), "1 to 64", "1 submits no more than needed")

    def build(self, cluster_view: ClusterView) -> Schedule:
        """Return the schedule."""
        return TailBatching(cluster_view, self)


class TailBatching(Schedule):
    """Groups that are alive between two steps are the long queue, oldest first."""

    def __init__(self, cluster_view: ClusterView, config: TailBatchingConfig) -> None:
        super().__init__(cluster_view)
        self._config = config
        self._groups = Groups()
        self._queue: list[int] = []
        self._goal = self._samples = 0

    def fresh_groups(self, groups: int) -> int:
        """Return the prompts of a short round; a long round takes none."""
        return 0 if len(self._queue) >= groups else math.ceil(self._config.prompt_ratio * groups)

    def samples(self, samples: int) -> int:
        """Return the samples of a prompt in a short round."""
        return math.ceil(self._config.sample_ratio * samples)

    def begin(self, event: StepBegan) -> Moves:
        """Begin a short round of fresh prompts, or without any a long round of the oldest in the queue."""
        self._goal, self._samples, self.closing = event.groups, event.samples, False
        if event.requests:
            self._groups.add(event.requests, event.samples)
            return assigns(self.cluster_view.spread(event.requests))
        chosen, self._queue = self._queue[: self._goal], self._queue[self._goal :]
        requests = tuple(
            self.cluster_view.requests[request] for group in chosen for request in self._groups.members[group]
        )
        return assigns(self.cluster_view.spread(requests))

    def finished(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Stop the spare samples of a prompt that is complete, and everybody once enough prompts are."""
        del worker
        completed = self._groups.finish(requests)
        if self.closing:
            return ()
        if len(self._groups.complete) >= self._goal > 0:
            self.closing = True
            return self.cluster_view.withdraw_all()
        return self.cluster_view.withdraw(
            request for group in completed for request in self._groups.rest(group)
        )

    def orphaned(self, requests: tuple[int, ...]) -> Moves:
        """What is not needed any more is not generated elsewhere."""
        if self.closing:
            return ()
        needed = [
            request for request in requests
            if self.cluster_view.requests[request].group not in self._groups.complete
        ]  # fmt: skip
        return assigns(self.cluster_view.deal(needed))

    def end(self) -> Moves:
        """Train on the first prompts that were complete; the others join the queue, from scratch."""
        chosen = list(self._groups.complete)[: self._goal or None]
        trained, dropped = [], []
        for group in chosen:
            trained += self._groups.batch(group)
            dropped += self._groups.rest(group)
            self._groups.forget(group)
        queued = set(self._queue)
        later = [group for group in self._groups.members if group not in queued]
        for group in later:
            dropped += self._groups.restart(group, self._samples)
        again = [request for group in later for request in self._groups.members[group]]
        self._queue += later
        moves: list[Move] = [TrainOn(tuple(trained))]
        moves += [Drop(tuple(dropped))] if dropped else []
        moves += [Restart(tuple(again))] if again else []
        return moves
