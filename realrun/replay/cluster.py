"""The live cluster of one policy: carries out what the ClusterScheduler decides, on the wall clock.

The policy's clock runs during its own rollouts alone, so policies may take turns on the same workers. What a
worker reports arrives a moment after it happened: the scheduler gets the time of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.messages import Report, Work
from tlt.realrun.replay.parts import Interval, Loss, Response, Rollout, in_order
from tlt.realrun.workers.local import Executor, Heard, Lost, WorkerError
from tltsched.cluster import ClusterConfig
from tltsched.commands import Assign, ClusterCommand, EndStep
from tltsched.errors import InputError
from tltsched.event_log import RecordedCluster
from tltsched.events import Request, RequestsFinished, StepBegan, WorkerLost
from tltsched.schedules import schedule_name


def check_schedule(config: ClusterConfig) -> None:
    """Raise InputError for a rollout schedule that needs more of live workers than a step's requests."""
    spec = config.schedule_spec()
    if spec.watches or spec.withdraws or spec.knows_lengths or not spec.keeps_order:
        raise InputError(
            "cluster.schedule", schedule_name(spec), "synchronous",
            "live workers take requests when a step begins and let none go: simulate this schedule instead",
        )  # fmt: skip


class Cluster:
    """Drives the rollouts of one policy, one after the other."""

    def __init__(
        self,
        policy: str,
        make_scheduler: Callable[[Callable[[bytes], object]], RecordedCluster],
        executor: Executor,
        workers: Sequence[int],
        elapsed_s: float,
    ) -> None:
        """`make_scheduler` takes the sink of its records; the policy's clock goes on from `elapsed_s`."""
        self.policy = policy
        self.executor = executor
        self.elapsed_s = elapsed_s
        self._lines: list[bytes] = []
        self.scheduler = make_scheduler(self._lines.append)
        self._living = list(workers)
        self._losses: list[Loss] = []

    def lose(self, loss: Loss) -> None:
        """Take in, between two rollouts, that a worker died in another policy's turn."""
        if loss.worker in self._living:  # else it was dead before this call of the replay
            self._living.remove(loss.worker)
        self._execute(self.scheduler.handle(WorkerLost(self.elapsed_s, loss.worker)))

    def rollout(self, step: int, requests: Sequence[EngineRequest]) -> Rollout:
        """Generate all requests; returns when all workers rest. Raises WorkerError if none is left."""
        self._begin(step, requests)
        while not self._ended or self._due:
            self._hear(*self.executor.receive())
        return self._rollout()

    def _hear(self, worker: int, answer: Heard) -> None:
        """Take in what a worker says."""
        match answer:
            case Report():
                self._take(worker, answer)
            case Lost():
                self._lose(worker, answer)
            case _:
                raise AssertionError(f"worker {worker} was not asked for this: {answer}")

    def _begin(self, step: int, requests: Sequence[EngineRequest]) -> None:
        self.step, self.requests = step, requests
        self._start_s = self._last_s = self.elapsed_s
        self._origin_s = perf_counter() - self.elapsed_s
        self._ended = False
        self._due: dict[int, int] = {}  # worker -> messages Work that it has not said to be through with
        self._responses: list[Response] = []
        self._intervals: list[Interval] = []
        self._worker_lines: dict[int, list[bytes]] = {}
        self._engine_steps: list[tuple[int, Report]] = []
        self._losses = []
        rows = tuple(Request(r.id, self.group_of(r.id), len(r.prompt_token_ids)) for r in requests)
        self._execute(self.scheduler.handle(StepBegan(self._start_s, step, rows)))

    def group_of(self, request: int) -> int:
        """Return the prompt group of a request; in a replay each is its own."""
        return request

    def _execute(self, commands: tuple[ClusterCommand, ...]) -> None:
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: ClusterCommand) -> None:
        match command:
            case Assign():
                self._assign(command.worker, command.requests)
            case EndStep():
                self._ended, self.elapsed_s = True, self._last_s
            case _:
                raise AssertionError(f"a replay has neither phases nor training: {command}")

    def _assign(self, worker: int, indices: tuple[int, ...]) -> None:
        if worker not in self._due and any(interval.worker == worker for interval in self._intervals):
            # It was through, and now gets what a worker that died has left.
            self._intervals.append(Interval(worker, "tail_idle", self._last_s))
        self._due[worker] = self._due.get(worker, 0) + 1
        origin_s = self._origin_s + self.executor.clock_offset_s(worker)
        requests = tuple(self.requests[index] for index in indices)
        self.executor.send(worker, Work(self.policy, self.step, origin_s, requests))

    def _take(self, worker: int, report: Report) -> None:
        """Keep what a worker reports and carry out what follows from its finished requests."""
        self._worker_lines.setdefault(worker, []).extend(report.lines)
        self._intervals += [Interval(worker, cause, end_s) for cause, end_s in report.intervals]
        self._engine_steps.append((worker, report))
        finished = tuple(finish.request for finish in report.finished)
        self._responses += [
            Response(finish.request, worker, finish.tokens, finish.finish_s) for finish in report.finished
        ]
        if report.over:
            self._due[worker] -= report.works
            if not self._due[worker]:
                del self._due[worker]
        if finished:
            t_s = self._now(report.t_s)
            self._execute(self.scheduler.handle(RequestsFinished(t_s, worker, finished)))

    def _lose(self, worker: int, lost: Lost) -> None:
        """Book a dead worker's time up to its death, and give its requests to the others."""
        if len(self._living) == 1:
            raise WorkerError(f"worker {worker}, the last one, died: {lost.text or lost.reason}")
        self._living.remove(worker)
        self._due.pop(worker, None)
        t_s = self._now(0.0)
        causes = [interval.cause for interval in self._intervals if interval.worker == worker]
        if not self._ended:
            self._intervals.append(Interval(worker, causes[-1] if causes else "prefill", t_s))
        self._losses.append(Loss(worker, self.step, self.policy, t_s, lost.reason))
        self._execute(self.scheduler.handle(WorkerLost(t_s, worker)))

    def _now(self, reported_s: float) -> float:
        """Return the policy's time, never before what was reported; it stands still after a rollout."""
        if self._ended:
            return self.elapsed_s
        self._last_s = max(perf_counter() - self._origin_s, reported_s, self._last_s)
        return self._last_s

    def _rollout(self) -> Rollout:
        lines = in_order([self._lines, *self._worker_lines.values()])
        self._lines.clear()
        return Rollout(
            policy=self.policy,
            step=self.step,
            start_s=self._start_s,
            end_s=self.elapsed_s,
            responses=tuple(self._responses),
            intervals=tuple(self._intervals),
            lines=lines,
            engine_steps=tuple((worker, report.engine_steps) for worker, report in self._engine_steps),
            losses=tuple(self._losses),
        )
