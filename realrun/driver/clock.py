"""The clock of one policy, which runs during the policy's own steps alone, and what is due on it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from time import perf_counter

Due = Callable[[], None]


class PolicyClock:
    """Seconds of one policy. At `origin_s` of the machine's clock it would have stood at 0."""

    def __init__(self, elapsed_s: float) -> None:
        self.now_s = elapsed_s  # as last read
        self.running = False
        self.origin_s = 0.0

    def start(self) -> None:
        """Go on from where it stands."""
        self.origin_s = perf_counter() - self.now_s
        self.running = True

    def read(self, reported_s: float = 0.0) -> float:
        """Return the time, never before what a worker reported; between two steps it stands still."""
        if self.running:
            self.now_s = max(perf_counter() - self.origin_s, reported_s, self.now_s)
        return self.now_s

    def stop(self) -> None:
        """Stand still at the time that was last read."""
        self.running = False


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
