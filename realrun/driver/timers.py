"""What the live driver waits for besides its workers: points of a policy's clock."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Due = Callable[[], None]


class Timers:
    """Calls in order of time, and of their setting where times are equal."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Due]] = []
        self._set = 0

    def at(self, t_s: float, call: Due) -> None:
        """Call at this time, or as soon after it as somebody looks."""
        heappush(self._heap, (t_s, self._set, call))
        self._set += 1

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds until the next call; None: there is none."""
        return max(0.0, self._heap[0][0] - now_s) if self._heap else None

    def run(self, now_s: float) -> None:
        """Make the calls that are due."""
        while self._heap and self._heap[0][0] <= now_s:
            heappop(self._heap)[2]()

    def clear(self) -> None:
        """Forget all calls."""
        self._heap.clear()
