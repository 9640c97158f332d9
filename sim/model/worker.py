"""The simulated worker: a SimPy process that reads schedule -> run -> observe."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import msgspec
import numpy as np
import simpy

from tlt.sim.model.clock import Clock
from tlt.sim.model.draft_counts import DraftCounts
from tlt.sim.model.engines.engine import DecisionInterval, Engine
from tlt.sim.model.engines.running_batch import Limits, RequestPool, Submission
from tlt.sim.model.run_ahead import RunAhead
from tlt.sim.model.sessions.pool import CacheCounts, SessionPool, TurnSubmission
from tlt.sim.model.step import SimulatedStep
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.timeline import Timeline
from tltsched.commands import SetDraftConfig
from tltsched.event_log import RecordedWorker
from tltsched.events import BatchFormed, RolloutBegan, RolloutEnded

Process = Generator[simpy.Event, Any, None]
Decisions = Generator[simpy.Event, Any, tuple[SetDraftConfig, ...]]
CutAfter = Generator[simpy.Event, Any, float | None]


class Listener(Protocol):
    """Who hears of what a worker has done, at the time at which it is reported."""

    state: SimulatedStep  # of the step that is on
    counts: DraftCounts | None  # of all workers; None: nobody wants them

    def done(self, requests: Ints, finish_s: np.ndarray | float) -> None:
        """Requests, [n], will have been done at these times, once they are reported."""

    def finished(self, worker: int, requests: tuple[int, ...], context_tokens: int) -> None:
        """Requests have emitted what they were to; `context_tokens` is what the worker still holds."""

    def withdrawn(self, worker: int, requests: Ints, emitted: Ints) -> None:
        """Requests, [n], were taken from a worker after so many tokens each, [n]."""


class Rollout(msgspec.Struct, frozen=True):
    """What a worker needs to know of a rollout."""

    step: int
    drafter_version: int
    drafter_exponent: float


class Withdrawal(msgspec.Struct, frozen=True):
    """An order to let go of requests."""

    ids: Ints


class Reload(msgspec.Struct, frozen=True):
    """An order to take new weights: all caches are lost, unless they are kept as they are."""

    seconds: float
    drafter_exponent: float  # of the drafter against the new weights
    kv_kept: bool
    done: simpy.Event


class Worker:
    """One engine and its scheduler on the simulated clock."""

    def __init__(
        self,
        env: Clock,
        scheduler: RecordedWorker,
        engine: Engine,
        limits: Limits,
        listener: Listener,
        watch: bool = False,
        ahead: bool = False,
        sessions: bool = False,
    ) -> None:
        """With `watch` each finish is reported when it happens, and orders cut a decision interval short.

        With `sessions` requests leave for tools and come back: a rollout lasts until it is closed.

        With `ahead` rollouts are computed at once where that is possible (tlt.sim.model.run_ahead).
        """
        self.env = env
        self.index = scheduler.worker
        self.scheduler = scheduler
        self.engine = engine
        self.engine.counts = None if listener.counts is None else listener.counts.of(self.index)
        self.engine.tells_requests = scheduler.wants_requests
        self.limits = limits
        self.listener = listener
        self.watch = watch
        self.ahead = ahead
        self.sessions = sessions
        self.pools: list[CacheCounts] = []  # of its rollouts with sessions
        self.away = 0  # sessions at their tools that ran here last
        self.timeline = Timeline(self.index)
        self.step = 0
        self.idle_cause = "tail_idle"
        self._activity = "tail_idle"  # what the time since the last booking goes to
        self._rolling = False
        self._begins_after_s = 0.0  # of the rollout that was begun last
        self._loading: simpy.Event | None = None  # what ends the load of an engine at rest
        self._waiting = False  # with an open rollout and nothing to do
        self._closed = False  # the rollout ends as soon as there is nothing to do
        self._told = 0  # finishes of the running decision interval that were reported
        self._joined = 0  # requests admitted since the scheduler last heard of a batch
        self._early: list[tuple[Ints, float]] = []  # finished in engine steps that prefilled, and when
        self._inbox: list[Submission | Withdrawal | Reload] = []
        self._bell: simpy.Event | None = None  # rings for an order that cuts the interval in flight

    def assign(self, rollout: Rollout, submission: Submission, after_s: float = 0.0) -> None:
        """Take requests: a rollout begins, `after_s` later, or they join the one that runs."""
        self.step = rollout.step
        if self._rolling:
            self._order(submission)
            return
        self._rolling, self._begins_after_s = True, after_s
        roll = self._roll if self.watch or not self.ahead else self._roll_ahead
        self.env.process(roll(rollout, submission))

    def turn(self, step: int) -> None:
        """Book the time until now to the step that ends; the worker goes on in `step`."""
        busy = self._rolling and not self._waiting
        self._book(self._activity if busy else self.waits_for)
        self.step = step

    @property
    def waits_for(self) -> str:
        """The cause of time in which there is nothing to decode."""
        return "tool_wait" if self.away else self.idle_cause

    def expect(self, sessions: int) -> None:
        """Note that so many sessions have gone to their tools, or, below 0, are not waited for any more."""
        if self._waiting:
            self._book(self.waits_for)
        self.away += sessions

    def close(self) -> None:
        """End an open rollout: nothing will come back in it."""
        self._closed = self._rolling
        if self._waiting and self._bell is not None:
            self._bell.succeed()
            self._bell = None

    def withdraw(self, ids: Ints) -> None:
        """Give requests, [n], back at the end of the engine step in flight."""
        assert self._rolling, "a worker that was not reported idle has something to withdraw"
        self._order(Withdrawal(ids))

    def reload(self, seconds: float, drafter_exponent: float, kv_kept: bool = False) -> simpy.Event:
        """Take new weights at the end of the engine step in flight; returns the event of its end."""
        order = Reload(seconds, drafter_exponent, kv_kept, self.env.event())
        if self._rolling:
            self._order(order)
        else:
            self._book(self.waits_for)
            self._loading = order.done
            self.env.process(self._load(order))
        return order.done

    def rest(self, idle_cause: str) -> None:
        """Book idle time to another cause from now on."""
        if (self._waiting or not self._rolling) and self._loading is None:
            self._book(self.waits_for)
        self.idle_cause = idle_cause

    def _order(self, order: Submission | Withdrawal | Reload) -> None:
        self._inbox.append(order)
        if self._bell is not None and self._must_stop():
            self._bell.succeed()
            self._bell = None

    def _must_stop(self) -> bool:
        """Return whether an order waits that the running decision interval cannot go on with."""
        room = self._told > 0 or self.engine.pool.has_room()
        return any(not isinstance(order, Submission) or room for order in self._inbox)

    def _roll(self, rollout: Rollout, submission: Submission) -> Process:
        """Generate all requests of the pool and those that come while it does."""
        engine, env = self.engine, self.env
        if self._loading is not None:
            self._activity = "weight_sync"
            yield self._loading
        self._book(self.waits_for)
        yield from self._spend("lend", self._begins_after_s)
        pool = self._pool(submission, rollout.step)
        self.scheduler.handle(RolloutBegan(env.now, self.index, rollout.step, rollout.drafter_version))
        engine.submit(pool, rollout.drafter_exponent)
        drafts: tuple[SetDraftConfig, ...] = ()
        while True:
            drafts = (yield from self._take_orders(pool)) or drafts
            if not pool.pending():
                if not self.sessions or self._closed:
                    break
                yield from self._wait()
                continue
            drafts = (yield from self._admit(pool)) or drafts
            if not len(pool.running) or (self.watch and self._must_stop()):
                continue
            (draft,) = drafts
            yield from self._switch(draft)
            start_s, batch = env.now, len(pool.running)
            yield from self._run(draft, pool)
            interval = engine.decision_interval
            self._book(self.engine.decode_cause(draft.draft_config))
            self.listener.state.decided(interval, batch)
            drafts = self._observe(interval, pool, start_s)
        self._report(*self._take_early())
        self.listener.state.preemptions += pool.preemptions
        self.scheduler.handle(RolloutEnded(env.now, self.index))
        self._rolling = self._closed = False

    def _pool(self, submission: Submission, step: int) -> RequestPool:
        """Return the pool of a rollout; those of sessions are kept for what they have counted."""
        if not isinstance(submission, TurnSubmission):
            return RequestPool(submission, self.limits, step)
        pool = SessionPool(submission, self.limits, step)
        self.pools.append(pool.counts)
        return pool

    def _wait(self) -> Process:
        """Let time pass until an order comes, or the rollout is closed."""
        self._bell, self._waiting = self.env.event(), True
        yield self._bell
        self._waiting = False
        self._book(self.waits_for)

    def _roll_ahead(self, rollout: Rollout, submission: Submission) -> Process:
        """Do the same where nothing can reach the worker meanwhile: at once, reported at the end."""
        self._book(self.idle_cause)
        pool = RequestPool(submission, self.limits, rollout.step)
        ahead = RunAhead(self.scheduler, self.engine, self.timeline, self.listener.state, self.env.now)
        report = ahead.run(pool, rollout.drafter_version, rollout.drafter_exponent)
        if report.t_s > self.env.now:
            yield self.env.at(report.t_s)
        self._report(report.ids, report.finish_s)
        assert not self._inbox, "a schedule that does not watch sends nothing in mid-rollout"
        self._rolling = False

    def _run(self, draft: SetDraftConfig, pool: RequestPool) -> Process:
        """Let one decision interval pass."""
        self._activity = self.engine.decode_cause(draft.draft_config)
        if not self.watch:
            for seconds in self.engine.run(draft):
                yield self.env.timeout(seconds)
            return
        running = self.engine.run(draft, watch=True)
        left_s: float | None = next(running, None)  # none: the cache overflows before a step
        while left_s is not None:
            cut_s = yield from self._pass(left_s)
            if cut_s is not None:
                yield self.env.timeout(running.send(cut_s))
            self._book(self.engine.decode_cause(draft.draft_config))
            self._tell(pool)
            self.engine.halted = self._must_stop()
            left_s = next(running, None)

    def _pass(self, seconds: float) -> CutAfter:
        """Let seconds pass; returns after how many of them an order cut in, if one did."""
        start_s, timer = self.env.now, self.env.timeout(seconds)
        self._bell = self.env.event()
        yield timer | self._bell
        self._bell = None
        return None if timer.processed else self.env.now - start_s

    def _tell(self, pool: RequestPool) -> None:
        """Report who finished in the time that has passed."""
        finished = pool.requests.ids[self.engine.just_finished]
        if len(finished):
            self._told += len(finished)
            self.listener.done(finished, self.env.now)
            self.listener.finished(self.index, tuple(finished.tolist()), self.engine.held_tokens)

    def _take_orders(self, pool: RequestPool) -> Decisions:
        """Carry out what arrived; returns the decision for a batch that shrank."""
        batch = len(pool.running)
        while self._inbox:
            order = self._inbox.pop(0)
            match order:
                case Submission():
                    pool.submit(order)
                case Withdrawal():
                    self.listener.withdrawn(self.index, *self.engine.withdraw(order.ids))
                case Reload():
                    self.engine.reload(order.drafter_exponent, order.kv_kept)
                    yield from self._load(order)
        if not 0 < len(pool.running) < batch:
            return ()
        context = int(self.engine.context().sum())
        return self.scheduler.handle(BatchFormed(self.env.now, self.index, len(pool.running), context))

    def _load(self, order: Reload) -> Process:
        self._activity = "weight_sync"
        yield self.env.timeout(order.seconds)
        self._book("weight_sync")
        self._loading = None
        order.done.succeed()

    def _admit(self, pool: RequestPool) -> Decisions:
        """Prefill what fits, chunk by chunk; returns the decision for the batch that forms, if any."""
        engine = self.engine
        self._joined += engine.admit()
        while pool.prefilling and not (self.watch and self._must_stop()):
            step = engine.prefill_step()
            yield from self._spend("prefill", step.seconds * (1.0 - step.again))
            yield from self._spend("recompute", step.seconds * step.again)
            if step.request_steps:
                self.listener.state.prefilled(engine.draft_config, step)
            self._finish_early(pool.requests.ids[step.finished])
            self._joined += engine.admit()
        if pool.prefilling or not self._joined or not len(pool.running):
            return ()
        self._joined = 0
        context = int(pool.context().sum())
        return self.scheduler.handle(BatchFormed(self.env.now, self.index, len(pool.running), context))

    def _finish_early(self, ids: Ints) -> None:
        """Keep who finished in an engine step that prefilled for the next report, or tell who watches."""
        if not len(ids):
            return
        self._early.append((ids, self.env.now))
        if self.watch:
            self.listener.done(ids, self.env.now)
            self.listener.finished(self.index, tuple(ids.tolist()), int(self.engine.context().sum()))

    def _take_early(self) -> tuple[Ints, Floats]:
        """Return who finished in engine steps that prefilled, and when, [n] each, and forget them."""
        early, self._early = self._early, []
        ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in early)])
        return ids, np.concatenate([np.empty(0), *(np.full(len(ids), at_s) for ids, at_s in early)])

    def _switch(self, draft: SetDraftConfig) -> Process:
        """Pay for the drafter's KV where the command asks for it."""
        if draft.resume_cost == "none":
            return
        yield from self._spend("switch", self.engine.switch_s(draft.resume_cost))

    def _observe(
        self, interval: DecisionInterval, pool: RequestPool, start_s: float
    ) -> tuple[SetDraftConfig, ...]:
        """Report an interval that began at `start_s`, and what finished in it and was not reported yet."""
        early, early_s = self._take_early()
        ids = np.concatenate([early, pool.requests.ids[interval.finished]])
        finished = tuple(dict.fromkeys(ids.tolist()))  # a session may end two short turns in an interval
        event = interval.ended(self.env.now, self.index, finished, len(pool.running))
        drafts = self.scheduler.handle(event)
        self._report(ids, np.concatenate([early_s, start_s + interval.finish_s]))
        self._told = 0
        return drafts

    def _report(self, ids: Ints, finish_s: Floats) -> None:
        """Report requests, [n], and when they finished, unless that was told as it happened."""
        if len(ids) and not self.watch:
            self.listener.done(ids, finish_s)
            self.listener.finished(self.index, tuple(ids.tolist()), 0)

    def _spend(self, cause: str, seconds: float) -> Process:
        if seconds > 0:
            self._activity = cause
            yield self.env.timeout(seconds)
            self._book(cause)

    def _book(self, cause: str) -> None:
        self.timeline.book(cause, self.step, self.env.now)
