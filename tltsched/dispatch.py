"""Placement of a step's requests on workers when the step starts.

Each rule takes the requests in the order of the step and the number of workers, and returns one tuple of
requests a worker (possibly empty), in the order in which the worker is to take them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

from tltsched.events import Request

Placement = tuple[tuple[Request, ...], ...]
Rule = Callable[[Sequence[Request], int], Placement]


def contiguous(requests: Sequence[Request], workers: int) -> Placement:
    """Cut the step into consecutive chunks whose sizes differ by one at most; verl does this."""
    size, larger = divmod(len(requests), workers)
    edges = [worker * size + min(worker, larger) for worker in range(workers + 1)]
    return tuple(tuple(requests[edges[worker] : edges[worker + 1]]) for worker in range(workers))


def round_robin(requests: Sequence[Request], workers: int) -> Placement:
    """Deal the requests out one by one, so that the samples of a group spread over workers."""
    return tuple(tuple(requests[worker::workers]) for worker in range(workers))


def longest_first(requests: Sequence[Request], workers: int) -> Placement:
    """Give the longest request left to the worker with the fewest tokens so far (the LPT rule).

    It knows the lengths in advance, which nobody does. Ties go by request id, by number of requests, and by
    worker.
    """
    placed: list[list[Request]] = [[] for _ in range(workers)]
    loads = [(0, 0, worker) for worker in range(workers)]
    heapify(loads)
    for request in sorted(requests, key=lambda request: (-request.length_hint_tokens, request.id)):
        tokens, count, worker = loads[0]
        placed[worker].append(request)
        heapreplace(loads, (tokens + request.length_hint_tokens, count + 1, worker))
    return tuple(tuple(chosen) for chosen in placed)


DISPATCH: dict[str, Rule] = {
    "contiguous": contiguous,
    "round_robin": round_robin,
    "longest_first": longest_first,
}
