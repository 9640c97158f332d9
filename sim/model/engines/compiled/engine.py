"""The engine of jump mode over compiled code. Moments of a request are worked out once a rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.draft_counts import Pieces
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
from tlt.sim.model.engines.engine import DecisionInterval, Running
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

_NONE_S = np.empty(0)
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

    @staticmethod
    def quicken(policy: Policy) -> None:
        """Have a policy work with compiled functions; to the last bit they do the same."""
        quicken(policy)

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
        if draft.draft_config != self.draft_config:
            self._settle()
        if self._trajectory is None:
            self._plan(draft.draft_config)
        pool, before, start, most = self.pool, self._state, self._position, draft.max_engine_steps
        position, ended, steps, crowded, context, *accepted = self._pass(
            draft.min_requests, UNLIMITED if most is None else most, bool(pool.waiting),
            pool.crowded_above_tokens(), self.tells_requests,
        )  # fmt: skip
        done, _, steps_before, _, _ = before
        decode_s = self._state.seconds - before.seconds
        if ended == len(self._order):
            self._count(ended)
        self.decision_interval = DecisionInterval(
            self.draft_config,
            position - start,
            steps - steps_before,
            decode_s,
            tuple(accepted) if steps > steps_before else (),
            self._order[done:ended],
            self._memory.finish_s[done:ended] - before.seconds if ended > done else _NONE_S,
            context,
            self._told(done) if self.tells_requests and accepted and position > start else (),
        )
        if crowded:
            self._make_room()
        return begun_s + decode_s

    def _pass(
        self, min_requests: int, most_steps: int, waits: bool, limit_tokens: float, tells: bool
    ) -> list[int]:
        """Go to the end of an interval; returns what it left, from POSITION on."""
        memory, pool, depth = self._memory, self.pool, self.draft_config.depth
        done, _, request_steps, emitted, _ = self._state
        interval(
            self._state_address, memory.ints, memory.floats, pool.running, pool.emitted, pool.requests.length,
            self._bins, depth, self._position, done, request_steps, emitted, min_requests, most_steps, waits,
            limit_tokens, tells,
        )  # fmt: skip
        left: list[int] = memory.left[: _WHOLE + depth].tolist()
        seconds, emitted, context, _ = memory.state.tolist()
        self._position, ended = left[0], left[1]
        self._state = State(ended, seconds, left[2], emitted, context)
        if ended > done:
            kept = len(self._order) - ended
            pool.go_on(pool.running[:kept], pool.running[kept:])
        return left

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
