"""The closed form of a batch that decodes under one arm until all of its requests are done.

Between two finishes the batch is constant, and a cycle costs F(batch) + kv x (sum of contexts), where every
running request adds its tokens per cycle to the context. So the time of each finish follows from prefix sums,
and the state at any cycle in between from one evaluation. No cost grows with tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tlt.sim.steptimes.law import Floats

Ints = npt.NDArray[np.int64]


class State(NamedTuple):
    """How far a trajectory has come."""

    finished: int
    seconds: float
    request_cycles: int
    emitted_tokens: float
    context_tokens: float  # of those still running


START = State(0, 0.0, 0, 0.0, 0.0)


class Trajectory:
    """Requests in order of their finish; all arrays have one entry a request, [n].

    `finish_cycle` counts engine cycles from the start of the trajectory. `finish_s` counts seconds.
    """

    def __init__(
        self, finish_cycle: Ints, context_tokens: Floats, tokens_per_cycle: Floats,
        fixed_s: Floats, context_s_per_token: float,
    ) -> None:  # fmt: skip
        """Build from values sorted by `finish_cycle`; `fixed_s[b]` is F at batch b."""
        n = len(finish_cycle)
        self.finish_cycle = finish_cycle
        self.context = context_tokens[::-1].cumsum()[::-1]  # of those still running in segment k
        self.growth = tokens_per_cycle[::-1].cumsum()[::-1]  # their tokens per cycle
        self.kv_s = context_s_per_token
        self.running = np.arange(n, 0, -1)
        self.cycle_s = fixed_s[n:0:-1] + context_s_per_token * self.context  # at cycle 0 of the trajectory
        self.start_cycle = np.empty(n, np.int64)
        self.start_cycle[0] = 0
        self.start_cycle[1:] = finish_cycle[:-1]
        lengths = finish_cycle - self.start_cycle
        # sum of the cycle numbers j in [start, finish): each adds kv x growth x j seconds
        cycle_sums = (finish_cycle + self.start_cycle - 1) * lengths * 0.5
        self.finish_s = (lengths * self.cycle_s + context_s_per_token * self.growth * cycle_sums).cumsum()
        self.request_cycles = (lengths * self.running).cumsum()
        self.emitted = (lengths * self.growth).cumsum()
        self.peak_tokens = float((self.context + self.growth * finish_cycle).max())

    def finished(self, cycle: int) -> int:
        """Return how many requests are done after `cycle` cycles."""
        return int(self.finish_cycle.searchsorted(cycle, side="right"))

    def at(self, cycle: int, done: int) -> State:
        """Return the state after `cycle` cycles, of which `done` = finished(cycle) is known already."""
        seconds = float(self.finish_s[done - 1]) if done else 0.0
        requests = int(self.request_cycles[done - 1]) if done else 0
        emitted = float(self.emitted[done - 1]) if done else 0.0
        if done == len(self.finish_cycle):
            return State(done, seconds, requests, emitted, 0.0)
        start = int(self.start_cycle[done])
        cycles = cycle - start
        growth = float(self.growth[done])
        seconds += (
            cycles * float(self.cycle_s[done]) + self.kv_s * growth * (cycle + start - 1) * cycles * 0.5
        )
        requests += cycles * int(self.running[done])
        context = float(self.context[done]) + growth * cycle
        return State(done, seconds, requests, emitted + cycles * growth, context)

    def cycle_ending(self, seconds: float, after: int, until: int) -> int:
        """Return the first cycle in [after, until] that ends at `seconds` or later, up to rounding."""
        low, high = after, until
        while low < high:
            cycle = (low + high) // 2
            if self.at(cycle, self.finished(cycle)).seconds >= seconds * (1.0 - 1e-12):
                high = cycle
            else:
                low = cycle + 1
        return low

    def cycle_below(self, min_requests: int) -> int:
        """Return the cycle after which fewer than `min_requests` are running."""
        return int(self.finish_cycle[len(self.finish_cycle) - max(min_requests, 1)])

    def cycle_of_context(self, limit_tokens: float) -> int | None:
        """Return the last cycle at which the running contexts fit; None: they always do."""
        if self.peak_tokens <= limit_tokens:
            return None
        segment = int((self.context + self.growth * self.finish_cycle > limit_tokens).argmax())
        cycle = int((limit_tokens - self.context[segment]) / self.growth[segment])
        return max(cycle, int(self.start_cycle[segment]))
