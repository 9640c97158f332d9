"""The simulated cluster: carries out what the ClusterScheduler decides, on the simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pandas as pd
import simpy

from sim.acceptance import Acceptance
from sim.drafter import Drafter
from sim.phases import Phases
from sim.pool import Limits, RequestPool, Submission
from sim.trajectory import Ints
from sim.worker import Passing, StepTally, Worker
from tltsched.commands import (
    Assign,
    BeginPhase,
    ClusterCommand,
    EndStep,
    PublishDrafter,
    StartTraining,
    StopTraining,
)
from tltsched.events import PhaseEnded, Request, RequestsFinished, StepBegan, TrainingStopped
from tltsched.record import RecordedCluster
from traces.timeline import intervals


class StepRequests(msgspec.Struct, frozen=True):
    """The responses of one RL step as arrays, [n]; a request's id is its index."""

    group: Ints
    prompt_tokens: Ints
    response_tokens: Ints
    capped: np.ndarray


class Cluster:
    """Drives workers, drafter training and phases through the RL steps of a run."""

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: RecordedCluster,
        make_worker: Callable[[int, Callable[[int, tuple[int, ...]], None]], Worker],
        workers: int,
        drafter: Drafter,
        phases: Phases,
        limits: Limits,
        acceptance: Acceptance,
        rng: np.random.Generator,
        show_lengths: bool,
    ) -> None:
        """`make_worker(index, report)` builds a worker; `show_lengths` fills the length hints."""
        self.env = env
        self.scheduler = scheduler
        self.workers = [make_worker(index, self._finished) for index in range(workers)]
        self.drafter = drafter
        self.phases = phases
        self.limits = limits
        self.acceptance = acceptance
        self.rng = rng
        self.show_lengths = show_lengths
        self.responses: list[pd.DataFrame] = []
        self.step_rows: list[dict[str, float | int]] = []
        self.preemptions = 0
        self.largest_draft_batch = 0
        self._trainers: dict[int, simpy.Process] = {}
        self._publish_s = 0.0

    def run(self, steps: Sequence[StepRequests], done: Callable[[int], None]) -> Passing:
        """Run all steps; `done(step)` is called after each."""
        for step, requests in enumerate(steps):
            self._begin(step, requests)
            yield self._step_done
            self._record_step()
            done(step)

    def _begin(self, step: int, requests: StepRequests) -> None:
        count = len(requests.response_tokens)
        self.step, self.requests = step, requests
        self._start_s = self.env.now
        self._rollout_end_s = -1.0
        self._finish_s = np.zeros(count)
        self._worker_of = np.full(count, -1)
        self._exponent = self.acceptance.exponents(count, self.rng)
        self._tally = StepTally()
        self._trained_tokens = 0
        self._step_done = self.env.event()
        self.drafter.begin_step()
        self._served = (self.drafter.version, self.drafter.age_steps)
        hints = requests.response_tokens if self.show_lengths else np.zeros(count, np.int64)
        rows = zip(requests.group.tolist(), requests.prompt_tokens.tolist(), hints.tolist(), strict=True)
        event = StepBegan(self.env.now, step, tuple(Request(index, *row) for index, row in enumerate(rows)))
        self._execute(self.scheduler.handle(event))

    def _execute(self, commands: tuple[ClusterCommand, ...]) -> None:
        for command in commands:
            match command:
                case Assign():
                    self._assign(command.worker, np.array(command.requests, np.int64))
                case StartTraining():
                    for worker in command.workers:
                        self._book(worker, "tail_idle")
                        self._trainers[worker] = self.env.process(self._train(worker))
                case StopTraining():
                    self._end_rollout()
                    for worker in command.workers:
                        self._trainers[worker].interrupt()
                case PublishDrafter():
                    self.drafter.publish(command.version, command.trained_tokens)
                    self._publish_s = self.drafter.config.publish_s
                case BeginPhase():
                    self._end_rollout()
                    self._book_all("preempt_wait")
                    self.env.process(self._phase(command.phase))
                case EndStep():
                    self._end_rollout()
                    self.env.process(self._end_step())

    def _assign(self, worker: int, indices: Ints) -> None:
        requests = self.requests
        self._worker_of[indices] = worker
        submission = Submission(
            ids=indices,
            group=requests.group[indices],
            prompt_tokens=requests.prompt_tokens[indices],
            length=requests.response_tokens[indices],
            exponent=self._exponent[indices],
        )
        self.env.process(
            self.workers[worker].rollout(
                self.step,
                RequestPool(submission, self.limits),
                self._finish_s,
                self.drafter.version,
                self.drafter.exponent,
                self._tally,
            )
        )

    def _finished(self, worker: int, requests: tuple[int, ...]) -> None:
        """Take a worker's report and carry out what follows from it."""
        self._execute(self.scheduler.handle(RequestsFinished(self.env.now, worker, requests)))

    def _end_rollout(self) -> None:
        """Book the wait for the longest response, once a step, to all workers that do not train."""
        if self._rollout_end_s >= 0.0:
            return
        self._rollout_end_s = self.env.now
        for worker in range(len(self.workers)):
            if worker not in self._trainers:
                self._book(worker, "tail_idle")

    def _train(self, worker: int) -> Passing:
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
        self._trained_tokens += tokens
        yield self.env.timeout(config.stop_s)
        self._book(worker, "drafter_stop")
        del self._trainers[worker]
        self._execute(self.scheduler.handle(TrainingStopped(self.env.now, worker, tokens)))

    def _phase(self, phase: str) -> Passing:
        yield from self._publish()
        tokens = int(self.requests.response_tokens.sum() + self.requests.prompt_tokens.sum())
        yield self.env.timeout(self.phases.seconds(phase, len(self._finish_s), tokens))
        self._book_all(phase)
        if phase == "policy_update":
            self.drafter.policy_updated()
        self._execute(self.scheduler.handle(PhaseEnded(self.env.now, phase)))

    def _publish(self) -> Passing:
        seconds, self._publish_s = self._publish_s, 0.0
        if seconds:
            yield self.env.timeout(seconds)
            self._book_all("drafter_publish")

    def _end_step(self) -> Passing:
        yield from self._publish()
        self._book_all("preempt_wait")
        self._step_done.succeed()

    def _book(self, worker: int, cause: str) -> None:
        self.workers[worker].timeline.book(cause, self.step, self.env.now)

    def _book_all(self, cause: str) -> None:
        for worker in range(len(self.workers)):
            self._book(worker, cause)

    def _record_step(self) -> None:
        requests = self.requests
        self.responses.append(
            pd.DataFrame(
                {
                    "step": self.step,
                    "request": np.arange(len(self._finish_s)),
                    "group": requests.group,
                    "worker": self._worker_of,
                    "prompt_tokens": requests.prompt_tokens,
                    "response_tokens": requests.response_tokens,
                    "capped": requests.capped,
                    "start_s": self._start_s,
                    "finish_s": self._finish_s,
                }
            )
        )
        self.preemptions += self._tally.preemptions
        self.largest_draft_batch = max(self.largest_draft_batch, self._tally.largest_draft_batch)
        self.step_rows.append(
            {
                "step": self.step,
                "start_s": self._start_s,
                "rollout_end_s": self._rollout_end_s,
                "end_s": self.env.now,
                "request_cycles": self._tally.request_cycles,
                "accepted_tokens": self._tally.accepted_tokens,
                "drafter_version": self._served[0],
                "drafter_age_steps": self._served[1],
                "trained_tokens": self._trained_tokens,
            }
        )

    def tables(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Return responses, intervals and steps as traces.runfolder wants them."""
        return (
            pd.concat(self.responses, ignore_index=True),
            intervals([worker.timeline for worker in self.workers]),
            pd.DataFrame(self.step_rows),
        )
