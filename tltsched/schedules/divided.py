"""Divided rollout with length-aware order, after Seer (arXiv 2511.14617).

Groups are split into requests and requests into chunks. A central queue gives a request to the worker with
the fewest whenever one has room; at the end of its chunk the request comes back and may go on elsewhere,
its KV cache coming from a global pool. The first sample of each group is a probe and goes before all
others; its length (or what it has so far) estimates the group's, and longest groups go first. Modelled: the
pool moves caches at no cost; a request is given room for its context and its next chunk, so no cache
overflows; a group without an estimate counts as longest. Not modelled: Seer's grouped speculation (that is
a drafter, not a schedule).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Annotated, ClassVar

from msgspec import Meta

from tltsched.commands import Assign
from tltsched.errors import InputError
from tltsched.events import StepBegan
from tltsched.schedules.base import Moves, Schedule, ScheduleConfig
from tltsched.schedules.cluster_view import ClusterView


class DividedConfig(ScheduleConfig, tag="divided", frozen=True):
    """Chunks of requests from a central queue, the longest groups first."""

    watches: ClassVar[bool] = True
    withdraws: ClassVar[bool] = True
    sessions: ClassVar[bool] = False

    chunk_tokens: Annotated[int, Meta(description="tokens after which a request may move")] = 2048
    slots: Annotated[int, Meta(description="requests on a worker; 0: as many as its engine runs")] = 0
    kv_share: Annotated[float, Meta(description="share of the KV cache that is given out")] = 0.95

    def __post_init__(self) -> None:
        for field, low in (("chunk_tokens", 1), ("slots", 0)):
            if getattr(self, field) < low:
                raise InputError(field, getattr(self, field), f"{low} or more", "give a larger number")
        if not 0.0 < self.kv_share <= 1.0:
            raise InputError("kv_share", self.kv_share, "above 0, at most 1", "give a share")

    @property
    def moves_caches(self) -> bool:
        """From a global pool."""
        return True

    def build(self, cluster_view: ClusterView) -> Schedule:
        """Return the schedule."""
        return Divided(cluster_view, self)


class Divided(Schedule):
    """The queue is a heap of (not a probe, -estimate, id); entries with an old estimate are pushed anew."""

    def __init__(self, cluster_view: ClusterView, config: DividedConfig) -> None:
        super().__init__(cluster_view)
        self._config = config
        self.chunk_tokens = config.chunk_tokens
        self._slots = config.slots or cluster_view.capacity.max_running
        self._queue: list[tuple[bool, float, int]] = []
        self._probes: dict[int, int] = {}  # group -> its probe
        self._estimate: dict[int, float] = {}  # group -> tokens of its longest sample that is done
        self._reserved: dict[int, float] = {}  # KV tokens given out, by worker
        self._room: dict[int, float] = {}  # the same by request

    def begin(self, event: StepBegan) -> Moves:
        """Queue everything and fill the workers."""
        self._queue, self._probes, self._estimate = [], {}, {}
        self._reserved = dict.fromkeys(self.cluster_view.placed, 0.0)
        self._room = {}
        for request in event.requests:
            self._probes.setdefault(request.group, request.id)
        for request in event.requests:
            self._push(request.id)
        return self._fill()

    def finished(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Learn from lengths, and fill the slots that are free now."""
        for request in requests:
            self._free(worker, request)
            group = self.cluster_view.requests[request].group
            # The last chunk is not reported: what was known before it, and half of it.
            tokens = self.cluster_view.generated[request] + self._config.chunk_tokens / 2
            if tokens > self._estimate.get(group, 0.0):
                self._estimate[group] = tokens
        return self._fill()

    def returned(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Requests at the end of a chunk queue again."""
        for request in requests:
            self._free(worker, request)
            self._push(request)
        return self._fill()

    def orphaned(self, requests: tuple[int, ...]) -> Moves:
        """Requests of a lost worker queue again."""
        self._reserved = {worker: self._reserved.get(worker, 0.0) for worker in self.cluster_view.placed}
        for request in requests:
            self._room.pop(request, None)
            self._push(request)
        return self._fill()

    def over(self) -> bool:
        """Return whether nobody generates and nothing waits."""
        return not self._queue and not self.cluster_view.busy

    def _key(self, request: int) -> tuple[bool, float, int]:
        group = self.cluster_view.requests[request].group
        length = max(self._estimate.get(group, float("inf")), self.cluster_view.generated[request])
        return (self._probes[group] != request, -length, request)

    def _push(self, request: int) -> None:
        heappush(self._queue, self._key(request))

    def _free(self, worker: int, request: int) -> None:
        self._reserved[worker] -= self._room.pop(request)

    def _fill(self) -> Moves:
        """Give the head of the queue to the worker with the fewest, while anybody has room."""
        if not self._queue:
            return ()
        view = self.cluster_view
        # (requests, trains, worker), those without a free slot left out: the heap's head is next.
        loads = [
            (len(placed), view.trains(worker), worker)
            for worker, placed in view.placed.items()
            if self._has_slot(len(placed))
        ]
        heapify(loads)
        chosen: dict[int, list[int]] = {}
        while self._queue:
            queued = heappop(self._queue)
            request = queued[2]
            now = self._key(request)
            if now != queued and self._queue and now > self._queue[0]:
                heappush(self._queue, now)
                continue
            worker = self._worker(loads, request)
            if worker is None:
                heappush(self._queue, now)
                break
            chosen.setdefault(worker, []).append(request)
        return tuple(
            Assign(worker, tuple(requests), self._config.chunk_tokens, kv_kept=True)
            for worker, requests in sorted(chosen.items())
        )

    def _has_slot(self, load: int) -> bool:
        """Return whether a worker with so many requests may have one more; one without any always may."""
        return not load or not self._slots or load < self._slots

    def _worker(self, loads: list[tuple[int, bool, int]], request: int) -> int | None:
        """Return the worker with the fewest requests that has room for this one, the room taken; or None.

        A worker that has nothing takes a request in any case.
        """
        view = self.cluster_view
        room = float(
            view.requests[request].prompt_tokens + view.generated[request] + self._config.chunk_tokens
        )
        limit = view.capacity.kv_tokens * self._config.kv_share
        passed = []
        taken = None
        while loads and taken is None:
            load, trains, worker = heappop(loads)
            if load and limit and self._reserved[worker] + room > limit:
                passed.append((load, trains, worker))
                continue
            taken = worker
            self._reserved[worker] += room
            self._room[request] = room
            if self._has_slot(load + 1):
                passed.append((load + 1, trains, worker))
        for each in passed:
            heappush(loads, each)
        return taken
