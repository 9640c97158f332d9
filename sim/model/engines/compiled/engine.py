"""The engine of jump mode over compiled code. Survivals of a request are worked out once a rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.draft_counts import Pieces
from tlt.sim.model.engines.compiled.bandit import Bandit, bandit_of
from tlt.sim.model.engines.compiled.goodput import GoodputPilot, goodput_of
from tlt.sim.model.engines.compiled.interval import accepted as draw_accepted
from tlt.sim.model.engines.compiled.interval import by_request, interval, settle
from tlt.sim.model.engines.compiled.memory import (
    ACCEPTED,
    EVENTS,
    HELD,
    KV_S,
    Memory,
    segments_of,
    span_of,
    stages_of,
)
from tlt.sim.model.engines.compiled.memory import PLANNED as PLANS
from tlt.sim.model.engines.compiled.memory import POSITION as LEFT_BEHIND
from tlt.sim.model.engines.compiled.numbers import address_of
from tlt.sim.model.engines.compiled.plan import plan
from tlt.sim.model.engines.compiled.policies import quicken
from tlt.sim.model.engines.compiled.rollout import (
    BEGAN_POSITION,
    BEGAN_REQUEST_STEPS,
    BEGAN_SECONDS,
    CONFIG,
    DRAFTING,
    EMITTED,
    FINISHED,
    INTERVALS,
    LEAST,
    LEFT,
    MOST,
    NOW_S,
    PLANNED,
    POSITION,
    REAL,
    REQUEST_STEPS,
    SECONDS,
    UNLIMITED,
    WHOLE,
    Batch,
    Journey,
)
from tlt.sim.model.engines.compiled.work import Work
from tlt.sim.model.engines.decode_closed_form import START, Segments, Stages, State, Trajectory
from tlt.sim.model.engines.engine import DecisionInterval, Engine, Running, Stretch
from tlt.sim.model.engines.jump_engine import JumpEngine
from tlt.sim.model.engines.running_batch import RequestPool
from tlt.sim.model.engines.stages import pieces_of
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.common.arrays import Floats, Ints
from tltsched.commands import ResumeCost, SetDraftConfig
from tltsched.draft_config import DraftConfig
from tltsched.events import DraftsByRequest
from tltsched.policies.base import Policy, WhenOff

_NONE_S = np.empty(0)
_WHOLE = ACCEPTED - LEFT_BEHIND  # numbers that an interval leaves before the drafts by position


Pilot = Bandit | GoodputPilot


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
        self._work = Work(costs, acceptance)
        self._bins = 1  # of the plan
        self._pilot: Pilot | None = None  # the policy, if it is one that can go on in compiled code
        self._when_off: WhenOff = "not_configured"
        self._resume_cost: ResumeCost = "none"

    def quicken(self, policy: Policy) -> None:
        """Have the policy work with compiled functions; to the last bit they do the same."""
        quicken(policy)
        self._work.know_configs(policy.draft_configs)
        self._pilot = bandit_of(policy) or goodput_of(policy, self._work.places)
        self._when_off, self._resume_cost = policy.when_off, policy.resume_cost

    def take_turns(self, other: Engine) -> None:
        """Work where another engine does, which was made of the same, never both within a rollout."""
        assert isinstance(other, CompiledJumpEngine)
        self._work = other._work

    def submit(self, pool: RequestPool, drafter_exponent: float) -> None:
        """Take the requests of a rollout."""
        super().submit(pool, drafter_exponent)
        self._work.forget()

    def reload(self, drafter_exponent: float, kv_kept: bool) -> None:
        """Take new weights; survivals are of the drafter against those that it had."""
        super().reload(drafter_exponent, kv_kept)
        self._work.forget()

    @property
    def _memory(self) -> Memory:
        """The memory of the plan that is on."""
        return self._work.memory

    def _plan(self, draft_config: DraftConfig) -> Trajectory:
        pool, costs, depth = self.pool, self.costs.of(draft_config), draft_config.depth
        requests, running = pool.requests, pool.running
        work = self._work
        work.know_configs((draft_config,))
        work.fit(len(pool.emitted))
        if depth:
            work.fill(running, requests.exponent, self.drafter_exponent)
        memory, survival = work.memory, work.survival[work.places[draft_config]]
        self._bins = memory.bins if depth else 1
        plan(
            self._state_address, memory.ints, memory.floats, survival, running, pool.emitted, requests.length,
            requests.prompt_tokens, work.edges, self._bins, depth, costs.fixed_s, costs.context_s_per_token,
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

    def to_the_end(self, draft: SetDraftConfig, begun_s: float) -> Iterator[Stretch] | None:
        """Go on to the end of the rollout behind a decision, if the policy is one that can be compiled."""
        pool = self.pool
        if self._pilot is None or pool.waiting or not self._pilot.takes(draft.draft_config):
            return None
        # What a plan has for a request is at most its length, an engine step, and rounding in each bin. Where
        # few engine steps were drawn, a plan stretches them: to no more than all of a step for each token.
        most_tokens = (self.acceptance.bins + 1) * (self._work.deepest + 1) ** 2
        running, requests = pool.running, pool.requests
        ends = requests.prompt_tokens[running] + requests.length[running] + most_tokens
        if int(ends.sum()) > pool.crowded_above_tokens():
            return None
        return self._stretches(self._pilot, draft, begun_s)

    def _stretches(self, pilot: Pilot, draft: SetDraftConfig, begun_s: float) -> Iterator[Stretch]:
        """Go on to the end; compiled code hands over where the time goes to something else."""
        pool, running, drafts = self.pool, self.pool.running, self._work.draft_configs
        requests = pool.requests
        batch = Batch(running, pool.emitted, requests.length, requests.prompt_tokens)
        n, config, most = len(running), draft.draft_config, draft.max_engine_steps
        journey = Journey(np.zeros(WHOLE, np.int64), np.zeros(REAL), np.empty(n, np.int64), np.empty(n))
        whole, real = journey.whole, journey.real
        whole[CONFIG], whole[LEFT] = self._work.places[config], n
        whole[MOST], whole[LEAST] = UNLIMITED if most is None else most, draft.min_requests
        real[NOW_S] = begun_s
        policy, off = pilot.begin(requests.ids), False
        while left := int(whole[LEFT]):
            config = drafts[whole[CONFIG]]
            pool.running = running[:left]
            switch_s = 0.0
            if off and config.depth and self._when_off == "drafter_dropped":
                switch_s = self.switch_s(self._resume_cost)
                real[NOW_S] += switch_s
            self._lay_out(config)
            off = not config.depth
            whole[PLANNED], whole[DRAFTING] = whole[CONFIG], not off
            whole[POSITION], whole[FINISHED], whole[REQUEST_STEPS] = (
                self._position, self._state.finished, self._state.request_steps,
            )  # fmt: skip
            real[SECONDS], real[EMITTED] = self._state.seconds, self._state.emitted_tokens
            pilot.roll(
                self._work.tables(self._state_address),
                batch,
                np.inf,
                self.counts is None,
                pilot.tells,
                policy,
                journey,
            )
            self._catch_up(drafts[whole[PLANNED]], whole.tolist(), real.tolist())
            intervals, request_steps, accepted, noted = whole[INTERVALS:LEFT].tolist()
            yield Stretch(
                switch_s, self.draft_config, left, intervals, request_steps, accepted,
                journey.ids[:noted].copy(),
                journey.finish_s[:noted].copy(), float(real[NOW_S]),
            )  # fmt: skip
        pool.running = running[:0]
        self._count(len(self._order))
        pilot.end(requests.ids, lambda: self._last(whole, real))

    def _catch_up(self, draft_config: DraftConfig, whole: list[int], real: list[float]) -> None:
        """Stand where compiled code has come to."""
        self.draft_config, self._order = draft_config, self._memory.order[: self._memory.ints[PLANS]]
        self._position = whole[POSITION]
        held = float(self._memory.floats[HELD])
        self._state = State(whole[FINISHED], real[SECONDS], whole[REQUEST_STEPS], real[EMITTED], held)

    def _last(self, whole: Ints, real: Floats) -> DecisionInterval:
        """Return the last interval of a rollout, as compiled code has left it."""
        memory, depth = self._memory, self.draft_config.depth
        position, first, steps = whole[BEGAN_POSITION : BEGAN_REQUEST_STEPS + 1].tolist()
        return DecisionInterval(
            self.draft_config,
            self._position - position,
            self._state.request_steps - steps,
            self._state.seconds - float(real[BEGAN_SECONDS]),
            tuple(memory.ints[ACCEPTED : ACCEPTED + depth].tolist()),
            self._order[first:],
            _NONE_S,
            0,
            self._told(first),
        )

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
        survival = self._work.survival[self._work.places[draft_config]]
        settle(
            self._state_address, memory.ints, memory.floats, survival, pool.emitted, pool.requests.length,
            self._bins, draft_config.depth, done, position,
        )  # fmt: skip
        if self.counts is not None and self._drafts is not None:
            self._drafts.end_early(done, memory.shares[1, : len(self._order) - done].copy(), position)
            self.counts.add(self._drafts)

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
