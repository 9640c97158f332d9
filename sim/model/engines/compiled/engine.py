"""The engine of jump mode over compiled code. Moments of all requests are worked out once a rollout."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.draft_counts import Pieces
from tlt.sim.model.engines.compiled import interval
from tlt.sim.model.engines.compiled.numbers import address_of
from tlt.sim.model.engines.compiled.plan import plan
from tlt.sim.model.engines.decode_closed_form import START, Segments, Stages, State, Trajectory
from tlt.sim.model.engines.engine import DecisionInterval, Running
from tlt.sim.model.engines.jump_engine import JumpEngine
from tlt.sim.model.engines.running_batch import RequestPool
from tlt.sim.model.engines.stages import pieces_of
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import from_tokens
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import DraftConfig


class Moments(NamedTuple):
    """Of requests, [requests, bins]; survival has one more axis, [..., depth]."""

    mean: Floats
    variance: Floats
    cube: Floats  # mean ** 3
    survival: Floats


_NONE = np.empty(0, np.int64)


class CompiledJumpEngine(JumpEngine):
    """JumpEngine, with every draw and sum in compiled code."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance, rng: np.random.Generator) -> None:
        super().__init__(costs, acceptance, rng)
        self._state_address = address_of(rng)
        self._edges: Ints = from_tokens(np.arange(1, acceptance.bins)).astype(np.int64)
        self._known: dict[DraftConfig, tuple[Ints, Moments]] = {}  # row of each request (-1: none)

    def submit(self, pool: RequestPool, drafter_exponent: float) -> None:
        """Take the requests of a rollout."""
        super().submit(pool, drafter_exponent)
        self._known.clear()

    def _plan(self, draft_config: DraftConfig) -> Trajectory:
        pool, costs = self.pool, self.costs.of(draft_config)
        requests, running = pool.requests, pool.running
        rows, (mean, variance, cube, survival) = self._moments(draft_config)
        order, self._rows, until, rate, span, variance, finish, whole, real, held, finish_s = plan(
            self._state_address, running, rows, pool.emitted, requests.length, requests.prompt_tokens,
            mean.shape[1], self._edges, mean, variance, cube, survival, costs.fixed_s,
            costs.context_s_per_token,
        )  # fmt: skip
        self._stages = Stages(until, rate, variance)
        self.draft_config, self._order, self._position, self._state = draft_config, order, 0, START
        self._drafts: Pieces | None = None
        if self.counts is not None and draft_config.depth:
            ids = requests.ids[order]
            self._drafts = pieces_of(draft_config, ids, pool.emitted[order], span, self._stages)
        self._arrays = whole, real, held, finish
        self._trajectory = Trajectory(
            _segments(whole, real, held, finish, finish_s), costs.context_s_per_token
        )
        return self._trajectory

    def run(self, draft: SetDraftConfig, watch: bool = False) -> Running:
        """Advance to the end of the decision interval; without `watch` it is one call of compiled code."""
        if watch:
            yield from super().run(draft, watch)
            return
        if draft.draft_config != self.draft_config:
            self._settle()
        trajectory = self._trajectory or self._plan(draft.draft_config)
        before, start, most = self._state, self._position, draft.max_engine_steps
        end, crowded, reached, left, drawn = interval.interval(
            self._state_address, *self._arrays, start, before, draft.min_requests,
            -1 if most is None else most, bool(self.pool.waiting), self.pool.crowded_above_tokens(),
            trajectory.peak_tokens, trajectory.request_steps, trajectory.kv_s,
        )  # fmt: skip
        after = State(*reached)
        yield after.seconds - before.seconds
        if after.finished == len(self._order):
            self._count(after.finished)
        self._position, self._state = end, after
        accepted = tuple(drawn.tolist())
        finish_s = trajectory.finish_s[before.finished : after.finished]
        self.decision_interval = DecisionInterval(
            self.draft_config,
            end - start,
            after.request_steps - before.request_steps,
            after.seconds - before.seconds,
            accepted,
            self._retire(before, after),
            finish_s - before.seconds if len(finish_s) else finish_s,
            round(after.context_tokens),
            self._by_request(start, end, before.finished, sum(accepted), left),
        )
        if crowded:
            self._make_room()

    def _moments(self, draft_config: DraftConfig) -> tuple[Ints, Moments]:
        """Return where the moments of each running request are, [batch], and these; worked out once."""
        exponents, running = self.pool.requests.exponent, self.pool.running
        row_of, known = self._known.get(draft_config, (_NONE, None))
        if len(row_of) < len(exponents):
            row_of = np.concatenate([row_of, np.full(len(exponents) - len(row_of), -1)])
        new = running[row_of[running] < 0]
        if known is None or len(new):
            fresh = self._fresh(draft_config, exponents[new])
            row_of[new] = np.arange(len(new)) + (0 if known is None else len(known[0]))
            known = fresh if known is None else Moments(*map(np.concatenate, zip(known, fresh, strict=True)))
        self._known[draft_config] = row_of, known
        return row_of[running], known

    def _fresh(self, draft_config: DraftConfig, exponents: Floats) -> Moments:
        if draft_config.depth:
            new = self.acceptance.moments(draft_config, exponents, self.drafter_exponent)
            found = (new.mean_tokens, new.variance, new.mean_tokens**3, new.survival)
            return Moments(*map(np.ascontiguousarray, found))
        ones = np.ones((len(exponents), 1))
        return Moments(ones, np.zeros_like(ones), ones, np.empty((*ones.shape, 0)))

    def _gained(self, done: int, position: int, remaining: Ints) -> Ints:
        until, rate, variance = self._stages
        survival = self._known[self.draft_config][1].survival
        return np.asarray(
            interval.gained(
                self._state_address, until, rate, variance, survival, self._rows[done:], remaining, done,
                position, self.draft_config.depth,
            ),
            np.int64,
        )  # fmt: skip

    def _by_position(
        self, held: Floats, running: int, request_steps: int, emitted: float, left: float
    ) -> tuple[int, ...]:
        drawn = interval.accepted(self._state_address, held, running, request_steps, emitted, left)
        return tuple(drawn.tolist())

    def _shares(self, start: int, end: int, finished: int, accepted: int, left: float) -> tuple[Ints, Ints]:
        until, rate, variance = self._stages
        steps, whole = interval.by_request(
            self._state_address, until, rate, variance, finished, start, end, accepted, left,
            self.draft_config.depth,
        )  # fmt: skip
        return steps, whole


def _segments(whole: Ints, real: Floats, survival: Floats, finish: Ints, finish_s: Floats) -> Segments:
    step, start, running, request_steps = whole
    growth, context, engine_step_s, seconds, emitted = real
    return Segments(
        step, start, running, request_steps, growth, context, engine_step_s, seconds, emitted, survival,
        finish, finish_s,
    )  # fmt: skip
