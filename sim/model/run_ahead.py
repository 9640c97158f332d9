"""A rollout that nothing can reach before it ends, computed at once.

Under a schedule that does not watch, a worker hears nothing between its Assign and its last report. So its
decision intervals need no events on the clock: its scheduler is asked the same questions in the same order,
times are the same sums, and what it reports is put on the clock afterwards. Workers are computed one after
the other, so whoever records events in the order of time, or counts drafts of all workers together, cannot
use it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tlt.sim.model.engines.engine import DecisionInterval, Engine
from tlt.sim.model.engines.running_batch import RequestPool
from tlt.sim.model.step import SimulatedStep
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.timeline import Timeline
from tltsched.commands import SetDraftConfig
from tltsched.event_log import RecordedWorker
from tltsched.events import BatchFormed, RolloutBegan, RolloutEnded

Drafts = tuple[SetDraftConfig, ...]


class Report(NamedTuple):
    """Requests that a worker reports at `t_s`, [n], and when each finished."""

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
        self._early: list[tuple[Ints, float]] = []
        self._reports: list[Report] = []

    def run(self, pool: RequestPool, drafter_version: int, drafter_exponent: float) -> list[Report]:
        """Generate all requests of the pool; returns what is reported, in order of time."""
        engine, state, timeline = self._engine, self._state, self._timeline
        self._scheduler.handle(RolloutBegan(self._t_s, self._worker, self._step, drafter_version))
        engine.submit(pool, drafter_exponent)
        drafts: Drafts = ()
        while pool.pending():
            if pool.waiting or pool.prefilling or self._joined:
                drafts = self._admit(pool) or drafts
                if not len(pool.running):
                    continue
            (draft,) = drafts
            if draft.resume_cost != "none":
                self._switch(draft)
            start_s, batch = self._t_s, len(pool.running)
            for seconds in engine.run(draft):
                self._t_s += seconds
            timeline.book(engine.decode_cause(draft), self._step, self._t_s)
            interval = engine.decision_interval
            state.decided(interval, batch)
            drafts = self._observe(interval, pool, start_s)
        self._report(*self._take_early())
        state.preemptions += pool.preemptions
        self._scheduler.handle(RolloutEnded(self._t_s, self._worker))
        return self._reports

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
                self._early.append((pool.requests.ids[step.finished], self._t_s))
            self._joined += engine.admit()
        if not self._joined or not len(pool.running):
            return ()
        self._joined = 0
        context = int(pool.context().sum())
        return self._scheduler.handle(BatchFormed(self._t_s, self._worker, len(pool.running), context))

    def _switch(self, draft: SetDraftConfig) -> None:
        self._spend("switch", self._engine.switch_s(draft.resume_cost))

    def _spend(self, cause: str, seconds: float) -> None:
        if seconds > 0:
            self._t_s += seconds
            self._timeline.book(cause, self._step, self._t_s)

    def _observe(self, interval: DecisionInterval, pool: RequestPool, start_s: float) -> Drafts:
        """Tell the scheduler of an interval that began at `start_s`, and note what is reported after it."""
        ids, finish_s = pool.requests.ids[interval.finished], start_s + interval.finish_s
        if self._early:
            early, early_s = self._take_early()
            ids, finish_s = np.concatenate([early, ids]), np.concatenate([early_s, finish_s])
        finished = tuple(ids.tolist())
        drafts = self._scheduler.handle(interval.ended(self._t_s, self._worker, finished, len(pool.running)))
        if finished:
            self._report(ids, finish_s)
        return drafts

    def _take_early(self) -> tuple[Ints, Floats]:
        early, self._early = self._early, []
        ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in early)])
        return ids, np.concatenate([np.empty(0), *(np.full(len(ids), at_s) for ids, at_s in early)])

    def _report(self, ids: Ints, finish_s: Floats) -> None:
        if len(ids):
            self._reports.append(Report(self._t_s, ids, finish_s))
