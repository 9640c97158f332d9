"""The simulated cluster: carries out what the ClusterScheduler decides, on the simulated clock.

Its twin on the wall clock is tlt.realrun.driver.cluster; both match the same commands in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import simpy

from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.clock import Clock
from tlt.sim.model.draft_counts import DraftCounts
from tlt.sim.model.drafter import Drafter
from tlt.sim.model.phases import Phases
from tlt.sim.model.requests import Requests, StepRequests, Stream
from tlt.sim.model.sessions.tools import Tools, start
from tlt.sim.model.sessions.turns import Turns
from tlt.sim.model.step import SimulatedLog, SimulatedStep
from tlt.sim.model.worker import Listener, Process, Rollout, Worker
from tlt.traces.common.arrays import Ints
from tlt.traces.runs.timeline import Timeline
from tltsched.commands import (
    Assign,
    BeginPhase,
    CallTools,
    ClusterCommand,
    Drop,
    EndStep,
    PublishDrafter,
    Restart,
    StartTraining,
    StopTraining,
    TrainOn,
    Withdraw,
)
from tltsched.event_log import RecordedCluster
from tltsched.events import (
    ChunksEnded,
    ClusterEvent,
    PhaseEnded,
    Request,
    RequestsFinished,
    RequestsWithdrawn,
    RewardsReady,
    StepBegan,
    TrainingStopped,
)
from tltsched.schedules.base import Move


class Cluster(Listener):
    """Drives workers, drafter training and phases through the RL steps of a run."""

    def __init__(
        self,
        env: Clock,
        scheduler: RecordedCluster,
        make_worker: Callable[[int, Listener], Worker],
        workers: int,
        trainers: int,
        drafter: Drafter,
        phases: Phases,
        acceptance: Acceptance,
        rng: np.random.Generator,
        spare_rng: np.random.Generator,
        counts: DraftCounts | None = None,
        lent: int = 0,
        turns: Turns | None = None,
    ) -> None:
        """`make_worker(index, listener)` builds a worker.

        Under schedules whose rollouts never end, some train the policy: `trainers` that do nothing else
        (their numbers follow those of the workers), or the last `lent` workers, which generate when they
        wait. `spare_rng` draws samples beyond those of the trace. `counts` takes drafts by request.
        `turns`: requests are sessions.
        """
        self.env = env
        self.scheduler = scheduler
        self.spec = scheduler.config.schedule_spec()
        self.counts = counts
        self.workers = [make_worker(index, self) for index in range(workers)]
        self.drafts = any(worker.scheduler.drafts for worker in self.workers)
        self.rollouts = self.workers[: workers - lent]  # those that do nothing but generate
        lenders = [worker.timeline for worker in self.workers[workers - lent :]]
        self.trainers = lenders + [Timeline(workers + index) for index in range(trainers)]
        if self.trainers:
            for worker in self.workers:
                worker.idle_cause = "admission_wait" if worker.index < len(self.rollouts) else "batch_wait"
        self.tools = Tools(env, turns, self.workers, self._tell, self.done) if turns else None
        self.drafter = drafter
        self.phases = phases
        self.acceptance = acceptance
        self.rng = rng
        self.spare_rng = spare_rng
        self.requests = Requests(acceptance.bins)
        self.stream = Stream((), spare_rng)
        self.state = SimulatedStep(step=-1, start_s=env.now, over=env.event())
        self.log = SimulatedLog()
        self.version = 0  # policy updates that the rollouts' weights have seen
        self._batch = 0  # responses that a step is to train on; 0: all
        self._training: dict[int, simpy.Process] = {}
        self._publish_s = 0.0
        self._back_s = 0.0  # until lent trainers are back
        self._scored_s = 0.0  # when the rewards of all that is finished will have been made, one by one

    def run(self, steps: Sequence[StepRequests], done: Callable[[int], None]) -> Process:
        """Run all steps; `done(step)` is called after each."""
        self.stream = Stream(steps, self.spare_rng)
        for step in range(len(steps)):
            self._begin(step)
            yield self.state.over
            self.state.end_s = self.env.now
            self.log.close(self.state, self.requests, self.scheduler.view.requests, self.counts)
            if self.tools:
                self.tools.turns.close(step, np.sort(self.state.trained(self.requests)))
            done(step)
        self._turn(len(steps) - 1)

    def _begin(self, step: int) -> None:
        self._turn(step)
        self.drafter.begin_step()
        self.state = SimulatedStep(
            step=step,
            start_s=self.env.now,
            drafter_version=self.drafter.version,
            drafter_age_steps=self.drafter.age_steps,
            over=self.env.event(),
        )
        self._tell(self._step_began())

    def _step_began(self) -> StepBegan:
        """Draw the fresh requests of the step; a schedule that carries nothing over gets the trace's step."""
        groups = samples = 0
        schedule = self.scheduler.schedule
        if schedule.syncs():
            self.version = self.state.step
        if self.spec.keeps_order:
            self.requests, fresh = Requests(self.acceptance.bins), self.stream.steps[self.state.step]
        else:
            groups, samples = self.stream.groups_of(self.state.step)
            self._batch = groups * samples
            fresh = self.stream.draw(schedule.fresh_groups(groups), schedule.samples(samples))
        count = len(fresh.group)
        if self.tools and self.spec.keeps_order:
            self.tools.turns.clear()
        exponents = np.ones((count, self.acceptance.bins))
        if self.drafts:  # else nobody looks at them
            exponents = self.acceptance.exponents(fresh.response_tokens, fresh.group, self.rng)
            exponents = exponents * np.exp(fresh.offset)[:, None]
        ids = self.requests.add(fresh, exponents)
        if self.tools and fresh.session is not None:
            start(self.tools.turns, self.requests, ids, fresh.session)
        hints = fresh.response_tokens if self.knows_lengths else np.zeros(count, np.int64)
        columns = (ids, fresh.group, self.requests.prompt_tokens[ids], hints)
        fresh_requests = tuple(map(Request, *(column.tolist() for column in columns)))
        return StepBegan(self.env.now, self.state.step, fresh_requests, groups, samples)

    @property
    def knows_lengths(self) -> bool:
        """Whether requests carry their lengths."""
        return self.scheduler.config.knows_lengths()

    def _execute(self, commands: tuple[ClusterCommand, ...]) -> None:
        for command in commands:
            match command:
                case Assign() | Withdraw() | Restart() | Drop() | TrainOn():
                    self._move(command)
                case CallTools():
                    assert self.tools is not None, "single responses call no tools"
                    self.tools.call(command, self.requests)
                case StartTraining():
                    for worker in command.workers:
                        self._book(worker, "tail_idle")
                        self._training[worker] = self.env.process(self._train(worker))
                case StopTraining():
                    if not self.scheduler.rolling_out:
                        self._end_rollout()
                    for worker in command.workers:
                        self._training[worker].interrupt()
                case PublishDrafter():
                    self.drafter.publish(command.version, command.trained_tokens)
                    self._publish_s = self.drafter.config.publish_s
                case BeginPhase():
                    self._end_rollout()
                    self._end_handover()
                    self.env.process(self._phase(command))
                case EndStep():
                    self._end_rollout()
                    self.env.process(self._end_step())

    def _move(self, move: Move) -> None:
        """Carry out what the schedule decided."""
        ids = np.array(move.requests, np.int64)
        match move:
            case Assign():
                self._assign(move)
            case Withdraw():
                self.workers[move.worker].withdraw(ids)
            case Restart() | Drop():
                if self.tools:
                    self.tools.cancel(move.requests, self.requests)
                    self.tools.turns.restart(ids, self.requests)
                wasted = self.requests.restart(ids)
                self.state.wasted_tokens += wasted
                if isinstance(move, Drop):
                    self.state.dropped_responses += len(ids)
                    self.state.dropped_tokens += wasted
                if self.counts is not None:
                    self.counts.forget(ids)
            case TrainOn():
                self.state.chosen = ids

    def _assign(self, command: Assign) -> None:
        requests, ids = self.requests, np.array(command.requests, np.int64)
        requests.begin(ids, command.worker, self.version, self.env.now)
        target = self.tools.turns.target(ids) if self.tools else requests.length[ids]
        if command.chunk_tokens:
            target = np.minimum(target, requests.emitted[ids] + command.chunk_tokens)
        requests.target[ids] = target
        submission = requests.submission(ids, command.kv_kept)
        if self.tools:
            submission = self.tools.turns.submission(ids, submission)
        rollout = Rollout(self.state.step, self.drafter.version, self.drafter.exponent)
        lent_s = self.phases.lend_s if command.worker >= len(self.rollouts) else 0.0
        self._back_s = max(self._back_s, lent_s)
        self.workers[command.worker].assign(rollout, submission, lent_s)

    def done(self, requests: Ints, finish_s: np.ndarray | float) -> None:
        """Note when requests, [n], were done."""
        self.requests.finish(requests, self.version, finish_s)

    def finished(self, worker: int, requests: tuple[int, ...], context_tokens: int) -> None:
        """Take a worker's report and carry out what follows from it; a chunk may have ended instead."""
        ids = np.array(requests, np.int64)
        emitted = self.requests.target[ids]
        self.requests.emitted[ids] = emitted
        if self.tools:
            ids = self.tools.end_turns(worker, ids, self.requests)
            requests, emitted = tuple(ids.tolist()), self.requests.target[ids]
            if not requests:
                return
        held = context_tokens if self.spec.watches else 0
        if not self.spec.withdraws:  # nor does it use chunks
            self._finish(RequestsFinished(self.env.now, worker, requests, held))
            return
        whole = emitted >= self.requests.length[ids]
        if not whole.all():
            chunks, tokens = tuple(ids[~whole].tolist()), tuple(emitted[~whole].tolist())
            self._tell(ChunksEnded(self.env.now, worker, chunks, tokens))
        if whole.any():
            self._finish(RequestsFinished(self.env.now, worker, tuple(ids[whole].tolist()), held))

    def _finish(self, event: RequestsFinished) -> None:
        self._tell(event)
        if self.scheduler.schedule.scores_early:
            self.env.process(self._score(event.requests))

    def _score(self, requests: tuple[int, ...]) -> Process:
        """Make rewards while others generate: one response after the other, each known a while later."""
        latency_s, each_s = self.phases.reward_times_s
        self._scored_s = max(self._scored_s, self.env.now) + each_s * len(requests)
        yield self.env.timeout(self._scored_s + latency_s - self.env.now)
        self._tell(RewardsReady(self.env.now, requests))

    def _tell(self, event: ClusterEvent) -> None:
        """Hand an event over and carry out what follows; idle time is the pause's while there is one."""
        commands = self.scheduler.handle(event)
        if self.scheduler.pausing and not self.state.pausing:
            self._end_rollout()
            self._rest(pausing=True)
        self._execute(commands)

    def _rest(self, pausing: bool) -> None:
        self.state.pausing = pausing
        for worker in self.rollouts:
            worker.rest("sync_pause" if pausing else "admission_wait")

    def withdrawn(self, worker: int, requests: Ints, emitted: Ints) -> None:
        """Take back requests, [n], that a worker gave back after so many tokens each, [n]."""
        self.requests.emitted[requests] = emitted
        if self.tools:
            self.tools.turns.stopped(requests, self.requests)
        ids, tokens = tuple(requests.tolist()), tuple(emitted.tolist())
        self._tell(RequestsWithdrawn(self.env.now, worker, ids, tokens))

    def _end_rollout(self) -> None:
        """Book the wait for the longest response, once a step, to all workers that do not train."""
        if self.state.rollout_end_s >= 0.0:
            return
        self.state.rollout_end_s = self.env.now
        if self.trainers:
            self._book_all("batch_wait")
            return
        for worker, each in enumerate(self.workers):
            if self.tools:
                each.close()
            if worker not in self._training:
                self._book(worker, each.waits_for)

    def _end_handover(self) -> None:
        """Book the wait for those that stop training."""
        if not self.trainers:
            self._book_all("preempt_wait")

    def _train(self, worker: int) -> Process:
        """Train the drafter on an idle worker until interrupted."""
        config, cause, start_s = self.drafter.config, "drafter_activation", self.env.now
        try:
            yield self.env.timeout(config.activation_s)
            self._book(worker, cause)
            cause, start_s = "drafter_training", self.env.now
            yield self.env.event()
        except simpy.Interrupt:
            self._book(worker, cause)
        trained_s = self.env.now - start_s if cause == "drafter_training" else 0.0
        tokens = int(trained_s * config.training_tokens_per_s)
        self.state.trained_tokens += tokens
        yield self.env.timeout(config.stop_s)
        self._book(worker, "drafter_stop")
        del self._training[worker]
        self._tell(TrainingStopped(self.env.now, worker, tokens))

    def _phase(self, command: BeginPhase) -> Process:
        phase = command.phase
        yield from self._publish()
        yield from self._take_back()
        trained = self.state.trained(self.requests)
        tokens = int((self.requests.length[trained] + self.requests.prompt_tokens[trained]).sum())
        share = len(trained) / self._batch if self._batch else 1.0
        seconds = self.phases.seconds(phase, len(trained), tokens, share)
        if self.trainers and phase == "weight_sync":
            yield from self._sync(seconds, command.kv_kept)
        else:
            yield self.env.timeout(seconds)
        self._book_all(phase)
        if phase == "policy_update":
            self.drafter.policy_updated()
        if phase == "weight_sync" and self.trainers:
            self.version = self.state.step + 1
            self._rest(pausing=False)
        self._tell(PhaseEnded(self.env.now, phase))

    def _sync(self, seconds: float, kv_kept: bool) -> Process:
        """Send weights to engines that go on generating before and afterwards."""
        yield self.env.timeout(self.phases.sync_pause_s)
        self._book_all("sync_pause")
        exponent = self.drafter.exponent
        yield self.env.all_of([each.reload(seconds, exponent, kv_kept) for each in self.rollouts])

    def _take_back(self) -> Process:
        """Wait for trainers that were lent."""
        seconds, self._back_s = self._back_s, 0.0
        if seconds:
            yield self.env.timeout(seconds)
            self._book_all("lend")

    def _publish(self) -> Process:
        seconds, self._publish_s = self._publish_s, 0.0
        if seconds:
            yield self.env.timeout(seconds)
            self._book_all("drafter_publish")

    def _end_step(self) -> Process:
        yield from self._publish()
        yield from self._take_back()
        self._end_handover()
        self.state.over.succeed()

    def _book(self, worker: int, cause: str) -> None:
        self.workers[worker].timeline.book(cause, self.state.step, self.env.now)

    def _book_all(self, cause: str) -> None:
        """Book the time of all who take part in the phases."""
        for trainer in self.trainers:
            trainer.book(cause, self.state.step, self.env.now)
        for worker in range(0 if self.trainers else len(self.workers)):
            self._book(worker, cause)

    def _turn(self, step: int) -> None:
        """Cut the time of workers that never stop, at the boundary before or after `step`."""
        if self.trainers:
            for worker in self.workers:
                worker.turn(step)

    def tables(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Return responses, intervals and steps as tlt.traces.runs.runfolder wants them."""
        return self.log.tables(self.timelines)

    @property
    def timelines(self) -> list[Timeline]:
        """Where the time of every worker went, those that train included."""
        return [*(worker.timeline for worker in self.rollouts), *self.trainers]

    def draft_table(self) -> pd.DataFrame:
        """Return acceptance by request as tlt.traces.runs.request_acceptance wants it; empty: not counted."""
        return (self.counts or DraftCounts()).table(self.log.acceptance)
