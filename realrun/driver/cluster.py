"""The live cluster of one policy: carries out what the ClusterScheduler decides, on the wall clock.

Its twin on the simulated clock is tlt.sim.model.cluster; both match the same commands in the same order. What
a worker reports arrives a moment after it happened: the scheduler gets the time of arrival.

In a replay the requests of a worker that dies go to the others. In RL training a step cannot be finished
without it, because its part of the policy's gradient is gone: the run stops, and goes on from its last
checkpoint when it is started again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tlt.realrun.driver.clock import PolicyClock
from tlt.realrun.driver.step import Drafter, Interval, LiveStep, Loss, Response
from tlt.realrun.driver.update import advantages, head_length, minibatches
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.workers.executor import Executor, Heard, Lost, WorkerError
from tlt.realrun.workers.messages import (
    Minibatch,
    Order,
    Phase,
    PhaseDone,
    Publish,
    Report,
    Serve,
    StopTrain,
    Train,
    Trained,
    Work,
)
from tlt.traces.runs.acceptance import length_with_bonus
from tlt.traces.runs.records import in_order
from tltsched.commands import (
    Assign,
    BeginPhase,
    ClusterCommand,
    EndStep,
    PublishDrafter,
    ServeDrafter,
    StartTraining,
    StopTraining,
)
from tltsched.event_log import RecordedCluster
from tltsched.events import (
    DraftersMeasured,
    PhaseEnded,
    Request,
    RequestsFinished,
    StepBegan,
    TrainingStopped,
    WorkerLost,
)


class Learning(msgspec.Struct, frozen=True, kw_only=True):
    """How RL training goes on behind a rollout."""

    minibatches: int
    scale_advantages: bool
    heads: str  # folder of published heads
    most_drafts: int  # largest K


class Cluster:
    """Drives the steps of one policy, one after the other."""

    def __init__(
        self,
        policy: str,
        make_scheduler: Callable[[Callable[[bytes], object]], RecordedCluster],
        executor: Executor,
        workers: Sequence[int],
        clock: PolicyClock,
        drafter: Drafter,
        learning: Learning | None = None,
    ) -> None:
        """`make_scheduler` takes the sink of its records; without `learning` steps are rollouts alone."""
        self.policy = policy
        self.executor = executor
        self.workers = list(workers)  # those that live
        self.clock = clock
        self.drafter = drafter
        self.learning = learning
        self.requests: dict[int, EngineRequest] = {}
        self.state = LiveStep(step=-1, start_s=clock.now_s, policy=policy)
        self._lines: list[bytes] = []
        self._worker_lines: dict[int, list[bytes]] = {}
        self.scheduler = make_scheduler(self._lines.append)
        self._due: dict[int, int] = {}  # worker -> messages Work that it has not said to be through with
        self._training: set[int] = set()
        self._phase_due: set[int] = set()
        self._last_finish_s = 0.0

    def run(self, step: int, requests: Sequence[EngineRequest]) -> LiveStep:
        """Run one step; returns what it has seen, once all workers rest.

        Raises WorkerError if no worker is left, or if one dies in RL training.
        """
        self._begin(step, requests)
        while self.clock.running or self._due:
            self._hear(*self.executor.receive())
        self.state.lines = in_order([self._lines, *self._worker_lines.values()])
        self._lines.clear()
        self.state.drafter_next = self.drafter.kind
        self.state.serves_next = (self.drafter.version, self.drafter.age_steps)
        return self.state

    def lose(self, worker: int) -> None:
        """Take in, between two steps, that a worker died in another policy's turn."""
        if worker in self.workers:  # else it was dead before this call of the replay
            self.workers.remove(worker)
        self._execute(self.scheduler.handle(WorkerLost(self.clock.now_s, worker)))

    def _begin(self, step: int, requests: Sequence[EngineRequest]) -> None:
        self.drafter.begin_step()
        self.state = LiveStep(
            step=step,
            start_s=self.clock.now_s,
            drafter_version=self.drafter.version,
            drafter_age_steps=self.drafter.age_steps,
            policy=self.policy,
        )
        self.requests = {request.id: request for request in requests}
        self._worker_lines.clear()
        self._last_finish_s = self.clock.now_s
        self.clock.start()
        self._execute(self.scheduler.handle(self._step_began()))

    def _step_began(self) -> StepBegan:
        rows = (
            Request(number, self._group(number), len(request.prompt_token_ids))
            for number, request in self.requests.items()
        )
        return StepBegan(self.state.start_s, self.state.step, tuple(rows))

    def _group(self, request: int) -> int:
        """Return the prompt group of a request; one without is its own."""
        group = self.requests[request].group
        return request if group < 0 else group

    def _execute(self, commands: tuple[ClusterCommand, ...]) -> None:
        for command in commands:
            match command:
                case Assign():
                    self._assign(command)
                case StartTraining():
                    for worker in command.workers:
                        self._book(worker, "tail_idle")
                        self._training.add(worker)
                        self.executor.send(worker, Train(self.state.step, self.clock.origin_s))
                case StopTraining():
                    if not self.scheduler.rolling_out:
                        self._end_rollout()
                    for worker in command.workers:
                        self.executor.send(worker, StopTrain())
                case PublishDrafter():
                    self.drafter.publish(command.version)
                    self._publish()
                case ServeDrafter():
                    self.drafter.kind = command.drafter
                    self._send_all(Serve(command.drafter))
                case BeginPhase():
                    self._end_rollout()
                    self._end_handover()
                    self._phase(command.phase)
                case EndStep():
                    self._end_step()
                case _:
                    raise AssertionError(f"no schedule of live workers gives this: {command}")

    def _assign(self, command: Assign) -> None:
        worker, state = command.worker, self.state
        state.drafter = self.drafter.kind
        if worker not in self._due and any(interval.worker == worker for interval in state.intervals):
            self._book(worker, "tail_idle")  # it was through, and now gets what a worker that died has left
        self._due[worker] = self._due.get(worker, 0) + 1
        requests = tuple(self.requests[request] for request in command.requests)
        self.executor.send(worker, Work(self.policy, state.step, self.clock.origin_s, requests))

    # --- what workers say -----------------------------------------------------------------------------

    def _hear(self, worker: int, answer: Heard) -> None:
        match answer:
            case Report():
                self._finished(worker, answer)
            case Trained():
                self._trained(worker, answer)
            case PhaseDone():
                self._phase_done(worker, answer)
            case Lost():
                self._lost(worker, answer)
            case _:
                raise AssertionError(f"worker {worker} was not asked for this: {answer}")

    def _finished(self, worker: int, report: Report) -> None:
        """Keep what a worker reports and carry out what follows from its finished requests."""
        state, finishes = self.state, report.finished
        self._worker_lines.setdefault(worker, []).extend(report.lines)
        state.count_all(report.lines)
        self._spent(worker, report.intervals)
        state.engine_steps.append((worker, report.engine_steps))
        state.acceptance += report.acceptance
        state.responses += [Response(each.request, worker, each.tokens, each.finish_s) for each in finishes]
        if report.over:
            self._due[worker] -= report.works
            if not self._due[worker]:
                del self._due[worker]
        if finishes:
            self._last_finish_s = max(self._last_finish_s, *(each.finish_s for each in finishes))
            requests = tuple(each.request for each in finishes)
            now_s = self.clock.read(report.t_s)
            self._execute(self.scheduler.handle(RequestsFinished(now_s, worker, requests)))

    def _trained(self, worker: int, trained: Trained) -> None:
        """Take in that a worker has left drafter training."""
        self._training.discard(worker)
        self._spent(worker, trained.intervals)
        state, tokens = self.state, sum(head.tokens for head in trained.steps)
        state.heads[worker] = state.heads.get(worker, ()) + trained.steps
        state.trained_tokens += tokens
        state.scored_early += trained.scored
        state.stop_s = max(state.stop_s, trained.stop_s)
        now_s = self.clock.read(trained.t_s)
        self._execute(self.scheduler.handle(TrainingStopped(now_s, worker, tokens)))

    def _phase_done(self, worker: int, done: PhaseDone) -> None:
        """Take in one worker's part; when all have theirs, the phase is over."""
        self._spent(worker, done.intervals)
        state = self.state
        state.rewards |= done.rewards
        state.probes += done.probes
        for name, value in done.facts.items():
            state.facts[name] = state.facts.get(name, 0.0) + value
        self._phase_due.discard(worker)
        now_s = self.clock.read(done.t_s)
        if self._phase_due:
            return
        self._book_all(done.phase)
        if done.phase == "logprob" and self.scheduler.config.fallback.enabled:
            self._execute(self.scheduler.handle(self._drafters_measured(now_s)))
        if done.phase == "policy_update":
            self.drafter.policy_updated()
        self._execute(self.scheduler.handle(PhaseEnded(now_s, done.phase)))

    def _drafters_measured(self, now_s: float) -> DraftersMeasured:
        """Return what each drafter gets accepted: the head by its probes, the other where it served."""
        state = self.state
        served = state.drafter == "model_free"
        accepted = length_with_bonus(state.accepted_tokens, state.request_steps) if served else None
        return DraftersMeasured(now_s, head_length(state.probes, self._learning.most_drafts), accepted)

    def _lost(self, worker: int, lost: Lost) -> None:
        """Book a dead worker's time up to its death, and give its requests to the others."""
        state, why = self.state, lost.text or lost.reason
        if self.learning is not None:
            raise WorkerError(
                f"worker {worker} died in step {state.step} of {self.policy}: {why}\n"
                "start the same command again: it goes on from the last checkpoint, if there is one"
            )
        if len(self.workers) == 1:
            raise WorkerError(f"worker {worker}, the last one, died: {why}")
        self.workers.remove(worker)
        self._due.pop(worker, None)
        now_s = self.clock.read()
        causes = [interval.cause for interval in state.intervals if interval.worker == worker]
        if self.clock.running:
            self._book(worker, causes[-1] if causes else "prefill")
        state.losses.append(Loss(worker, state.step, self.policy, now_s, lost.reason))
        self._execute(self.scheduler.handle(WorkerLost(now_s, worker)))

    # --- from the rollout to the end of the step ------------------------------------------------------

    def _end_rollout(self) -> None:
        """Book the wait for the longest response, once a step, to all workers that do not train."""
        if self.state.rollout_end_s >= 0.0:
            return
        self.state.rollout_end_s = self._last_finish_s
        for worker in self.workers:
            if worker not in self._training:  # they say themselves how they spent it
                self.state.intervals.append(Interval(worker, "tail_idle", self._last_finish_s))

    def _end_handover(self) -> None:
        if self.state.handover_end_s < 0.0:
            self.state.handover_end_s = self.clock.now_s
            self._book_all("preempt_wait")

    def _phase(self, phase: str) -> None:
        values, parts = self._update() if phase == "policy_update" else ({}, ())
        self._phase_due = set(self.workers)
        self._send_all(Phase(phase, self.state.step, self.clock.origin_s, values, parts))

    def _update(self) -> tuple[dict[int, float], tuple[Minibatch, ...]]:
        """Return the advantage of each response, and which ones go into which optimizer step."""
        rewards = dict(sorted(self.state.rewards.items()))
        groups = {request: self._group(request) for request in self.requests}
        members = [groups[request] for request in rewards]
        values = advantages(list(rewards.values()), members, self._learning.scale_advantages)
        tokens = {response.request: response.tokens for response in self.state.responses}
        parts = minibatches(tokens, groups, self._learning.minibatches)
        return dict(zip(rewards, values, strict=True)), parts

    def _publish(self) -> None:
        self._send_all(Publish(self.drafter.version, self.clock.origin_s, self._learning.heads))

    def _end_step(self) -> None:
        """Stop the clock; a rollout that no phase follows ends with its step."""
        self.clock.stop()
        self.state.end_s = self.clock.now_s
        if self.state.rollout_end_s < 0.0:
            self.state.rollout_end_s = self.state.end_s

    # --- books and messages ---------------------------------------------------------------------------

    @property
    def _learning(self) -> Learning:
        assert self.learning is not None, "a replay has neither phases nor training"
        return self.learning

    def _spent(self, worker: int, intervals: Sequence[tuple[str, float]]) -> None:
        """Book what a worker says of its own time."""
        self.state.intervals += [Interval(worker, cause, end_s) for cause, end_s in intervals]

    def _book(self, worker: int, cause: str) -> None:
        """Book a worker's time up to the policy's newest time."""
        self.state.intervals.append(Interval(worker, cause, self.clock.now_s))

    def _book_all(self, cause: str) -> None:
        """Book the time of all workers."""
        for worker in self.workers:
            self._book(worker, cause)

    def _send_all(self, order: Order) -> None:
        for worker in self.workers:
            self.executor.send(worker, order)
