"""One engine of the simulator in exact mode: every engine step is drawn and timed on its own.

This is the oracle for the jumping mode, and the mode to use when single engine steps matter.
"""

from __future__ import annotations

import numpy as np

from tlt.sim.model.engines.engine import DecisionInterval, Engine, Running
from tlt.traces.common.arrays import Floats, Ints
from tltsched.commands import SetDraftConfig
from tltsched.events import DraftsByRequest


class ExactEngine(Engine):
    """Advances engine step by engine step until the decision interval ends."""

    def run(self, draft: SetDraftConfig, watch: bool = False) -> Running:
        """Carry out one decision interval; yields the seconds of each engine step.

        With `watch` it yields 0 for what is done already.
        """
        pool, costs = self.pool, self.costs.of(draft.draft_config)
        self.draft_config = draft.draft_config
        start_s = 0.0
        finished: list[Ints] = [pool.retire()]  # prefill emits one token, which may have been the last
        finish_s: list[Floats] = [np.zeros(len(finished[0]))]
        accepted = np.zeros(draft.draft_config.depth, np.int64)
        tells = self.tells_requests and draft.draft_config.depth
        self._drawn_steps = np.zeros((2, len(pool.requests.ids)), np.int64) if tells else None
        engine_steps = request_steps = 0
        crowded = self.halted = False
        if watch and len(finished[0]):
            yield self._tell(finished[0], 0.0)
        while not self._is_over(draft, engine_steps, bool(len(finished[-1]))):
            context = int(pool.context().sum())
            crowded = context > pool.crowded_above_tokens() and len(pool.running) > 1
            if crowded:
                break
            batch = len(pool.running)
            seconds = float(costs.fixed_s[batch] + costs.context_s_per_token * context)
            accepted += self._engine_step(draft.draft_config)
            engine_steps, request_steps, start_s = engine_steps + 1, request_steps + batch, start_s + seconds
            finished.append(pool.retire())
            finish_s.append(np.full(len(finished[-1]), start_s))
            cut_s = yield self._tell(finished[-1], seconds)
            if cut_s is not None:
                yield max(seconds - cut_s, 0.0)
                break
        if crowded:
            pool.preempt()
        self.decision_interval = DecisionInterval(
            draft_config=draft.draft_config,
            engine_steps=engine_steps,
            request_steps=request_steps,
            decode_s=start_s,
            accepted_by_position=tuple(accepted.tolist()) if request_steps else (),
            finished=np.concatenate(finished),
            finish_s=np.concatenate(finish_s),
            context_tokens=int(pool.context().sum()),
            by_request=self._by_request(),
        )
        self._drawn_steps = None  # nobody is told of what is decoded beside a prefill

    def _by_request(self) -> DraftsByRequest:
        """Return what each request that drafted in the interval got accepted."""
        if self._drawn_steps is None:
            return ()
        ran = np.flatnonzero(self._drawn_steps[0])
        ids = self.pool.requests.ids[ran]
        return tuple(zip(ids.tolist(), *self._drawn_steps[:, ran].tolist(), strict=True))

    def _tell(self, finished: Ints, seconds: float) -> float:
        """Note who finishes in the stretch that takes `seconds`."""
        self.just_finished, self.held_tokens = finished, int(self.pool.context().sum())
        return seconds

    def _is_over(self, draft: SetDraftConfig, engine_steps: int, just_finished: bool) -> bool:
        """Return whether the decision interval has ended; a finish ends it if somebody waits for the room."""
        if self.halted or len(self.pool.running) < max(draft.min_requests, 1):
            return True
        if self.pool.waiting and just_finished:
            return True
        return draft.max_engine_steps is not None and engine_steps >= draft.max_engine_steps
