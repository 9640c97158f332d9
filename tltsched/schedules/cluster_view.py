"""What a schedule sees: which requests are alive, where they are, how far they have come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable
from heapq import heapify, heapreplace

import msgspec

from tltsched.commands import Assign, Withdraw
from tltsched.dispatch import DISPATCH
from tltsched.events import Request
from tltsched.sessions.away import Away
from tltsched.sessions.routing import STICKY, Load, Router, RoutingConfig, Turn


class Capacity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one worker holds at most; 0: no limit that the scheduler knows of."""

    max_running: int = 0  # requests
    kv_tokens: float = 0.0  # contexts of all that it runs


UNLIMITED = Capacity()


class ClusterView:
    """Requests and workers as the events tell. The ClusterScheduler keeps it; schedules read it.

    A request is alive from the StepBegan that brings it until it is trained on or dropped. While alive it is
    placed on one worker, or away at its tool, or finished, or waiting for a worker.
    """

    def __init__(
        self,
        workers: int,
        dispatch: str,
        capacity: Capacity,
        trains: Callable[[int], bool],
        routing: RoutingConfig = STICKY,
    ) -> None:
        """`trains(worker)` says whether a worker is in drafter training, or just leaving it."""
        self.capacity = capacity
        self.trains = trains
        self.requests: dict[int, Request] = {}
        self.generated: dict[int, int] = {}  # tokens that each request alive had at the last report
        self.turn_began: dict[int, int] = {}  # of a session behind its first turn: tokens generated before it
        self.observed: dict[int, int] = {}  # tokens that its tools have returned
        self.away = Away()
        self.finished: dict[int, None] = {}  # alive and done, in the order of their reports
        self.unscored: dict[int, None] = {}  # of these, whose rewards are to come
        # Of each living worker: the requests on it, in order (a dict as an ordered set).
        self.placed: dict[int, dict[int, None]] = {worker: {} for worker in range(workers)}
        self._worker_of: dict[int, int] = {}  # of each request that is placed
        self.leaving: dict[int, None] = {}  # requests that a worker was told to let go of
        self.context_tokens: dict[int, int] = {}  # of a worker, at its last report
        self._dispatch = DISPATCH[dispatch]
        self._router = Router(routing, capacity.kv_tokens)

    def add(self, requests: Iterable[Request]) -> None:
        """Take in fresh requests."""
        for request in requests:
            self.requests[request.id] = request
            self.generated[request.id] = 0

    def forget(self, requests: Collection[int]) -> None:
        """Let go of requests that are trained on or dropped, each named once."""
        if len(requests) == len(self.requests) and not self.turn_began:  # as at the end of most steps
            for one_by_request in (self.requests, self.generated, self.finished):
                one_by_request.clear()
            return
        for request in requests:
            del self.requests[request], self.generated[request]
            self.finished.pop(request, None)
            if self.turn_began:
                self._leave_session(request)

    def place(self, worker: int, requests: Iterable[int]) -> None:
        """Put requests on a worker, behind those that it has."""
        requests = dict.fromkeys(requests)
        self.placed[worker].update(requests)
        self._worker_of.update(dict.fromkeys(requests, worker))

    def take_off(self, worker: int, requests: Iterable[int]) -> None:
        """Take requests off the worker that they are placed on."""
        placed, worker_of, leaving = self.placed[worker], self._worker_of, self.leaving
        for request in requests:
            del placed[request], worker_of[request]
            if leaving:
                leaving.pop(request, None)

    def finish(self, requests: Iterable[int], unscored: bool) -> None:
        """Note that requests are done; `unscored`: their rewards will be told."""
        requests = dict.fromkeys(requests)
        self.finished.update(requests)
        if unscored:
            self.unscored.update(requests)

    def score(self, requests: Iterable[int]) -> None:
        """Note that the rewards of requests are known."""
        for request in requests:
            del self.unscored[request]

    def lose(self, worker: int) -> None:
        """Take a worker out that died; what it had starts anew, sessions with their turn."""
        orphans = tuple(self.placed[worker])
        self.take_off(worker, orphans)
        self.generated.update((orphan, self.turn_began.get(orphan, 0)) for orphan in orphans)
        del self.placed[worker]
        self._router.lose(worker)

    def restart(self, requests: Iterable[int]) -> None:
        """Put requests back to their prompts."""
        for request in requests:
            self.generated[request] = 0
            self.finished.pop(request, None)
            self._leave_session(request)

    def _leave_session(self, request: int) -> None:
        """Forget the turns of a request, if it had any."""
        if self.turn_began.pop(request, None) is None:
            return
        self.observed.pop(request, None)
        self._router.forget(request)
        if request in self.away:
            self.away.back(request)

    def leave_for_tool(self, worker: int, request: int, generated_tokens: int, recalled: bool) -> None:
        """Note that a turn has ended; `recalled`: the worker was to let go of it."""
        self.generated[request] = self.turn_began[request] = generated_tokens
        self.away.leave(worker, request)
        self._router.ran(worker, request, self.context(request))
        if recalled:
            self.away.recall((request,))

    def return_from_tool(self, request: int, observed_tokens: int) -> tuple[int, bool]:
        """Note that a tool has returned; says where its session ran last, and whether it was waited for."""
        self.observed[request] = self.observed.get(request, 0) + observed_tokens
        return self.away.back(request)

    def context(self, request: int) -> int:
        """Return the tokens that a request's context had at the last report."""
        prompt = self.requests[request].prompt_tokens
        return prompt + self.generated[request] + self.observed.get(request, 0)

    def route(self, turns: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
        """Place the next turns of sessions, (request, worker of its last turn) each, by the routing rule."""
        loads = {
            worker: Load(len(placed), self.trains(worker), worker) for worker, placed in self.placed.items()
        }
        routed: dict[int, list[int]] = {}
        for request, last_worker in turns:
            worker = self._router.choose(Turn(request, self.context(request), last_worker), loads)
            loads[worker] = loads[worker]._replace(requests=loads[worker].requests + 1)
            routed.setdefault(worker, []).append(request)
        return routed

    def flush(self) -> None:
        """Note that the caches of all workers are lost."""
        self._router.flush()

    @property
    def busy(self) -> bool:
        """Whether a request is on a worker, or is waited for while it is at its tool."""
        return bool(self._worker_of) or self.away.waited_for

    def idle(self, worker: int) -> bool:
        """Return whether a worker has nothing, and no session of its own will come back from its tool."""
        return not self.placed[worker] and not self.away.expected(worker)

    @property
    def under_way(self) -> int:
        """Requests that are on workers, or at their tools."""
        return len(self._worker_of) + len(self.away.last_worker)

    def spread(self, requests: tuple[Request, ...]) -> dict[int, list[int]]:
        """Place requests on the living workers by the dispatch rule; workers that get none are left out."""
        placement = self._dispatch(requests, len(self.placed))
        return {
            worker: [request.id for request in chosen]
            for worker, chosen in zip(self.placed, placement, strict=True)
            if chosen
        }

    def deal(self, requests: Iterable[int], spared: Container[int] = ()) -> dict[int, list[int]]:
        """Deal requests out to the workers with the fewest, and rather not to one that trains.

        Those of `spared` get none, unless no other lives.
        """
        chosen = [worker for worker in self.placed if worker not in spared] or list(self.placed)
        loads = [(len(self.placed[worker]), self.trains(worker), worker) for worker in chosen]
        heapify(loads)
        dealt: dict[int, list[int]] = {}
        for request in requests:
            load, trains, worker = loads[0]
            heapreplace(loads, (load + 1, trains, worker))
            dealt.setdefault(worker, []).append(request)
        return dealt

    def withdraw(self, requests: Iterable[int]) -> tuple[Withdraw, ...]:
        """Return the commands that take requests off their workers, where that was not ordered already.

        Those that are away at their tools are recalled: nothing is done with them when they return.
        """
        requests = tuple(requests)
        self.away.recall(requests)
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
        return self.withdraw((*self._worker_of, *self.away.last_worker))


def assigns(placement: dict[int, list[int]]) -> tuple[Assign, ...]:
    """Return the commands of a placement, lowest worker first."""
    return tuple(Assign(worker, tuple(requests)) for worker, requests in sorted(placement.items()))
