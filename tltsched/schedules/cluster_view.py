"""What a schedule sees: which requests are alive, where they are, how far they have come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heapreplace

import msgspec

from tltsched.commands import Assign, Withdraw
from tltsched.dispatch import DISPATCH
from tltsched.events import Request


class Capacity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one worker holds at most; 0: no limit that the scheduler knows of."""

    max_running: int = 0  # requests
    kv_tokens: float = 0.0  # contexts of all that it runs


UNLIMITED = Capacity()


class ClusterView:
    """Requests and workers as the events tell. The ClusterScheduler keeps it; schedules read it.

    A request is alive from the StepBegan that brings it until it is trained on or dropped. While alive it is
    placed on one worker, or finished, or waiting for a worker.
    """

    def __init__(
        self, workers: int, dispatch: str, capacity: Capacity, trains: Callable[[int], bool]
    ) -> None:
        """`trains(worker)` says whether a worker is in drafter training, or just leaving it."""
        self.capacity = capacity
        self.trains = trains
        self.requests: dict[int, Request] = {}
        self.generated: dict[int, int] = {}  # tokens that each request alive had at the last report
        self.finished: dict[int, None] = {}  # alive and done, in the order of their reports
        # Of each living worker: the requests on it, in order (a dict as an ordered set).
        self.placed: dict[int, dict[int, None]] = {worker: {} for worker in range(workers)}
        self._worker_of: dict[int, int] = {}  # of each request that is placed
        self.leaving: dict[int, None] = {}  # requests that a worker was told to let go of
        self.context_tokens: dict[int, int] = {}  # of a worker, at its last report
        self._dispatch = DISPATCH[dispatch]

    def add(self, requests: Iterable[Request]) -> None:
        """Take in fresh requests."""
        for request in requests:
            self.requests[request.id] = request
            self.generated[request.id] = 0

    def forget(self, requests: Iterable[int]) -> None:
        """Let go of requests that are trained on or dropped."""
        for request in requests:
            del self.requests[request], self.generated[request]
            self.finished.pop(request, None)

    def place(self, worker: int, requests: Iterable[int]) -> None:
        """Put requests on a worker, behind those that it has."""
        requests = dict.fromkeys(requests)
        self.placed[worker].update(requests)
        self._worker_of.update(dict.fromkeys(requests, worker))

    def take_off(self, worker: int, requests: Iterable[int]) -> None:
        """Take requests off the worker that they are placed on."""
        placed = self.placed[worker]
        for request in requests:
            del placed[request], self._worker_of[request]
            self.leaving.pop(request, None)

    def lose(self, worker: int) -> None:
        """Take a worker out that died; what it had is to be generated from the start."""
        orphans = tuple(self.placed[worker])
        self.take_off(worker, orphans)
        self.generated.update(dict.fromkeys(orphans, 0))
        del self.placed[worker]

    def restart(self, requests: Iterable[int]) -> None:
        """Put requests back to their prompts."""
        for request in requests:
            self.generated[request] = 0
            self.finished.pop(request, None)

    @property
    def busy(self) -> bool:
        """Whether a request is on a worker."""
        return bool(self._worker_of)

    def spread(self, requests: tuple[Request, ...]) -> dict[int, list[int]]:
        """Place requests on the living workers by the dispatch rule; workers that get none are left out."""
        placement = self._dispatch(requests, len(self.placed))
        return {
            worker: [request.id for request in chosen]
            for worker, chosen in zip(self.placed, placement, strict=True)
            if chosen
        }

    def deal(self, requests: Iterable[int]) -> dict[int, list[int]]:
        """Deal requests out to the workers with the fewest, and rather not to one that trains."""
        loads = [(len(placed), self.trains(worker), worker) for worker, placed in self.placed.items()]
        heapify(loads)
        dealt: dict[int, list[int]] = {}
        for request in requests:
            load, trains, worker = loads[0]
            heapreplace(loads, (load + 1, trains, worker))
            dealt.setdefault(worker, []).append(request)
        return dealt

    def withdraw(self, requests: Iterable[int]) -> tuple[Withdraw, ...]:
        """Return the commands that take requests off their workers, where that was not ordered already."""
        wanted: dict[int, set[int]] = {}
        for request in requests:
            if request in self._worker_of and request not in self.leaving:
                wanted.setdefault(self._worker_of[request], set()).add(request)
        return tuple(
            Withdraw(worker, tuple(each for each in self.placed[worker] if each in chosen))
            for worker, chosen in sorted(wanted.items())
        )

    def withdraw_all(self) -> tuple[Withdraw, ...]:
        """Return the commands that take every request off its worker."""
        return self.withdraw(self._worker_of)


def assigns(placement: dict[int, list[int]]) -> tuple[Assign, ...]:
    """Return the commands of a placement, lowest worker first."""
    return tuple(Assign(worker, tuple(requests)) for worker, requests in sorted(placement.items()))
