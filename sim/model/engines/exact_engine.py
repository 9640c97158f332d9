"""One engine of the simulator in exact mode: every engine step is drawn and timed on its own.

This is the oracle for the jumping mode, and the mode to use when single engine steps matter.
"""

from __future__ import annotations

import numpy as np

from tlt.sim.model.draft_counts import Pieces
from tlt.sim.model.engines.engine import DecisionInterval, Engine, Running
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import bins
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import DraftConfig
from tltsched.events import DraftsByRequest


class ExactEngine(Engine):
    """Advances engine step by engine step until the decision interval ends."""

    _told: Ints | None  # engine steps and accepted drafts of each request in this interval, [2, n], if wanted

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
        self._told = np.zeros((2, len(pool.requests.ids)), np.int64) if tells else None
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

    def _by_request(self) -> DraftsByRequest:
        """Return what each request that drafted in the interval got accepted."""
        if self._told is None:
            return ()
        ran = np.flatnonzero(self._told[0])
        ids = self.pool.requests.ids[ran]
        return tuple(zip(ids.tolist(), *self._told[:, ran].tolist(), strict=True))

    def _decode_once(self) -> tuple[Ints, tuple[int, ...]]:
        """Decode one engine step."""
        self._told = None  # nobody is told of it
        accepted = tuple(self._engine_step(self.draft_config).tolist())
        return self.pool.retire(), accepted

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

    def _engine_step(self, draft_config: DraftConfig) -> Ints:
        """Emit the tokens of one engine step; returns accepted drafts by position, [depth]."""
        pool = self.pool
        tokens = np.ones(len(pool.running), np.int64)
        by_position = np.zeros(draft_config.depth, np.int64)
        if draft_config.depth:
            exponents = pool.requests.exponent
            here = bins(pool.emitted[pool.running]).clip(max=exponents.shape[1] - 1)
            exponent = exponents[pool.running, here] * self.drafter_exponent
            draws = self.rng.random(len(tokens)) ** (1.0 / exponent)
            # u < s_j ** e  <=>  u ** (1 / e) < s_j, and survivals never rise with the position
            accepted = (draws[:, None] < self.acceptance.base(draft_config)[None, :]).sum(axis=1)
            if self._told is not None:
                self._told[0, pool.running] += 1
                self._told[1, pool.running] += accepted
            by_position = (accepted[:, None] > np.arange(draft_config.depth)[None, :]).sum(axis=0)
            tokens += accepted
        before = pool.emitted[pool.running]
        after = np.minimum(before + tokens, pool.requests.length[pool.running])
        pool.emitted[pool.running] = after
        if self.counts is not None and draft_config.depth:
            ids, once = pool.requests.ids[pool.running], np.ones((len(tokens), 1), np.int64)
            gained = (after - before)[:, None]
            self.counts.add(Pieces(draft_config, ids, before[:, None], gained, tokens[:, None], once))
        return by_position
