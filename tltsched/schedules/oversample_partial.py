"""Over-sampling: more groups are begun than a step trains on, and the rest is stopped when enough are done.

APRIL (arXiv 2509.18521, in slime: --over-sampling-batch-size, --partial-rollout) keeps what the stopped ones
have generated and resumes them first in the next step, as Kimi k1.5 does with its partial rollouts; without
`partial` they are thrown away, the plain over-sampling whose cost others have reported. Modelled: groups are
trained in the order in which they are complete. A resumed response is prefilled again and carries tokens of
older weights; what is complete beyond the batch waits for the next step. Not modelled: Kimi's token budget.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from tltsched.commands import Assign, Drop, TrainOn
from tltsched.errors import InputError
from tltsched.events import StepBegan
from tltsched.schedules.base import Move, Moves, OnPolicy, Schedule, ScheduleConfig
from tltsched.schedules.cluster_view import ClusterView
from tltsched.schedules.groups import Groups


class OversamplePartialConfig(ScheduleConfig, tag="oversample_partial", frozen=True):
    """Begin `ratio` times the groups; carry what is not done over to the next step, or throw it away."""

    keeps_order: ClassVar[bool] = False
    watches: ClassVar[bool] = True
    withdraws: ClassVar[bool] = True

    ratio: Annotated[
        float, Meta(description="groups that are under way at the start of a step, over those it trains on")
    ] = 2.0
    partial: Annotated[
        bool, Meta(description="whether stopped responses go on in the next step; false: thrown away")
    ] = True

    def __post_init__(self) -> None:
        if not 1.0 <= self.ratio <= 64.0:
            raise InputError("ratio", self.ratio, "1 to 64", "give how many times the groups are begun")

    @property
    def on_policy(self) -> OnPolicy:  # type: ignore[override]
        """Resumed responses have tokens of several versions."""
        return "mixed" if self.partial else "yes"

    def build(self, cluster_view: ClusterView) -> Schedule:
        """Return the schedule."""
        return OversamplePartial(cluster_view, self)


class OversamplePartial(Schedule):
    """Groups that are alive between two steps are carried over."""

    def __init__(self, cluster_view: ClusterView, config: OversamplePartialConfig) -> None:
        super().__init__(cluster_view)
        self._config = config
        self._groups = Groups()
        self._goal = 0

    def fresh_groups(self, groups: int) -> int:
        """Return what is missing to `ratio` times the groups."""
        return max(0, math.ceil(self._config.ratio * groups) - len(self._groups.members))

    def begin(self, event: StepBegan) -> Moves:
        """Deal the carried requests out evenly, and the fresh ones behind them by the dispatch rule."""
        self._goal, self.closing = event.groups, False
        fresh = {request.id for request in event.requests}
        carried = [
            request for request in self.cluster_view.requests
            if request not in fresh and request not in self.cluster_view.finished
            and request not in self.cluster_view.away
        ]  # fmt: skip
        self._groups.add(event.requests)
        if self._is_enough():
            self.closing = True
            return self.cluster_view.withdraw_all()
        placement = self.cluster_view.deal(carried)
        for worker, requests in self.cluster_view.spread(event.requests).items():
            placement.setdefault(worker, []).extend(requests)
        return tuple(Assign(worker, tuple(requests)) for worker, requests in sorted(placement.items()))

    def finished(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Stop everybody once enough groups are complete."""
        del worker
        self._groups.finish(requests)
        if self.closing or not self._is_enough():
            return ()
        self.closing = True
        return self.cluster_view.withdraw_all()

    def orphaned(self, requests: tuple[int, ...]) -> Moves:
        """While the rollout is being stopped, the requests of a lost worker wait for the next step."""
        return () if self.closing else super().orphaned(requests)

    def _is_enough(self) -> bool:
        return len(self._groups.complete) >= self._goal > 0

    def end(self) -> Moves:
        """Train on the first groups that were complete; carry or drop the others."""
        chosen = list(self._groups.complete)[: self._goal or None]
        trained = [request for group in chosen for request in self._groups.batch(group)]
        for group in chosen:
            self._groups.forget(group)
        moves: list[Move] = [TrainOn(tuple(trained))]
        if not self._config.partial:
            dropped = [
                request for group in list(self._groups.members) for request in self._groups.forget(group)
            ]
            moves += [Drop(tuple(dropped))] if dropped else []
        return moves
