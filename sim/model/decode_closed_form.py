"""The closed form of a batch that decodes under one draft configuration until all of its requests are done.

Between two finishes the batch is constant, and an engine step costs F(batch) + kv x (sum of contexts), where
every running request adds its tokens per engine step to the context. So the time of each finish follows from
prefix sums, and the state at any engine step in between from one evaluation. No cost grows with tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tlt.traces.common.arrays import Floats, Ints


class State(NamedTuple):
    """How far a trajectory has come."""

    finished: int
    seconds: float
    request_steps: int
    emitted_tokens: float
    context_tokens: float  # of those still running


START = State(0, 0.0, 0, 0.0, 0.0)


class Trajectory:
    """Requests in order of their finish; all arrays have one entry a request, [n].

    `finish_engine_step` counts engine steps from the start of the trajectory. `finish_s` counts seconds.
    """

    def __init__(
        self, finish_engine_step: Ints, context_tokens: Floats, tokens_per_engine_step: Floats,
        fixed_s: Floats, context_s_per_token: float,
    ) -> None:  # fmt: skip
        """Build from values sorted by `finish_engine_step`; `fixed_s[b]` is F at batch b."""
        n = len(finish_engine_step)
        self.finish_engine_step = finish_engine_step
        self.rate = tokens_per_engine_step
        self.context = context_tokens[::-1].cumsum()[::-1]  # of those still running in segment k
        self.growth = tokens_per_engine_step[::-1].cumsum()[::-1]  # their tokens per engine step
        self.kv_s = context_s_per_token
        self.running = np.arange(n, 0, -1)
        self.engine_step_s = (
            fixed_s[n:0:-1] + context_s_per_token * self.context
        )  # at engine step 0 of the trajectory
        self.start_engine_step = np.empty(n, np.int64)
        self.start_engine_step[0] = 0
        self.start_engine_step[1:] = finish_engine_step[:-1]
        lengths = finish_engine_step - self.start_engine_step
        # sum of the engine step numbers j in [start, finish): each adds kv x growth x j seconds
        engine_step_sums = (finish_engine_step + self.start_engine_step - 1) * lengths * 0.5
        self.finish_s = (
            lengths * self.engine_step_s + context_s_per_token * self.growth * engine_step_sums
        ).cumsum()
        self.request_steps = (lengths * self.running).cumsum()
        self.emitted = (lengths * self.growth).cumsum()
        self.peak_tokens = float((self.context + self.growth * finish_engine_step).max())

    def finished(self, engine_step: int) -> int:
        """Return how many requests are done after `engine_step` engine steps."""
        return int(self.finish_engine_step.searchsorted(engine_step, side="right"))

    def at(self, engine_step: int, done: int) -> State:
        """Return the state after `engine_step` engine steps; `done` = finished(engine_step), as known."""
        seconds = float(self.finish_s[done - 1]) if done else 0.0
        requests = int(self.request_steps[done - 1]) if done else 0
        emitted = float(self.emitted[done - 1]) if done else 0.0
        if done == len(self.finish_engine_step):
            return State(done, seconds, requests, emitted, 0.0)
        start = int(self.start_engine_step[done])
        engine_steps = engine_step - start
        growth = float(self.growth[done])
        seconds += (
            engine_steps * float(self.engine_step_s[done])
            + self.kv_s * growth * (engine_step + start - 1) * engine_steps * 0.5
        )
        requests += engine_steps * int(self.running[done])
        context = float(self.context[done]) + growth * engine_step
        return State(done, seconds, requests, emitted + engine_steps * growth, context)

    def engine_step_ending(self, seconds: float, after: int, until: int) -> int:
        """Return the first engine step in [after, until] that ends at `seconds` or later, up to rounding."""
        low, high = after, until
        while low < high:
            engine_step = (low + high) // 2
            if self.at(engine_step, self.finished(engine_step)).seconds >= seconds * (1.0 - 1e-12):
                high = engine_step
            else:
                low = engine_step + 1
        return low

    def engine_step_below(self, min_requests: int) -> int:
        """Return the engine step after which fewer than `min_requests` are running."""
        return int(self.finish_engine_step[len(self.finish_engine_step) - max(min_requests, 1)])

    def engine_step_of_context(self, limit_tokens: float) -> int | None:
        """Return the last engine step at which the running contexts fit; None: they always do."""
        if self.peak_tokens <= limit_tokens:
            return None
        segment = int((self.context + self.growth * self.finish_engine_step > limit_tokens).argmax())
        engine_step = int((limit_tokens - self.context[segment]) / self.growth[segment])
        return max(engine_step, int(self.start_engine_step[segment]))
