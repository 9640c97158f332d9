"""One engine of the simulator in jump mode: a decision interval is one evaluation of a closed form.

How many engine steps a request still needs under a draft configuration is drawn once, from the normal
approximation of the renewal count of its acceptance law, and kept while the draft configuration stays. When
the draft configuration changes in mid-request, the tokens emitted so far are drawn from the bridge between
the two ends, so that the law of the total does not depend on how often draft configurations change.
sim.model.exact_engine simulates every engine step and is the oracle for this file.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec
import numpy as np

from tlt.sim.model.acceptance import Acceptance, Moments
from tlt.sim.model.decode_closed_form import START, State, Trajectory
from tlt.sim.model.draft_counts import DraftCounts, Pieces
from tlt.sim.model.running_batch import Admission, RequestPool
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.common.arrays import Floats, Ints
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import OFF, DraftConfig
from tltsched.events import DraftsByRequest

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


class Engine:
    """What both modes share: the pool, the costs, the acceptance process."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance, rng: np.random.Generator) -> None:
        self.costs = costs
        self.acceptance = acceptance
        self.rng = rng
        self.drafter_exponent = 1.0
        self.counts: DraftCounts | None = None  # of all engines of a run; None: nobody wants them
        self.tells_requests = False  # whether the scheduler wants drafts by request
        self.pool: RequestPool
        self.decision_interval: DecisionInterval
        # Of the stretch that was yielded last: who finishes at its end, and the contexts of the others then.
        self.just_finished: Ints = np.empty(0, np.int64)
        self.held_tokens = 0
        self.halted = False  # set during a decision interval: no further stretch is to begin

    def submit(self, pool: RequestPool, drafter_exponent: float) -> None:
        """Take the requests of a rollout; the drafter serves with this exponent until the next one."""
        self.pool = pool
        self.drafter_exponent = drafter_exponent

    def admit(self) -> Admission:
        """Admit what fits; see RequestPool.admit."""
        return self.pool.admit()

    def context(self) -> Ints:
        """Return the context tokens of each running request as of now, [batch]."""
        return self.pool.context()

    def requeue(self) -> None:
        """Send the running requests back to the queue: their caches are gone."""
        self.pool.requeue()

    def run(self, draft: SetDraftConfig, watch: bool = False) -> Running:
        """Carry out one decision interval: yields seconds that pass, and leaves the outcome in
        `self.decision_interval`.

        With `watch` a stretch ends at each finish (`just_finished`). A decision interval that is cut ends
        with the engine step in flight; the rest of that engine step is yielded once more.
        """
        raise NotImplementedError

    def withdraw(self, ids: Ints) -> tuple[Ints, Ints]:
        """Take requests, [n], out between two decision intervals.

        Returns the ids of those that were there and their tokens so far, [m] each.
        """
        taken = self.pool.withdraw(ids)
        return self.pool.requests.ids[taken], self.pool.emitted[taken]


