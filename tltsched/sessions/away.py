"""Sessions that are at their tools, and on no worker."""

from __future__ import annotations

from collections.abc import Iterable


class Away:
    """Sessions whose tool has not returned: where they ran last, and whether anybody waits for them.

    One that is recalled was wanted back by its schedule, which ends the rollout or has enough of its group:
    its tool runs on, but the rollout does not wait for it and its next turn is not begun.
    """

    def __init__(self) -> None:
        self.last_worker: dict[int, int] = {}  # of each session that is away
        self._recalled: dict[int, None] = {}
        self._expected: dict[int, int] = {}  # of a worker: sessions away that ran there and are not recalled

    def __contains__(self, request: int) -> bool:
        return request in self.last_worker

    def leave(self, worker: int, request: int) -> None:
        """A session has gone to its tool."""
        self.last_worker[request] = worker
        self._count(worker, 1)

    def back(self, request: int) -> tuple[int, bool]:
        """A session is not away any more; returns where it ran last, and whether it was waited for."""
        worker, waited = self.last_worker.pop(request), request not in self._recalled
        if waited:
            self._count(worker, -1)
        self._recalled.pop(request, None)
        return worker, waited

    def recall(self, requests: Iterable[int]) -> None:
        """Nobody waits for these sessions, where they are away, until `welcome`."""
        for request in requests:
            if request in self.last_worker and request not in self._recalled:
                self._recalled[request] = None
                self._count(self.last_worker[request], -1)

    def welcome(self) -> None:
        """A new rollout waits for whoever is away."""
        for request in self._recalled:
            self._count(self.last_worker[request], 1)
        self._recalled.clear()

    def expected(self, worker: int) -> bool:
        """Return whether a session that ran on a worker is waited for."""
        return bool(self._expected.get(worker))

    @property
    def waited_for(self) -> bool:
        """Whether the rollout waits for a session's tool."""
        return len(self.last_worker) > len(self._recalled)

    def _count(self, worker: int, change: int) -> None:
        self._expected[worker] = self._expected.get(worker, 0) + change
