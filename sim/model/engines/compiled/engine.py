"""The engine of jump mode over compiled code. Moments of a request are worked out once a rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.draft_counts import Pieces
from tlt.sim.model.engines.compiled.goodput import GoodputAhead, again, ahead_of
from tlt.sim.model.engines.compiled.interval import accepted as draw_accepted
from tlt.sim.model.engines.compiled.interval import by_request, interval, settle
from tlt.sim.model.engines.compiled.memory import (
    ACCEPTED,
    EVENTS,
    KV_S,
    POSITION,
    Memory,
    segments_of,
    span_of,
    stages_of,
)
from tlt.sim.model.engines.compiled.numbers import address_of
from tlt.sim.model.engines.compiled.plan import fill, plan
from tlt.sim.model.engines.compiled.policies import quicken
from tlt.sim.model.engines.decode_closed_form import START, Segments, Stages, State, Trajectory
from tlt.sim.model.engines.engine import DecisionInterval, Running, Told
from tlt.sim.model.engines.jump_engine import JumpEngine
from tlt.sim.model.engines.running_batch import RequestPool
from tlt.sim.model.engines.stages import pieces_of
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import from_tokens
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import DraftConfig
from tltsched.events import DraftsByRequest
from tltsched.policies.base import Policy
from tltsched.policies.estimators.histories import ROW

_NONE_S, _NOBODY = np.empty(0), np.empty(0, np.int64)
_WHOLE = ACCEPTED - POSITION  # numbers that an interval leaves before the drafts by position
UNLIMITED = -1  # engine steps


class Drafting(NamedTuple):
    """What a draft configuration needs: moments of requests in rows, and which rows are filled."""

    moments: Floats
    known: np.ndarray


class Late(Trajectory):
    """A trajectory that is laid out when something is asked of it: intervals are read by compiled code."""

    def __init__(self, make: Callable[[], Trajectory]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> object:
        vars(self).update(vars(self._make()))
        return vars(self)[name]


class CompiledJumpEngine(JumpEngine):
    """JumpEngine, with every draw and sum in compiled code."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance, rng: np.random.Generator) -> None:
        super().__init__(costs, acceptance, rng)
        self._state_address = address_of(rng)
        self._edges: Ints = from_tokens(np.arange(1, acceptance.bins)).astype(np.int64)
        self._memory = Memory(0, acceptance.bins, 0)
        self._drafting: dict[DraftConfig, Drafting] = {}
        self._bins = 1  # of the plan
        self._goodput: GoodputAhead | None = None  # the policy, if it is one of that kind

    def quicken(self, policy: Policy) -> None:
        """Have the policy work with compiled functions; to the last bit they do the same."""
        quicken(policy)
        self._goodput = ahead_of(policy)
        self.asks_seldom = self._goodput is not None

    def submit(self, pool: RequestPool, drafter_exponent: float) -> None:
        """Take the requests of a rollout."""
        super().submit(pool, drafter_exponent)
        self._forget()

    def reload(self, drafter_exponent: float, kv_kept: bool) -> None:
        """Take new weights; moments are of the drafter against those that it had."""
        super().reload(drafter_exponent, kv_kept)
        self._forget()

    def _forget(self) -> None:
        """Work out moments anew, of other requests or under another exponent of the drafter."""
        for drafting in self._drafting.values():
            drafting.known[:] = False

    def _plan(self, draft_config: DraftConfig) -> Trajectory:
        pool, costs, depth = self.pool, self.costs.of(draft_config), draft_config.depth
        requests, running = pool.requests, pool.running
        moments = self._moments(draft_config)
        memory = self._memory
        self._bins = memory.bins if depth else 1
        plan(
            self._state_address, memory.ints, memory.floats, moments, running, pool.emitted, requests.length,
            requests.prompt_tokens, self._edges, self._bins, depth, costs.fixed_s, costs.context_s_per_token,
        )  # fmt: skip
        self._order = memory.order[: len(running)]
        self.draft_config, self._position, self._state = draft_config, 0, START
        self._drafts: Pieces | None = None
        if self.counts is not None and depth:
            order, n = self._order, len(running)
            span = span_of(memory.ints, self._bins)[:n].copy()
            self._drafts = pieces_of(
                draft_config, requests.ids[order], pool.emitted[order], span, self._planned_stages()
            )
        self._trajectory = Late(self._laid_out)
        return self._trajectory

    def _planned_stages(self) -> Stages:
        until, rate, variance = stages_of(self._memory.ints, self._memory.floats, self._bins)
        return Stages(until, rate, variance).of(slice(len(self._order)))

    def _laid_out(self) -> Trajectory:
        """Return the trajectory that was planned, as views of the memory."""
        memory = self._memory
        whole, real, survival = segments_of(memory.ints, memory.floats, self.draft_config.depth)
        events, count = int(memory.ints[EVENTS]), len(self._order)
        (step, start, running, request_steps), survival = whole[:, :events], survival[:events]
        growth, context, engine_step_s, seconds, emitted = real[:, :events]
        finish = self._planned_stages().until[:, -1]
        segments = Segments(
            step, start, running, request_steps, growth, context, engine_step_s, seconds, emitted, survival,
            finish, memory.finish_s[:count],
        )  # fmt: skip
        return Trajectory(segments, float(memory.floats[KV_S]))

    def run(self, draft: SetDraftConfig, watch: bool = False) -> Running:
        """Advance to the end of the decision interval; without `watch` it is one call of compiled code."""
        if watch:
            yield from super().run(draft, watch)
        else:
            yield self.at_once(draft, 0.0)

    def at_once(self, draft: SetDraftConfig, begun_s: float) -> float:
        """Advance to the end of a decision interval begun at `begun_s`; returns the time then."""
        self._lay_out(draft.draft_config)
        memory, pool, (done, _, request_steps, emitted, _) = self._memory, self.pool, self._state
        most = UNLIMITED if draft.max_engine_steps is None else draft.max_engine_steps
        interval(
            self._state_address, memory.ints, memory.floats, pool.running, pool.emitted, pool.requests.length,
            self._bins, self.draft_config.depth, self._position, done, request_steps, emitted,
            draft.min_requests, most, bool(pool.waiting), pool.crowded_above_tokens(), self.tells_requests,
        )  # fmt: skip
        return begun_s + self._passed()

    def until_asked(self, draft: SetDraftConfig, begun_s: float) -> Told:
        """Advance through intervals after which the goodput policy goes on as before, and one more."""
        goodput, pool = self._goodput, self.pool
        if goodput is None or pool.waiting or draft.max_engine_steps is None:
            return super().until_asked(draft, begun_s)
        self._lay_out(draft.draft_config)
        if not goodput.takes(draft.draft_config):
            return super().until_asked(draft, begun_s)
        memory, order, depth = self._memory, self._order, self.draft_config.depth
        first = self._state.finished
        left = order[first:]
        stand, believed = goodput.stand(self._position, self._state, begun_s), goodput.believed()
        finish_s, known_after = np.empty(len(order)), np.empty(ROW * len(left))
        rows, known, tokens = _NOBODY, _NONE_S, _NONE_S
        if depth:
            rows, known = goodput.rows_of(tuple(pool.requests.ids[left].tolist()))
        else:
            tokens = goodput.tokens(len(left))
        again(
            self._state_address, memory.ints, memory.floats, pool.running, pool.emitted, pool.requests.length,
            self._bins, depth, draft.min_requests, draft.max_engine_steps, pool.limits.kv_tokens,
            pool.limits.held_beyond_tokens - pool.limits.most_emitted, goodput.rules, believed, stand,
            goodput.config(draft.draft_config), rows, known, tokens, finish_s, known_after,
        )  # fmt: skip
        intervals, told_steps, accepted, _, self._position, done, steps, start = stand.whole.tolist()
        begun_s, seconds, emitted, _, _ = stand.real.tolist()
        self._state = State(done, seconds, steps, emitted, self._state.context_tokens)
        if intervals and depth:
            goes_on = tuple(pool.requests.ids[order[done:]].tolist())
            goodput.told(draft.draft_config, believed, stand, goes_on, known_after[: ROW * len(goes_on)])
        elif intervals:
            goodput.told_off(self._position - start)
        return Told(
            intervals, told_steps, accepted, order[first:done], finish_s[first:done], begun_s,
            begun_s + self._passed(),
        )  # fmt: skip

    def _lay_out(self, draft_config: DraftConfig) -> None:
        """Plan, unless a plan under this draft configuration is on."""
        if draft_config != self.draft_config:
            self._settle()
        if self._trajectory is None:
            self._plan(draft_config)

    def _passed(self) -> float:
        """Take on what compiled code left of an interval; returns its seconds."""
        memory, pool, before, start = self._memory, self.pool, self._state, self._position
        position, ended, steps, crowded, context, *accepted = memory.left[
            : _WHOLE + self.draft_config.depth
        ].tolist()
        seconds, emitted, held_tokens, _ = memory.state.tolist()
        self._position, self._state = position, State(ended, seconds, steps, emitted, held_tokens)
        done = before.finished
        decode_s: float = seconds - before.seconds
        kept = len(self._order) - ended
        if kept < len(pool.running):
            pool.go_on(pool.running[:kept], pool.running[kept:])
        if not kept:
            self._count(ended)
        self.decision_interval = DecisionInterval(
            self.draft_config,
            position - start,
            steps - before.request_steps,
            decode_s,
            tuple(accepted) if steps > before.request_steps else (),
            self._order[done:ended],
            memory.finish_s[done:ended] - before.seconds if ended > done else _NONE_S,
            context,
            self._told(done) if self.tells_requests and accepted and position > start else (),
        )
        if crowded:
            self._make_room()
        return decode_s

    def _told(self, done: int) -> DraftsByRequest:
        """Return the drafts of each request that ran, from the `done`-th finish on."""
        ids = self.pool.requests.ids[self._order[done:]]
        engine_steps, accepted = self._memory.shares[:, : len(ids)].tolist()
        return tuple(zip(ids.tolist(), engine_steps, accepted, strict=True))

    def _settle(self) -> None:
        """Fix how many tokens the running requests have emitted, and drop the trajectory."""
        planned, self._trajectory = self._trajectory, None
        position, done = self._position, self._state.finished
        if planned is None or position == 0 or done == len(self._order):
            return
        pool, memory, draft_config = self.pool, self._memory, self.draft_config
        settle(
            self._state_address, memory.ints, memory.floats, self._drafting[draft_config].moments,
            pool.emitted, pool.requests.length, self._bins, draft_config.depth, done, position,
        )  # fmt: skip
        if self.counts is not None and self._drafts is not None:
            self._drafts.end_early(done, memory.shares[1, : len(self._order) - done].copy(), position)
            self.counts.add(self._drafts)

    def _moments(self, draft_config: DraftConfig) -> Floats:
        """Return moments in which those of the running requests are filled in."""
        pool, depth = self.pool, draft_config.depth
        if len(pool.emitted) > self._memory.requests or depth > self._memory.depth:
            requests = max(2 * self._memory.requests, len(pool.emitted))
            self._memory = Memory(requests, self.acceptance.bins, max(depth, self._memory.depth))
            self._drafting.clear()
        memory = self._memory
        if draft_config not in self._drafting:
            cells = memory.requests * memory.bins
            known = np.full(memory.requests, not depth)
            self._drafting[draft_config] = Drafting(np.zeros((3 + depth) * cells), known)
        moments, known = self._drafting[draft_config]
        if depth and not (has := known[pool.running]).all():
            rows = pool.running[~has]
            exponents = pool.requests.exponent[rows]
            survival = self.acceptance.survival(draft_config, exponents, self.drafter_exponent)
            fill(memory.ints, moments, rows, np.ascontiguousarray(survival))
            known[rows] = True
        return moments

    def _by_position(
        self, held: Floats, running: int, request_steps: int, emitted: float, left: float
    ) -> tuple[int, ...]:
        drawn = np.empty(len(held), np.int64)
        draw_accepted(self._state_address, held, running, request_steps, emitted, left, drawn)
        return tuple(drawn.tolist())

    def _shares(self, start: int, end: int, finished: int, accepted: int, left: float) -> tuple[Ints, Ints]:
        until, rate, variance = self._planned_stages()
        shares = np.empty((2, len(until) - finished), np.int64)
        by_request(
            self._state_address, until, rate, variance, finished, start, end, accepted, left,
            self.draft_config.depth, shares,
        )  # fmt: skip
        return shares[0], shares[1]
