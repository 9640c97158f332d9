"""The live cluster of one policy: carries out what the ClusterScheduler decides, on the wall clock.

Its twin on the simulated clock is tlt.sim.model.cluster; both match the same commands in the same order. What
a worker reports arrives a moment after it happened: the scheduler gets the time of arrival.

In a replay the requests of a worker that dies go to the others. In RL training a step cannot be finished
without it, because its part of the policy's gradient is gone: the run stops, and goes on from its last
checkpoint when it is started again.

In a replay nothing is trained. Phases are waits, and the weight sync loads the weights again. Where rollouts
go on while the policy is trained, workers that would train it have a line in the books and no process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tlt.realrun.driver.books import Books
from tlt.realrun.driver.clock import PolicyClock, Timers
from tlt.realrun.driver.requests import Fresh, LiveRequests
from tlt.realrun.driver.step import Drafter, LiveStep, Loss
from tlt.realrun.driver.tools import Tools
from tlt.realrun.driver.update import Learning, drafters_measured, parts_of
from tlt.realrun.workers.executor import GOES_ON, Executor, Heard, Lost, WorkerError
from tlt.realrun.workers.messages import (
    Abandon,
    Finish,
    Order,
    Phase,
    PhaseDone,
    Publish,
    Reload,
    Reloaded,
    Report,
    Serve,
    StopTrain,
    Train,
    Trained,
    Withdraw,
    Withdrawn,
    Work,
)
from tlt.traces.runs.records import in_order
from tltsched import commands, events
from tltsched.event_log import RecordedCluster
from tltsched.schedules.base import Move, Schedule


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
        waits_s: dict[str, float] | None = None,
        trainers: Sequence[int] = (),
    ) -> None:
        """`make_scheduler` takes the sink of its records. Without `learning` nothing is trained: `waits_s`
        are the seconds of phases, and `trainers` the numbers of workers that are in the books alone.
        """
        self.policy = policy
        self.executor = executor
        self.workers = list(workers)  # those that live
        self.clock = clock
        self.drafter = drafter
        self.learning = learning
        self.waits_s = waits_s or {}
        self.requests = LiveRequests()
        self.timers = Timers()
        self.state = LiveStep(step=-1, start_s=clock.now_s, policy=policy)
        self.books = Books(clock, trainers)
        self.tools = Tools(clock, self.timers, self.requests, self.books, self._tell, self._done)
        self._lines: list[bytes] = []
        self._worker_lines: dict[int, list[bytes]] = {}
        self.scheduler = make_scheduler(self._lines.append)
        self.spec = self.scheduler.config.schedule_spec()
        self._due: dict[int, int] = {}  # worker -> messages Work that it has not said to be through with
        self._phase_due: set[int] = set()  # workers whose part of the phase is not done
        self._over = True  # whether the step has ended
        self.version = 0  # policy updates that the rollouts' weights have seen
        self._last_s = 0.0  # when the last request left its worker

    def run(self, step: int, fresh: Fresh) -> LiveStep:
        """Run one step; returns what it has seen, once all workers rest.

        Raises WorkerError if no worker is left, or if one dies in RL training.
        """
        self._begin(step, fresh)
        while not self._over or self._due:
            self._wait()
        self._close()
        self._take_lines()
        return self.state

    def run_through(
        self, steps: Iterable[int], draw: Callable[[int, Schedule], Fresh], done: Callable[[int], None]
    ) -> list[LiveStep]:
        """Run steps whose rollouts do not stop between them, and drop what is under way after the last one.

        `draw(step, schedule)` gives what a step begins with, `done(step)` is called after each. All records
        are in the last step. Raises WorkerError if no worker is left.
        """
        states = []
        for step in steps:
            self._begin(step, draw(step, self.scheduler.schedule))
            while not self._over:
                self._wait()
            self._close()
            states.append(self.state)
            done(step)
        self.clock.stop()
        self.timers.clear()
        self._send_all(Abandon(self.policy))
        while self._due:
            self._wait()
        self._take_lines()
        return states

    def _wait(self) -> None:
        """Wait for a worker or for the time that is due next, and do what follows."""
        heard = self.executor.receive_within(self.timers.left_s(self.clock.read()))
        if heard is not None:
            self._hear(*heard)
        self.timers.run(self.clock.read())

    def _close(self) -> None:
        """Complete what is known of a step that is over."""
        self.requests.close(self.state)
        self.state.drafter_next = self.drafter.kind
        self.state.serves_next = (self.drafter.version, self.drafter.age_steps)

    def _take_lines(self) -> None:
        self.state.lines = in_order([self._lines, *self._worker_lines.values()])
        self._lines.clear()
        self._worker_lines.clear()

    def lose(self, worker: int) -> None:
        """Take in, between two steps, that a worker died in another policy's turn."""
        if worker in self.workers:  # else it was dead before this call of the replay
            self.workers.remove(worker)
        self._tell(events.WorkerLost(self.clock.now_s, worker))

    def _begin(self, step: int, fresh: Fresh) -> None:
        self.drafter.begin_step()
        if self.spec.keeps_order:
            self.requests.clear()
        if not self.spec.overlaps:
            self.version = step
        self.state = LiveStep(
            step=step,
            start_s=self.clock.now_s,
            drafter_version=self.drafter.version,
            drafter_age_steps=self.drafter.age_steps,
            policy=self.policy,
        )
        self.books.begin(self.state)
        self.requests.add(fresh.requests)
        self.requests.sessions.begin(fresh.turns)
        self._over, self._last_s = False, self.clock.now_s
        if not self.clock.running:
            self.clock.start()
        hint = self.scheduler.config.knows_lengths()
        rows = tuple(self.requests.row(request.id, hint) for request in fresh.requests)
        event = events.StepBegan(self.state.start_s, step, rows, fresh.groups, fresh.samples)
        self._tell(event)

    def _tell(self, event: events.ClusterEvent) -> None:
        """Hand an event over and carry out what follows; idle time is the pause's while there is one."""
        orders = self.scheduler.handle(event)
        if self.scheduler.pausing and not self.books.pausing:
            self._end_rollout()
            self.books.pausing = True
        self._execute(orders)

    def _execute(self, orders: Sequence[commands.ClusterCommand]) -> None:
        for command in orders:
            match command:
                case commands.CallTools():
                    self.tools.call(command)
                case commands.StartTraining():
                    for worker in command.workers:
                        self.books.book(worker, "tail_idle")
                        self.books.training.add(worker)
                        self.executor.send(worker, Train(self.state.step, self.clock.origin_s))
                case commands.StopTraining():
                    if not self.scheduler.rolling_out:
                        self._end_rollout()
                    for worker in command.workers:
                        self.executor.send(worker, StopTrain())
                case commands.PublishDrafter() | commands.ServeDrafter():
                    self._serve(command)
                case commands.BeginPhase():
                    self._end_rollout()
                    self.books.end_handover(self.workers)
                    self._phase(command)
                case commands.EndStep():
                    self._end_step()
                case _:
                    self._move(command)

    def _serve(self, command: commands.PublishDrafter | commands.ServeDrafter) -> None:
        """Give all workers another head, or another drafter."""
        if isinstance(command, commands.ServeDrafter):
            self.drafter.kind = command.drafter
            self._send_all(Serve(command.drafter))
            return
        self.drafter.publish(command.version)
        assert self.learning is not None, "a replay trains nothing"
        self._send_all(Publish(command.version, self.clock.origin_s, self.learning.heads))

    def _move(self, move: Move) -> None:
        """Carry out what the schedule decided."""
        state = self.state
        match move:
            case commands.Assign():
                self._assign(move)
            case commands.Withdraw():
                order = Withdraw(self.policy, state.step, self.clock.origin_s, move.requests)
                self.executor.send(move.worker, order)
            case commands.Restart():
                state.wasted_tokens += self.requests.restart(move.requests)
            case commands.Drop():
                state.note_dropped(len(move.requests), self.requests.drop(move.requests))
            case commands.TrainOn():
                state.responses = [self.requests.response(request) for request in move.requests]

    def _assign(self, command: commands.Assign) -> None:
        worker, state = command.worker, self.state
        state.drafter = self.drafter.kind
        if worker not in self._due:  # else it was through, and gets what another had, or what is new
            self.books.resume(worker)
        self._due[worker] = self._due.get(worker, 0) + 1
        requests = self.requests.assign(command.requests, worker, self.version, self.clock.now_s)
        self.executor.send(worker, Work(self.policy, state.step, self.clock.origin_s, tuple(requests)))

    def _hear(self, worker: int, answer: Heard) -> None:
        match answer:
            case Report():
                self._finished(worker, answer)
            case Withdrawn():
                self._withdrawn(worker, answer)
            case Reloaded():
                self.books.spent(worker, answer.intervals)
                self._part_done(worker, "weight_sync", answer.t_s)
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
        state = self.state
        self._worker_lines.setdefault(worker, []).extend(report.lines)
        state.count_all(report.lines)
        self.books.spent(worker, report.intervals)
        state.engine_steps.append((worker, report.engine_steps))
        state.turns += self.requests.sessions.count(report.found)
        self.requests.count(report.acceptance)
        if report.over:
            self._due[worker] -= report.works
            if not self._due[worker]:
                del self._due[worker]
        finishes = self.tools.end_turns(worker, report.finished, report.t_s)
        self._done(worker, finishes)
        if finishes:
            requests = tuple(each.request for each in finishes)
            held = report.context_tokens if self.spec.watches else 0
            event = events.RequestsFinished(self.clock.read(report.t_s), worker, requests, held)
            self._tell(event)
            if self.scheduler.schedule.scores_early:
                self.timers.at(
                    self.clock.now_s + self.waits_s.get("reward", 0.0), partial(self._score, requests)
                )

    def _score(self, requests: tuple[int, ...]) -> None:
        """Tell that the rewards of requests are known, of those that nobody has dropped meanwhile."""
        if alive := tuple(request for request in requests if request in self.requests.alive):
            self._tell(events.RewardsReady(self.clock.now_s, alive))

    def _done(self, worker: int, finishes: Sequence[Finish]) -> None:
        """Note responses that are done."""
        self._last_s = max([self._last_s, *(each.finish_s for each in finishes)])
        done = self.requests.finish(worker, finishes, self.version)
        self.state.responses += done if self.spec.keeps_order else ()  # else commands.TrainOn names them

    def _withdrawn(self, worker: int, answer: Withdrawn) -> None:
        """Take back what a worker has let go of."""
        self.requests.take_back(answer.requests, answer.tokens)
        self._last_s = max(self._last_s, answer.t_s)
        counts = tuple(len(tokens) for tokens in answer.tokens)
        event = events.RequestsWithdrawn(self.clock.read(answer.t_s), worker, answer.requests, counts)
        self._tell(event)

    def _trained(self, worker: int, trained: Trained) -> None:
        """Take in that a worker has left drafter training."""
        self.books.training.discard(worker)
        self.books.spent(worker, trained.intervals)
        tokens = self.state.note_trained(worker, trained)
        now_s = self.clock.read(trained.t_s)
        self._tell(events.TrainingStopped(now_s, worker, tokens))

    def _phase_done(self, worker: int, done: PhaseDone) -> None:
        """Take in what one worker's part of a phase came to."""
        self.books.spent(worker, done.intervals)
        self.state.note_phase(done)
        self._part_done(worker, done.phase, done.t_s)

    def _part_done(self, worker: int, phase: str, reported_s: float) -> None:
        """Note that a worker's part of a phase is done; when all have theirs, the phase is over."""
        self._phase_due.discard(worker)
        self.clock.read(reported_s)
        if not self._phase_due:
            self._phase_over(phase)

    def _phase_over(self, phase: str) -> None:
        now_s = self.clock.read()
        self.books.end_phase(self.workers, phase)
        if phase == "logprob" and self.learning and self.scheduler.config.fallback.enabled:
            measured = drafters_measured(self.state, now_s, self.learning.most_drafts)
            self._tell(measured)
        if phase == "policy_update":
            self.drafter.policy_updated()
        if phase == "weight_sync" and self.spec.overlaps:
            self.version, self.books.pausing = self.state.step + 1, False
        self._tell(events.PhaseEnded(now_s, phase))

    def _lost(self, worker: int, lost: Lost) -> None:
        """Book a dead worker's time up to its death, and give its requests to the others."""
        state, why = self.state, lost.told
        if self.learning is not None:
            raise WorkerError(f"worker {worker} died in step {state.step} of {self.policy}: {why}\n{GOES_ON}")
        if len(self.workers) == 1:
            raise WorkerError(f"worker {worker}, the last one, died: {why}")
        self.workers.remove(worker)
        self._due.pop(worker, None)
        now_s = self.clock.read()
        if self.clock.running:
            self.books.lose(worker)
        state.losses.append(Loss(worker, state.step, self.policy, now_s, lost.reason))
        self.requests.lose(worker)
        self._tell(events.WorkerLost(now_s, worker))
        if worker in self._phase_due:
            self._part_done(worker, "weight_sync", now_s)

    def _end_rollout(self) -> None:
        """Note the end of the rollout, once a step."""
        if self.state.rollout_end_s < 0.0:
            self.state.rollout_end_s = self.clock.now_s if self.spec.overlaps else self._last_s
            self._abandon()
            self.books.end_rollout(self.workers)

    def _abandon(self) -> None:
        """End the rollouts of workers that wait for sessions."""
        if self.requests.sessions.by_id:
            for worker in self._due:
                self.executor.send(worker, Abandon(self.policy))

    def _phase(self, command: commands.BeginPhase) -> None:
        """Begin a phase: on all workers, or as a wait."""
        phase, step, origin_s = command.phase, self.state.step, self.clock.origin_s
        if phase == "weight_sync":
            self.books.end_pause()
        if phase in self.waits_s:
            self.timers.at(self.clock.now_s + self.waits_s[phase], partial(self._phase_over, phase))
            return
        self._phase_due = set(self.workers)
        if self.learning is None:
            self._send_all(Reload(self.policy, step, origin_s, step + 1, command.kv_kept))
            return
        update = phase == "policy_update"
        values, parts = parts_of(self.state, self.requests, self.learning) if update else ({}, ())
        self._send_all(Phase(phase, step, origin_s, values, parts))

    def _end_step(self) -> None:
        """Stop the clock unless rollouts go on; a rollout that no phase follows ends with its step."""
        if not self.spec.overlaps:
            self.clock.stop()
        self._over = True
        self.state.end_s = self.clock.now_s
        if self.state.rollout_end_s < 0.0:
            self.state.rollout_end_s = self.state.end_s
            self._abandon()
            self.books.end_rollout(())

    def _send_all(self, order: Order) -> None:
        for worker in self.workers:
            self.executor.send(worker, order)
