"""An engine of the simulator: what both modes share, and what they say of an interval and of a prefill."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.draft_counts import Pieces, WorkerCounts
from tlt.sim.model.engines.running_batch import RequestPool
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import bins
from tltsched.commands import ResumeCost, SetDraftConfig
from tltsched.draft_config import OFF, DraftConfig
from tltsched.events import DecisionEnded, DraftsByRequest
from tltsched.policies.base import Policy

# Yields the seconds of a stretch; takes None, or how many of them had passed when the decision interval was
# cut.
Running = Generator[float, float | None, None]


class DecisionInterval(msgspec.Struct, frozen=True):
    """What one decision interval did. finish_s: seconds from its start to each finish, [finished].

    `by_request` as in DecisionEnded, only if the scheduler wants it.
    """

    draft_config: DraftConfig
    engine_steps: int
    request_steps: int
    decode_s: float
    accepted_by_position: tuple[int, ...]
    finished: Ints  # indices into the submission
    finish_s: Floats
    context_tokens: int
    by_request: DraftsByRequest = ()

    def ended(self, t_s: float, worker: int, finished: tuple[int, ...], left: int) -> DecisionEnded:
        """Return the event that it has ended, with the ids of who finished and how many requests are left."""
        return DecisionEnded(
            t_s,
            worker,
            self.draft_config,
            self.engine_steps,
            self.request_steps,
            self.decode_s,
            self.accepted_by_position,
            finished,
            left,
            self.context_tokens,
            self.by_request,
        )


class PrefillStep(msgspec.Struct, frozen=True):
    """An engine step that prefilled, and what was decoded beside it.

    `again` is the share of its prompt tokens that had been computed before.
    """

    seconds: float
    again: float
    finished: Ints  # indices into the submission
    request_steps: int  # 0: nothing was decoded
    accepted_by_position: tuple[int, ...]


class Stretch(NamedTuple):
    """Decision intervals in a row that nobody is told of, all of them with drafts or all without."""

    switch_s: float  # that drafting cost before the first of them
    draft_config: DraftConfig  # of the last one
    batch: int  # requests as the first of them began
    intervals: int
    request_steps: int  # with drafts
    accepted_tokens: int
    finished: Ints  # indices into the submission, [finished]
    finish_s: Floats  # seconds of the run, [finished]
    ended_s: float


class Engine:
    """What both modes share: the pool, the costs, the acceptance process."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance, rng: np.random.Generator) -> None:
        self.costs = costs
        self.acceptance = acceptance
        self.rng = rng
        self.drafter_exponent = 1.0
        self.counts: WorkerCounts | None = None  # of this engine's requests; None: nobody wants them
        self.tells_requests = False  # whether the scheduler wants drafts by request
        # Engine steps and accepted drafts of each request in this interval, [2, n], as far as drawn by step.
        self._drawn_steps: Ints | None = None
        self.draft_config = OFF  # of the decision interval that was run last
        self.pool: RequestPool
        self.decision_interval: DecisionInterval
        # Of the stretch that was yielded last: who finishes at its end, and the contexts of the others then.
        self.just_finished: Ints = np.empty(0, np.int64)
        self.held_tokens = 0
        self.halted = False  # set during a decision interval: no further stretch is to begin

    def quicken(self, policy: Policy) -> None:
        """Have the policy that this engine is to serve work with compiled functions, where there are any."""
        del policy

    def take_turns(self, other: Engine) -> None:
        """Use the working memory of another engine, made of the same; never are both within a rollout."""
        del other

    def submit(self, pool: RequestPool, drafter_exponent: float) -> None:
        """Take the requests of a rollout; the drafter serves with this exponent until the next one."""
        self.pool = pool
        self.drafter_exponent = drafter_exponent
        self.draft_config = OFF

    def admit(self) -> int:
        """Admit what fits, and return how many that are; see RequestPool.admit."""
        return self.pool.admit()

    def prefill_step(self) -> PrefillStep:
        """Run one engine step that prefills, with as many tokens as it has room for.

        The batch decodes on beside it, under the draft configuration that it had, if the engine mixes: before
        the first decision of a rollout none, as on a live engine.
        """
        pool, costs = self.pool, self.costs
        if costs.mixes and len(pool.running) > 1 and self._held() > pool.crowded_above_tokens():
            self._fix()
            pool.preempt()
        batch = len(pool.running)
        chunk = pool.prefill(costs.room_tokens(self.draft_config, batch))
        decodes = costs.mixes and batch > 0
        held = self._held() if decodes else 0.0
        seconds = costs.mixed_s(self.draft_config, batch, held, chunk.tokens, chunk.pairs)
        decoded, accepted = self._decode_once() if decodes else (pool.running[:0], ())
        finished = decoded
        if len(chunk.done):
            self._fix()
            pool.join(chunk.done)
            finished = np.concatenate([decoded, pool.retire()])
        return PrefillStep(seconds, chunk.again, finished, batch * decodes, accepted)

    def _held(self) -> float:
        """Return the context tokens of the batch as of now; those of jump mode are a mean."""
        return float(self.pool.context().sum())

    def _fix(self) -> None:
        """Make the pool say what each running request has emitted: before the batch changes."""

    def _decode_once(self) -> tuple[Ints, tuple[int, ...]]:
        """Decode one engine step under `draft_config`, drawn request by request.

        Returns who has finished, [finished], and accepted drafts by position, [depth].
        """
        self._fix()
        accepted = tuple(self._engine_step(self.draft_config).tolist())
        return self.pool.retire(), accepted

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
            survival = self.acceptance.base(draft_config)
            accepted = draft_config.depth - survival[::-1].searchsorted(draws, side="right")
            if self._drawn_steps is not None:
                self._drawn_steps[0, pool.running] += 1
                self._drawn_steps[1, pool.running] += accepted
            by_position = np.bincount(accepted, minlength=draft_config.depth + 1)[:0:-1].cumsum()[::-1]
            tokens += accepted
        before = pool.emitted[pool.running]
        after = np.minimum(before + tokens, pool.requests.length[pool.running])
        pool.emitted[pool.running] = after
        if pool.last_tokens is not None:
            pool.last_tokens[pool.running] = after - before
        if self.counts is not None and draft_config.depth:
            ids, once = pool.requests.ids[pool.running], np.ones((len(tokens), 1), np.int64)
            gained = (after - before)[:, None]
            self.counts.add(Pieces(draft_config, ids, before[:, None], gained, tokens[:, None], once))
        return by_position

    def context(self) -> Ints:
        """Return the context tokens of each running request as of now, [batch]."""
        return self.pool.context()

    def switch_s(self, resume_cost: ResumeCost) -> float:
        """Return the seconds that drafting costs before its first engine step."""
        context = self.context()
        return self.costs.switch_s(resume_cost, float(context.sum()), float(np.dot(context, context)))

    def decode_cause(self, draft_config: DraftConfig) -> str:
        """Return what the time of a decision interval is booked to."""
        if draft_config.depth:
            return "speculate"
        return "decode_off" if self.costs.when_off == "k0" else "decode"

    def reload(self, drafter_exponent: float, kv_kept: bool) -> None:
        """Take new weights between two decision intervals; the drafter serves them with this exponent.

        Unless caches are kept as they are, the running requests go back to the queue.
        """
        if drafter_exponent != self.drafter_exponent or not kv_kept:
            self._fix()
        if not kv_kept:
            self.pool.requeue()
        self.drafter_exponent = drafter_exponent

    def run(self, draft: SetDraftConfig, watch: bool = False) -> Running:
        """Carry out one decision interval: yields seconds that pass, and leaves the outcome in
        `self.decision_interval`.

        With `watch` a stretch ends at each finish (`just_finished`). A decision interval that is cut ends
        with the engine step in flight; the rest of that engine step is yielded once more.
        """
        raise NotImplementedError

    def at_once(self, draft: SetDraftConfig, begun_s: float) -> float:
        """Carry out a decision interval that nothing cuts, begun at `begun_s`; returns when it ended."""
        for seconds in self.run(draft):
            begun_s += seconds
        return begun_s

    def to_the_end(self, draft: SetDraftConfig, begun_s: float) -> Iterator[Stretch] | None:
        """Go on to the end of the rollout, the policy that was quickened being asked without a scheduler.

        None: not from here, or not this policy. A decision stands open from `begun_s` on.
        """
        del draft, begun_s
        return None

    def withdraw(self, ids: Ints) -> tuple[Ints, Ints]:
        """Take requests, [n], out between two decision intervals.

        Returns the ids of those that were there and their tokens so far, [m] each.
        """
        taken = self.pool.withdraw(ids)
        return self.pool.requests.ids[taken], self.pool.emitted[taken]