class JumpEngine(Engine):
    """Advances a whole decision interval at once."""

    _trajectory: Trajectory | None = None
    _draft_config: DraftConfig = OFF
    _order: Ints  # indices into the submission, in order of finish
    _moments: Moments  # in the same order
    _position = 0  # engine steps of the trajectory that are done
    _state: State = START  # of the trajectory at that position
    _drafts: Pieces | None = None  # of the requests of the trajectory, in order of finish

    def submit(self, pool: RequestPool, drafter_exponent: float) -> None:
        """Take the requests of a rollout."""
        super().submit(pool, drafter_exponent)
        self._trajectory = None

    def admit(self) -> Admission:
        """Admit what fits; the trajectory is drawn anew if the batch changed."""
        if self.pool.waiting:
            self._settle()
        return self.pool.admit()

    def context(self) -> Ints:
        """Return the context tokens of each running request, [batch]; the trajectory is drawn anew."""
        self._settle()
        return self.pool.context()

    def withdraw(self, ids: Ints) -> tuple[Ints, Ints]:
        """Take requests, [n], out between two intervals; the trajectory of the others is drawn anew."""
        self._settle()
        return super().withdraw(ids)

    def requeue(self) -> None:
        """Send the running requests back to the queue."""
        self._settle()
        super().requeue()

    def run(self, draft: SetDraftConfig, watch: bool = False) -> Running:
        """Advance to the end of the decision interval; without `watch` it is a single stretch."""
        if draft.draft_config != self._draft_config:
            self._settle()
        trajectory = self._trajectory or self._plan(draft.draft_config)
        end, crowded = self._end(trajectory, draft)
        self.halted = False
        reached = self._state
        position = self._position
        while True:
            stop = end
            if watch and reached.finished < len(self._order):
                stop = min(end, max(int(trajectory.finish_engine_step[reached.finished]), position))
            after = self._foresee(trajectory, stop, reached)
            cut_s = yield after.seconds - reached.seconds
            if cut_s is not None:
                stop = end = trajectory.engine_step_ending(reached.seconds + cut_s, position, stop)
                crowded = False
                after = self._foresee(trajectory, stop, reached)
                yield max(after.seconds - reached.seconds - cut_s, 0.0)
            if watch or after.finished == len(self._order):
                self._count(after.finished)  # else when the trajectory is dropped
            reached, position = after, stop
            if stop == end or self.halted:
                end, crowded = stop, crowded and stop == end
                break
        self.decision_interval = self._advance(trajectory, end, reached)
        if crowded:
            self._settle()
            self.pool.preempt()
            held = int(self.pool.context().sum())
            self.decision_interval = msgspec.structs.replace(self.decision_interval, context_tokens=held)

    def _foresee(self, trajectory: Trajectory, stop: int, before: State) -> State:
        """Return the state at an engine step to come, and note who will have finished since `before`."""
        after = trajectory.at(stop, trajectory.finished(stop))
        self.just_finished = self._order[before.finished : after.finished]
        self.held_tokens = round(after.context_tokens)
        return after

    def _plan(self, draft_config: DraftConfig) -> Trajectory:
        """Draw how many engine steps each running request needs, and lay out the trajectory."""
        pool, costs = self.pool, self.costs.of(draft_config)
        running = pool.running
        remaining = pool.remaining()
        moments = self.acceptance.moments(
            draft_config, pool.requests.exponent[running], self.drafter_exponent
        )
        engine_steps = self._draw_engine_steps(draft_config, remaining, moments)
        order = engine_steps.argsort(kind="stable")
        engine_steps = engine_steps[order]
        self._moments = Moments(moments.mean_tokens[order], moments.variance[order])
        # The last engine step drafts past the end of the response: the walk ends at remaining + overshoot.
        left = remaining[order]
        tokens = left + _overshoot(self._moments)
        rate = tokens / np.maximum(engine_steps, 1)
        self._draft_config, self._order, self._position, self._state = draft_config, running[order], 0, START
        self._drafts = None
        if self.counts is not None and draft_config.depth:
            ids, begun = pool.requests.ids[self._order], pool.emitted[self._order]
            self._drafts = Pieces(draft_config, ids, begun, left, tokens, engine_steps)
        context = pool.context()[order].astype(np.float64)
        self._trajectory = Trajectory(engine_steps, context, rate, costs.fixed_s, costs.context_s_per_token)
        return self._trajectory

    def _draw_engine_steps(self, draft_config: DraftConfig, remaining: Ints, moments: Moments) -> Ints:
        """Return the engine steps until each request has emitted `remaining` tokens, [batch].

        With X tokens an engine step, the first n with S_n >= R has mean (R + (E[X^2]/E[X] - 1) / 2) / E[X]
        (Wald's identity and the mean overshoot of a lattice walk) and variance about R var(X) / E[X]^3.
        """
        if draft_config.depth == 0:
            return remaining
        mean, variance = moments.mean_tokens, moments.variance
        expected = (remaining + _overshoot(moments)) / mean
        spread = np.sqrt(remaining * variance / mean**3)
        drawn = np.rint(expected + spread * self.rng.standard_normal(len(remaining)))
        fewest = -(-remaining // (draft_config.depth + 1))
        return np.clip(drawn, fewest, remaining).astype(np.int64)

    def _end(self, trajectory: Trajectory, draft: SetDraftConfig) -> tuple[int, bool]:
        """Return the engine step at which the interval ends, and whether the KV cache is what ends it."""
        end = trajectory.engine_step_below(draft.min_requests)
        if draft.max_engine_steps is not None:
            end = min(end, self._position + draft.max_engine_steps)
        if self.pool.waiting:  # whoever finishes next makes room
            end = min(end, int(trajectory.finish_engine_step[self._state.finished]))
        full = trajectory.engine_step_of_context(self.pool.crowded_above_tokens())
        if full is not None and full < end:
            return max(full, self._position), True
        return max(end, self._position), False

    def _count(self, finished: int) -> None:
        """Count the drafts of the first so many requests of the trajectory, which have finished."""
        if self.counts is not None and self._drafts is not None:
            self.counts.add_until(self._drafts, finished)

    def _advance(self, trajectory: Trajectory, end: int, after: State) -> DecisionInterval:
        """Make `after`, the state at engine step `end`, the present one; returns what the interval did."""
        before, start = self._state, self._position
        self._position, self._state = end, after
        request_steps = after.request_steps - before.request_steps
        finished = self._order[before.finished : after.finished]
        if len(finished):
            self.pool.emitted[finished] = self.pool.requests.length[finished]
            self.pool.retire()
        return DecisionInterval(
            draft_config=self._draft_config,
            engine_steps=end - start,
            request_steps=request_steps,
            decode_s=after.seconds - before.seconds,
            accepted_by_position=self._accepted(request_steps, after.emitted_tokens - before.emitted_tokens),
            finished=finished,
            finish_s=trajectory.finish_s[before.finished : after.finished] - before.seconds,
            context_tokens=round(after.context_tokens),
            by_request=self._by_request(trajectory, start, end, before.finished),
        )

    def _by_request(self, trajectory: Trajectory, start: int, end: int, finished: int) -> DraftsByRequest:
        """Return what each request of the trajectory that ran from engine step `start` to `end` got accepted.

        Each accepts at the mean rate of its whole trajectory; rounded so that running sums are at most half a
        token off.
        """
        if not self.tells_requests or not self._draft_config.depth or end == start:
            return ()
        engine_steps = np.minimum(trajectory.finish_engine_step[finished:], end) - start
        emitted = trajectory.rate[finished:] * engine_steps
        accepted = np.diff(np.floor((emitted - engine_steps).cumsum() + 0.5), prepend=0.0)
        accepted = np.clip(accepted, 0, self._draft_config.depth * engine_steps).astype(np.int64)
        ids = self.pool.requests.ids[self._order[finished:]]
        return tuple(zip(ids.tolist(), engine_steps.tolist(), accepted.tolist(), strict=True))

    def _accepted(self, request_steps: int, emitted: float) -> tuple[int, ...]:
        """Spread the drafts accepted over positions, in the proportions of the law."""
        if self._draft_config.depth == 0 or not request_steps:
            return ()
        shares = self.acceptance.shares(self._draft_config, self.drafter_exponent)
        accepted = emitted - request_steps
        return tuple([min(round(accepted * share), request_steps) for share in shares])

    def _settle(self) -> None:
        """Fix how many tokens the running requests have emitted, and drop the trajectory."""
        trajectory, self._trajectory = self._trajectory, None
        position = self._position
        if trajectory is None or position == 0:
            return
        done = self._state.finished
        order = self._order[done:]
        if not len(order):
            return
        engine_steps = trajectory.finish_engine_step[done:]
        remaining = self.pool.requests.length[order] - self.pool.emitted[order]
        emitted = remaining * position / engine_steps
        if self._draft_config.depth:
            emitted = np.rint(self._bridge(remaining, position, engine_steps, done))
        least = np.minimum(position, remaining - 1)
        most = np.minimum(position * (self._draft_config.depth + 1), remaining - 1)
        gained = np.clip(emitted, least, most).astype(np.int64)
        if self.counts is not None and self._drafts is not None:
            self._drafts.end_early(done, gained, position)
            self.counts.add(self._drafts)
        self.pool.emitted[order] += gained

    def _bridge(self, remaining: Ints, position: int, engine_steps: Ints, done: int) -> Floats:
        """Draw what has been emitted after `position` of `engine_steps` in which `remaining` will be,
        [running].

        A walk that reaches its level at last in a given engine step, and not before, keeps away from it: its
        distance follows a three-dimensional Bessel bridge, the length of a vector of Brownian bridges.
        """
        moments = Moments(self._moments.mean_tokens[done:], self._moments.variance[done:])
        overshoot = _overshoot(moments)
        left = 1.0 - position / engine_steps
        spread = np.sqrt(moments.variance * position * left)
        noise = spread * self.rng.standard_normal((3, len(remaining)))
        along = (remaining + overshoot) * left + noise[0]
        distance = np.sqrt(along**2 + noise[1] ** 2 + noise[2] ** 2)
        return np.asarray(remaining + overshoot - distance, np.float64)


def _overshoot(moments: Moments) -> Floats:
    """Return by how many tokens the engine step that reaches a response's end overshoots it on average."""
    mean, variance = moments.mean_tokens, moments.variance
    return ((variance + mean**2) / mean - 1.0) / 2.0
