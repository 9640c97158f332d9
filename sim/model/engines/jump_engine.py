"""One engine of the simulator in jump mode: a decision interval is one evaluation of a closed form.

How many engine steps a request still needs under a draft configuration is drawn once, from the normal
approximation of the renewal count of its acceptance law, and kept while the draft configuration stays
(sim.model.engines.stages). When the draft configuration changes in mid-request, the tokens emitted so far
are drawn from the bridge between the two ends, so that the law of the total does not depend on how often
draft configurations change. What a policy is shown of a decision interval has the noise that so many engine
steps have: rules that live on noise decide as they would on an engine. sim.model.engines.exact_engine
simulates every engine step and is the oracle for this file.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from tlt.sim.model.draft_counts import Pieces
from tlt.sim.model.engines.decode_closed_form import START, Stages, State, Trajectory, segments
from tlt.sim.model.engines.engine import DecisionInterval, Engine, Running
from tlt.sim.model.engines.running_batch import RequestPool
from tlt.sim.model.engines.stages import draw_stages, pieces_of, plain_stages, spans
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import bins
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import DraftConfig
from tltsched.events import DraftsByRequest

# Up to so many engine steps a walk is drawn step by step where it cannot reach its end: a normal bridge
# over so few steps loses a quarter of the variance of the total.
FEW_ENGINE_STEPS = 16


class JumpEngine(Engine):
    """Advances a whole decision interval at once."""

    _trajectory: Trajectory | None = None
    _order: Ints  # indices into the submission, in order of finish
    _stages: Stages  # in the same order
    _survival: Floats  # P(drafts up to each position accepted), in the same order, [n, stages, depth]
    _position = 0  # engine steps of the trajectory that are done
    _state: State = START  # of the trajectory at that position
    _drafts: Pieces | None = None  # of the requests of the trajectory, in order of finish

    def submit(self, pool: RequestPool, drafter_exponent: float) -> None:
        """Take the requests of a rollout."""
        super().submit(pool, drafter_exponent)
        self._trajectory = None

    def admit(self) -> int:
        """Admit what fits, and return how many; the trajectory is drawn anew where somebody waits."""
        if self.pool.may_admit():
            self._settle()
        return self.pool.admit()

    def _held(self) -> float:
        """Return the context tokens of the batch as of now, a mean."""
        if self._trajectory is None or self._position == 0:
            return super()._held()
        return self._state.context_tokens

    def _fix(self) -> None:
        self._settle()

    def _retire(self, before: State, after: State) -> Ints:
        """Let those go who finish between two states; returns them, [finished]."""
        finished = self._order[before.finished : after.finished]
        if len(finished):
            self.pool.emitted[finished] = self.pool.requests.length[finished]
            self._draw_last(finished)
            self.pool.retire()
        return finished

    def _draw_last(self, finished: Ints) -> None:
        """Draw what those who finish, [finished], have emitted in their last engine steps, if anybody asks.

        Ends fall anywhere: an engine step of n tokens holds one n times as often as one of a single token, at
        each of its places alike. So c tokens of it count with a chance of P(n >= c) / E[n].
        """
        pool = self.pool
        if pool.last_tokens is None:
            return
        pool.last_tokens[finished] = 1
        if self.draft_config.depth:
            exponents = pool.requests.exponent[finished]
            here = bins(pool.emitted[finished] - 1).clip(max=exponents.shape[1] - 1)
            ends = exponents[np.arange(len(finished)), here][:, None]
            survival = self.acceptance.survival(self.draft_config, ends, self.drafter_exponent)[:, 0]
            upto = 1.0 + np.pad(survival.cumsum(axis=1), ((0, 0), (1, 0)))  # P(n >= 1) is 1
            draws = self.rng.random(len(finished)) * upto[:, -1]
            pool.last_tokens[finished] += (draws[:, None] >= upto[:, :-1]).sum(axis=1)

    def _drawn(self, trajectory: Trajectory, after: State) -> tuple[tuple[int, ...], float]:
        """Return drafts accepted by position from now until `after`, and the share of steps left then."""
        before = self._state
        request_steps = after.request_steps - before.request_steps
        left = 1.0 - request_steps / max(trajectory.request_steps - before.request_steps, 1)
        emitted = after.emitted_tokens - before.emitted_tokens
        return self._accepted(trajectory, self._position, request_steps, emitted, left), left

    def context(self) -> Ints:
        """Return the context tokens of each running request, [batch]; the trajectory is drawn anew."""
        self._settle()
        return self.pool.context()

    def withdraw(self, ids: Ints) -> tuple[Ints, Ints]:
        """Take requests, [n], out between two intervals; the trajectory of the others is drawn anew."""
        self._settle()
        return super().withdraw(ids)

    def run(self, draft: SetDraftConfig, watch: bool = False) -> Running:
        """Advance to the end of the decision interval; without `watch` it is a single stretch."""
        if draft.draft_config != self.draft_config:
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
                begun = min(position + 1, stop)  # in flight, if nothing had passed yet
                stop = end = trajectory.engine_step_ending(reached.seconds + cut_s, begun, stop)
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
            self._make_room()

    def _make_room(self) -> None:
        """Preempt requests at the end of an interval that the KV cache has ended."""
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
        running, begun = pool.running, pool.emitted[pool.running]
        exponents = pool.requests.exponent[running]
        if draft_config.depth:
            span = spans(begun, pool.requests.length[running], exponents.shape[1])
            moments = self.acceptance.moments(draft_config, exponents, self.drafter_exponent)
            stages, survival = draw_stages(span, moments, draft_config.depth + 1, self.rng), moments.survival
        else:
            span = pool.remaining()[:, None]
            stages, survival = plain_stages(pool.remaining()), np.empty((len(running), 1, 0))
        order = stages.until[:, -1].argsort(kind="stable")
        self._stages, self._survival = stages.of(order), survival[order]
        self.draft_config, self._order, self._position, self._state = draft_config, running[order], 0, START
        self._drafts = None
        if self.counts is not None and draft_config.depth:
            ids = pool.requests.ids[self._order]
            self._drafts = pieces_of(draft_config, ids, begun[order], span[order], self._stages)
        context = pool.context()[order].astype(np.float64)
        kv_s = costs.context_s_per_token
        self._trajectory = Trajectory(
            segments(self._stages, context, self._survival, costs.fixed_s, kv_s), kv_s
        )
        return self._trajectory

    def _end(self, trajectory: Trajectory, draft: SetDraftConfig) -> tuple[int, bool]:
        """Return the engine step at which the interval ends, and whether the KV cache is what ends it."""
        end = trajectory.engine_step_below(draft.min_requests)
        if draft.max_engine_steps is not None:
            end = min(end, self._position + draft.max_engine_steps)
        if self.pool.waiting:  # whoever finishes next makes room
            end = min(end, int(trajectory.finish_engine_step[self._state.finished]))
        full = trajectory.engine_step_of_context(self.pool.crowded_above_tokens())
        if full is not None and full < end and len(self._order) - self._state.finished > 1:
            return max(full, self._position), True
        return max(end, self._position), False

    def _count(self, finished: int) -> None:
        """Count the drafts of the first so many requests of the trajectory, which have finished."""
        if self.counts is not None and self._drafts is not None:
            self.counts.add_until(self._drafts, finished)

    def _advance(self, trajectory: Trajectory, end: int, after: State) -> DecisionInterval:
        """Make `after`, the state at engine step `end`, the present one; returns what the interval did."""
        before, start = self._state, self._position
        accepted, left = self._drawn(trajectory, after)
        self._position, self._state = end, after
        finished = self._retire(before, after)
        return DecisionInterval(
            draft_config=self.draft_config,
            engine_steps=end - start,
            request_steps=after.request_steps - before.request_steps,
            decode_s=after.seconds - before.seconds,
            accepted_by_position=accepted,
            finished=finished,
            finish_s=trajectory.finish_s[before.finished : after.finished] - before.seconds,
            context_tokens=round(after.context_tokens),
            by_request=self._by_request(start, end, before.finished, sum(accepted), left),
        )

    def _by_request(self, start: int, end: int, finished: int, accepted: int, left: float) -> DraftsByRequest:
        """Draw what each request that ran from engine step `start` to `end` got accepted; they sum to
        `accepted`.

        Means are those of the trajectory. The noise is normal, and as large as that of the sum (_accepted).
        """
        if not self.tells_requests or not self.draft_config.depth or end == start:
            return ()
        ids = self.pool.requests.ids[self._order[finished:]]
        engine_steps, whole = self._shares(start, end, finished, accepted, left)
        return tuple(zip(ids.tolist(), engine_steps.tolist(), whole.tolist(), strict=True))

    def _shares(self, start: int, end: int, finished: int, accepted: int, left: float) -> tuple[Ints, Ints]:
        """Return engine steps and accepted drafts of requests from the `finished`-th on, [left] each."""
        stages = self._stages.of(slice(finished, None))
        by_stage = stages.engine_steps(end) - stages.engine_steps(start)
        engine_steps = by_stage.sum(axis=1)
        variance = (by_stage * stages.variance).sum(axis=1)
        drawn = (by_stage * stages.tokens_per_engine_step).sum(axis=1) - engine_steps
        drawn = drawn + np.sqrt(left * variance) * self.rng.standard_normal(len(drawn))
        drawn = drawn + (accepted - drawn.sum()) * variance / max(variance.sum(), np.finfo(float).tiny)
        return engine_steps, shared_out(drawn, accepted, self.draft_config.depth * engine_steps)

    def _accepted(
        self, trajectory: Trajectory, start: int, request_steps: int, emitted: float, left: float
    ) -> tuple[int, ...]:
        """Draw the drafts accepted by position in an interval from engine step `start` on, [depth].

        Their mean is what the trajectory has, in the proportions of its law. The noise is that of so many
        draws, less what is drawn already where the interval is more than a small part of the trajectory:
        `left` is the share that comes after it.
        """
        if self.draft_config.depth == 0 or not request_steps:
            return ()
        held, running = trajectory.held_at(start)
        return self._by_position(held, running, request_steps, emitted, left)

    def _by_position(
        self, held: Floats, running: int, request_steps: int, emitted: float, left: float
    ) -> tuple[int, ...]:
        """Draw them from the survivals that all of so many running requests sum to, [depth]."""
        survival = (held / running).clip(0.0, 1.0)
        whole = survival.sum()
        mean = survival * ((emitted - request_steps) / whole if whole else 0.0)
        chance = -np.diff(survival, prepend=1.0, append=0.0)
        drawn = self.rng.multinomial(request_steps, chance.clip(0.0))[:0:-1].cumsum()[::-1]
        shown = np.rint(mean + math.sqrt(left) * (drawn - request_steps * survival))
        return tuple(np.minimum.accumulate(shown.clip(0, request_steps)).astype(int).tolist())

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
        remaining = self.pool.requests.length[order] - self.pool.emitted[order]
        gained = self._gained(done, position, remaining)
        if self.counts is not None and self._drafts is not None:
            self._drafts.end_early(done, gained, position)
            self.counts.add(self._drafts)
        self.pool.emitted[order] += gained

    def _gained(self, done: int, position: int, remaining: Ints) -> Ints:
        """Draw what requests from the `done`-th finish on have emitted after `position` engine steps, [left].

        They had so many `remaining` tokens before, and are not done.
        """
        emitted = np.full(len(remaining), float(position))
        if self.draft_config.depth:
            emitted = np.rint(self._bridge(self._stages.of(slice(done, None)), position))
            if position <= FEW_ENGINE_STEPS:
                far = position * (self.draft_config.depth + 1) < remaining
                emitted[far] = self._counted(done, position)[far]
        least = np.minimum(position, remaining - 1)
        most = np.minimum(position * (self.draft_config.depth + 1), remaining - 1)
        return np.asarray(np.clip(emitted, least, most).astype(np.int64))

    def _counted(self, done: int, position: int) -> Ints:
        """Draw what each of those left emits in `position` engine steps of the stage that it begins in."""
        stage = (self._stages.until[done:, :-1] <= 0).sum(axis=1)
        survival = self._survival[done:][np.arange(len(stage)), stage]
        draws = self.rng.random((position, len(stage), 1))
        emitted: Ints = position + (draws < survival).sum(axis=(0, 2))
        return emitted

    def _bridge(self, stages: Stages, position: int) -> Floats:
        """Draw what has been emitted after `position` engine steps, [running].

        A walk that reaches its level at last in a given engine step, and not before, keeps away from it: its
        distance follows a three-dimensional Bessel bridge, the length of a vector of Brownian bridges.
        """
        done, all_steps = stages.engine_steps(position), stages.engine_steps(stages.until[:, -1])
        whole = (all_steps * stages.tokens_per_engine_step).sum(axis=1)
        before, total = ((steps * stages.variance).sum(axis=1) for steps in (done, all_steps))
        spread = np.sqrt(before * (total - before) / np.maximum(total, np.finfo(float).tiny))
        noise = spread * self.rng.standard_normal((3, len(whole)))
        along = whole - (done * stages.tokens_per_engine_step).sum(axis=1) + noise[0]
        distance = np.sqrt(along**2 + noise[1] ** 2 + noise[2] ** 2)
        return np.asarray(whole - distance, np.float64)


def shared_out(wanted: Floats, total: int, most: Ints) -> Ints:
    """Return whole numbers from 0 to `most` that sum to `total`, near the `wanted`, [n] each.

    `total` is between 0 and the sum of `most`.
    """
    whole = np.clip(np.rint(wanted), 0, most).astype(np.int64)
    while missing := total - int(whole.sum()):
        step = 1 if missing > 0 else -1
        room = np.flatnonzero((whole < most) if step > 0 else (whole > 0))
        nearest = room[np.argsort(step * (whole[room] - wanted[room]), kind="stable")]
        whole[nearest[: abs(missing)]] += step
    return whole
