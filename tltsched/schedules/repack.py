"""Repacking of tails, after Laminar (arXiv 2510.12633): few requests on many workers move onto few workers.

When a worker has few requests left, they go to the busy worker that has the most and still holds both, by
number and by KV cache: best fit. A freed worker can train the drafter. Modelled: the trigger is a finish,
KV use is what the workers last reported, moved requests are prefilled again unless `transfer`. Laminar
repacks so that freed workers can take new weights at once; here the step stays synchronous, so a move alone
never shortens it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from tltsched.commands import Assign, Withdraw
from tltsched.errors import InputError
from tltsched.schedules.base import Moves, Schedule, ScheduleConfig
from tltsched.schedules.cluster_view import ClusterView, assigns


class RepackConfig(ScheduleConfig, tag="repack", frozen=True):
    """Consolidate the tails of workers until each of the others has up to `batch` requests."""

    watches: ClassVar[bool] = True
    withdraws: ClassVar[bool] = True
    sessions: ClassVar[bool] = False

    batch: Annotated[int, Meta(description="requests that a worker may have after a move")] = 8
    kv_share: Annotated[float, Meta(description="share of the KV cache that may be in use after a move")] = (
        0.9
    )
    transfer: Annotated[
        bool, Meta(description="whether KV caches move with the requests, at no cost; false: prefill again")
    ] = False

    def __post_init__(self) -> None:
        if self.batch < 2:
            raise InputError("batch", self.batch, "2 or more", "two requests are the least to pack")
        if not 0.0 < self.kv_share <= 1.0:
            raise InputError("kv_share", self.kv_share, "above 0, at most 1", "give a share")

    @property
    def moves_caches(self) -> bool:
        """As set."""
        return self.transfer

    def build(self, cluster_view: ClusterView) -> Schedule:
        """Return the schedule."""
        return Repack(cluster_view, self)


class Repack(Schedule):
    """One worker is emptied at a time."""

    def __init__(self, cluster_view: ClusterView, config: RepackConfig) -> None:
        super().__init__(cluster_view)
        self._config = config
        self._source: int | None = None

    def finished(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Empty the worker with the fewest requests, if somebody can take them."""
        del worker, requests
        if self._source is not None:
            return ()
        busy = {worker: placed for worker, placed in self.cluster_view.placed.items() if placed}
        source = min(busy, key=lambda worker: (len(busy[worker]), worker), default=None)
        if source is None or self._target(source, len(busy[source])) is None:
            return ()
        self._source = source
        return (Withdraw(source, tuple(busy[source])),)

    def returned(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Put what was taken off onto the best fit of now; back if there is none any more."""
        self._source = None
        if not requests:
            return ()
        target = self._target(worker, len(requests))
        if target is None:
            target = worker
        return (Assign(target, requests, kv_kept=self._config.transfer),)

    def orphaned(self, requests: tuple[int, ...]) -> Moves:
        """A worker that is lost while it is emptied answers no more."""
        if self._source not in self.cluster_view.placed:
            self._source = None
        return assigns(self.cluster_view.deal(requests))

    def _target(self, source: int, count: int) -> int | None:
        """Return the fullest busy worker that can take so many requests of `source`, if there is one."""
        cluster_view, limit = self.cluster_view, self.cluster_view.capacity.kv_tokens * self._config.kv_share
        moved = cluster_view.context_tokens.get(source, 0)
        fitting = [
            (len(placed), -worker)
            for worker, placed in cluster_view.placed.items()
            if worker != source
            and placed
            and not cluster_view.trains(worker)
            and len(placed) + count <= self._config.batch
            and (not limit or cluster_view.context_tokens.get(worker, 0) + moved <= limit)
        ]
        return -max(fitting)[1] if fitting else None
