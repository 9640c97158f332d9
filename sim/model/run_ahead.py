"""A rollout that nothing can reach before it ends, computed at once.

Under a schedule that does not watch, a worker hears nothing between its Assign and its last report. So its
decision intervals need no events on the clock: its scheduler is asked the same questions in the same order,
and times are the same sums. What it would report of finishes meanwhile changes nothing in the cluster either,
while it has requests left: it reports them all as it ends. Workers are computed one after the other, so
whoever records events in the order of time cannot use it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tlt.sim.model.engines.engine import DecisionInterval, Engine, Stretch
from tlt.sim.model.engines.running_batch import RequestPool
from tlt.sim.model.step import SimulatedStep
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.timeline import Timeline
from tltsched.commands import SetDraftConfig
from tltsched.event_log import RecordedWorker
from tltsched.events import BatchFormed, RolloutBegan, RolloutEnded

Drafts = tuple[SetDraftConfig, ...]


class Report(NamedTuple):
    """The requests of a rollout that ended at `t_s`, [n], and when each finished."""

    t_s: float
    ids: Ints
    finish_s: Floats


class RunAhead:
    """One rollout of one worker."""

    def __init__(
        self,
        scheduler: RecordedWorker,
        engine: Engine,
        timeline: Timeline,
        state: SimulatedStep,
        now_s: float,
    ) -> None:
        self._scheduler, self._engine, self._timeline, self._state = scheduler, engine, timeline, state
        self._worker = scheduler.worker
        self._step = state.step
        self._t_s = now_s
        self._joined = 0
        self._asks_policy = False
        self._early: tuple[int, ...] = ()  # finished in engine steps that prefilled, and not told yet
        self._ids: list[Ints] = []
        self._finish_s: list[Floats] = []

    def run(self, pool: RequestPool, drafter_version: int, drafter_exponent: float) -> Report:
        """Generate all requests of the pool."""
        engine, state, timeline, step = self._engine, self._state, self._timeline, self._step
        self._scheduler.handle(RolloutBegan(self._t_s, self._worker, step, drafter_version))
        engine.submit(pool, drafter_exponent)
        self._asks_policy = self._scheduler.asks_policy
        drafts: Drafts = ()
        while len(pool.running) or pool.pending():
            if pool.waiting or pool.prefilling or self._joined:
                drafts = self._admit(pool) or drafts
                if not len(pool.running):
                    continue
            (draft,) = drafts
            if draft.resume_cost != "none":
                self._spend("switch", engine.switch_s(draft.resume_cost))
            if self._asks_policy and not self._early:
                stretches = engine.to_the_end(draft, self._t_s)
                if stretches is not None:
                    for stretch in stretches:
                        self._pass(stretch, pool)
                    continue
            batch = len(pool.running)
            start_s, self._t_s = self._t_s, engine.at_once(draft, self._t_s)
            timeline.book(engine.decode_cause(draft.draft_config), step, self._t_s)
            interval = engine.decision_interval
            state.decided(interval, batch)
            drafts = self._observe(interval, pool, start_s)
        state.preemptions += pool.preemptions
        self._scheduler.handle(RolloutEnded(self._t_s, self._worker))
        ids = np.concatenate([np.empty(0, np.int64), *self._ids])
        return Report(self._t_s, ids, np.concatenate([np.empty(0), *self._finish_s]))

    def _pass(self, stretch: Stretch, pool: RequestPool) -> None:
        """Take on intervals that the scheduler is not told of."""
        self._spend("switch", stretch.switch_s)
        self._state.decided_alike(
            stretch.draft_config, stretch.batch, stretch.intervals, stretch.request_steps,
            stretch.accepted_tokens,
        )  # fmt: skip
        self._note(pool, stretch.finished, stretch.finish_s)
        self._t_s = stretch.ended_s
        self._timeline.book(self._engine.decode_cause(stretch.draft_config), self._step, self._t_s)

    def _admit(self, pool: RequestPool) -> Drafts:
        """Prefill what fits, chunk by chunk; returns the decision for the batch that forms, if any."""
        engine = self._engine
        self._joined += engine.admit()
        while pool.prefilling:
            step = engine.prefill_step()
            self._spend("prefill", step.seconds * (1.0 - step.again))
            self._spend("recompute", step.seconds * step.again)
            if step.request_steps:
                self._state.prefilled(engine.draft_config, step)
            if len(step.finished):
                ids = self._note(pool, step.finished, np.full(len(step.finished), self._t_s))
                self._early += tuple(ids.tolist())
            self._joined += engine.admit()
        if not self._joined or not len(pool.running):
            return ()
        self._joined = 0
        context = int(pool.context().sum())
        return self._scheduler.handle(BatchFormed(self._t_s, self._worker, len(pool.running), context))

    def _spend(self, cause: str, seconds: float) -> None:
        if seconds > 0:
            self._t_s += seconds
            self._timeline.book(cause, self._step, self._t_s)

    def _observe(self, interval: DecisionInterval, pool: RequestPool, start_s: float) -> Drafts:
        """Tell the scheduler of an interval that began at `start_s`."""
        finished, self._early = self._early, ()
        if len(interval.finished):
            ids = self._note(pool, interval.finished, start_s + interval.finish_s)
            finished += tuple(ids.tolist())
        return self._scheduler.handle(interval.ended(self._t_s, self._worker, finished, len(pool.running)))

    def _note(self, pool: RequestPool, finished: Ints, finish_s: Floats) -> Ints:
        """Keep who finished, as indices into the submission, and when, [n] each; returns their ids."""
        ids: Ints = pool.requests.ids[finished]
        self._ids.append(ids)
        self._finish_s.append(finish_s)
        return ids
