"""The clock of one policy: it runs during the policy's own steps alone, so policies may take turns."""

from __future__ import annotations

from time import perf_counter


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
