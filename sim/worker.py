"""The simulated worker: a SimPy process that reads schedule -> run -> observe."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from sim.engine import Engine, Epoch
from sim.pool import RequestPool
from tltsched.commands import Draft
from tltsched.events import BatchFormed, EpochEnded, RolloutBegan, RolloutEnded
from tltsched.record import RecordedWorker
from traces.timeline import Timeline

Passing = Generator[simpy.Event, Any, None]
Deciding = Generator[simpy.Event, Any, tuple[Draft, ...]]


class StepTally:
    """What the workers of one step add up: acceptance counts over drafting epochs, and preemptions."""

    def __init__(self) -> None:
        self.request_cycles = 0
        self.accepted_tokens = 0
        self.preemptions = 0
        self.largest_draft_batch = 0

    def add(self, epoch: Epoch, batch: int) -> None:
        """Count an epoch that began with `batch` requests."""
        if epoch.arm.depth:
            self.largest_draft_batch = max(self.largest_draft_batch, batch)
            self.request_cycles += epoch.request_cycles
            self.accepted_tokens += sum(epoch.accepted_by_position)


class Worker:
    """One engine and its scheduler on the simulated clock."""

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: RecordedWorker,
        engine: Engine,
        report: Callable[[int, tuple[int, ...]], None],
    ) -> None:
        """`report` takes the worker and the ids of finished requests at the time they are reported."""
        self.env = env
        self.index = scheduler.scheduler.worker
        self.scheduler = scheduler
        self.engine = engine
        self.report = report
        self.timeline = Timeline(self.index)

    def rollout(
        self, step: int, pool: RequestPool, finish_s: np.ndarray, drafter_version: int,
        drafter_exponent: float, tally: StepTally,
    ) -> Passing:  # fmt: skip
        """Generate all requests of the pool; `finish_s[id]` takes the time at which that request was done."""
        self.step = step
        engine, now = self.engine, self.env
        self.scheduler.handle(RolloutBegan(now.now, self.index, step, drafter_version))
        engine.submit(pool, drafter_exponent)
        drafts: tuple[Draft, ...] = ()
        while pool.pending():
            drafts = (yield from self._admit(pool)) or drafts
            (draft,) = drafts
            yield from self._switch(draft)
            start_s, batch = now.now, len(pool.running)
            for seconds in engine.run(draft):
                yield now.timeout(seconds)
            epoch = engine.epoch
            self._book(self._decode_cause(draft))
            finish_s[pool.requests.ids[epoch.finished]] = start_s + epoch.finish_s
            tally.add(epoch, batch)
            drafts = self._observe(epoch, pool)
        tally.preemptions += pool.preemptions
        self.scheduler.handle(RolloutEnded(now.now, self.index))

    def _admit(self, pool: RequestPool) -> Deciding:
        """Admit and prefill what fits; returns the decision for the batch that this forms, if any."""
        admission = self.engine.admit()
        if not admission.requests:
            return ()
        costs = self.engine.costs
        prefill_s = costs.prefill_s(admission.prompt_tokens, admission.prompt_squares)
        yield from self._spend("prefill", prefill_s)
        again_s = costs.prefill_s(admission.recompute_tokens, admission.recompute_squares)
        yield from self._spend("recompute", again_s)
        context = int(pool.context().sum())
        return self.scheduler.handle(BatchFormed(self.env.now, self.index, len(pool.running), context))

    def _switch(self, draft: Draft) -> Passing:
        """Pay for the drafter's KV where the command asks for it."""
        if draft.entry == "none":
            return
        context = self.engine.context()
        seconds = self.engine.costs.switch_s(
            draft.entry, float(context.sum()), float(np.dot(context, context))
        )
        yield from self._spend("switch", seconds)

    def _observe(self, epoch: Epoch, pool: RequestPool) -> tuple[Draft, ...]:
        finished = tuple(pool.requests.ids[epoch.finished].tolist())
        event = EpochEnded(
            self.env.now,
            self.index,
            epoch.arm,
            epoch.cycles,
            epoch.request_cycles,
            epoch.decode_s,
            epoch.accepted_by_position,
            finished,
            len(pool.running),
            epoch.context_tokens,
        )
        drafts = self.scheduler.handle(event)
        if finished:
            self.report(self.index, finished)
        return drafts

    def _spend(self, cause: str, seconds: float) -> Passing:
        if seconds > 0:
            yield self.env.timeout(seconds)
            self._book(cause)

    def _book(self, cause: str) -> None:
        self.timeline.book(cause, self.step, self.env.now)

    def _decode_cause(self, draft: Draft) -> str:
        if draft.arm.depth:
            return "speculate"
        return "decode_off" if self.engine.costs.off_state == "in_step" else "decode"
