"""The live cluster in RL training: rollouts as in a replay, drafter training on idle workers, and phases.

It carries out what the ClusterScheduler decides, as tlt.sim.model.cluster does on the simulated clock. If a
worker dies its step cannot be finished, because its part of the policy's gradient is gone: the run stops, and
goes on from its last checkpoint when it is started again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.messages import (
    HeadStep,
    Phase,
    PhaseDone,
    Probe,
    Publish,
    Report,
    Serve,
    StopTrain,
    Train,
    Trained,
)
from tlt.realrun.replay.cluster import Cluster
from tlt.realrun.replay.parts import Interval, Rollout
from tlt.realrun.training.policy.advantages import advantages
from tlt.realrun.workers.local import Executor, Heard, Lost, WorkerError
from tlt.traces.runs.acceptance import length_with_bonus
from tltsched.commands import (
    BeginPhase,
    ClusterCommand,
    EndStep,
    PublishDrafter,
    ServeDrafter,
    StartTraining,
    StopTraining,
)
from tltsched.drafter_choice import Serving
from tltsched.event_log import RecordedCluster, read
from tltsched.events import DecisionEnded, DraftersMeasured, PhaseEnded, TrainingStopped

Minibatch = tuple[tuple[int, ...], int]


class StepPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All about one RL step of one policy; `served` is the drafter's version in its rollout (-1: none)."""

    rollout: Rollout
    rollout_end_s: float
    handover_end_s: float
    rewards: dict[int, float]
    facts: dict[str, float]
    heads: dict[int, tuple[HeadStep, ...]]
    probes: tuple[Probe, ...]
    scored_early: int
    stop_s: float
    served: int
    age_steps: int
    trained_tokens: int
    serves_next: tuple[int, int]  # version and age at the end of the step
    drafter: Serving = "head"  # that the rollout drafted with
    drafter_next: Serving = "head"


class TrainingCluster(Cluster):
    """Drives the RL steps of one policy, one after the other."""

    def __init__(
        self,
        policy: str,
        make_scheduler: Callable[[Callable[[bytes], object]], RecordedCluster],
        executor: Executor,
        workers: Sequence[int],
        elapsed_s: float,
        *,
        samples: int,
        minibatches: int,
        scale_advantages: bool,
        heads: str,
        serving: tuple[int, int],
        drafter: Serving,
        most_drafts: int,
    ) -> None:
        """`samples` responses form a group; `heads` is where published heads go.

        `serving` is (version, age in policy updates) of the head that serves now; version -1: none. `drafter`
        is what the engines draft with now, `most_drafts` the largest K.
        """
        super().__init__(policy, make_scheduler, executor, workers, elapsed_s)
        self._samples = samples
        self._minibatches = minibatches
        self._scale = scale_advantages
        self._heads = heads
        self._version, self._age_steps = serving
        self._drafter = drafter
        self._most_drafts = most_drafts

    def run_step(self, step: int, requests: Sequence[EngineRequest]) -> StepPart:
        """Run a whole RL step. Raises WorkerError if a worker dies in it."""
        self._served = (self._version, self._age_steps)
        self._rollout_end_s = self._handover_end_s = -1.0
        self._last_finish_s = self.elapsed_s
        self._rewards: dict[int, float] = {}
        self._facts: dict[str, float] = {}
        self._trained: dict[int, tuple[HeadStep, ...]] = {}
        self._probes: list[Probe] = []
        self._trainers: set[int] = set()
        self._scored_early, self._stop_s, self._updates = 0, 0.0, 0
        self._phase_due: set[int] = set()
        rollout = self.rollout(step, requests)
        return StepPart(
            drafter=self._drafted_with,
            drafter_next=self._drafter,
            rollout=rollout,
            rollout_end_s=self._rollout_end_s,
            handover_end_s=self._handover_end_s,
            rewards=self._rewards,
            facts=self._facts,
            heads=self._trained,
            probes=tuple(self._probes),
            scored_early=self._scored_early,
            stop_s=self._stop_s,
            served=self._served[0],
            age_steps=self._served[1],
            trained_tokens=sum(head.tokens for heads in self._trained.values() for head in heads),
            serves_next=(self._version, self._age_steps),
        )

    def group_of(self, request: int) -> int:
        """Return the prompt group of a request."""
        return request // self._samples

    def _assign(self, worker: int, indices: tuple[int, ...]) -> None:
        self._drafted_with = self._drafter
        super()._assign(worker, indices)

    def _hear(self, worker: int, answer: Heard) -> None:
        match answer:
            case Trained():
                self._stop(worker, answer)
            case PhaseDone():
                self._end_part(worker, answer)
            case Lost():
                raise WorkerError(
                    f"worker {worker} died in step {self.step} of {self.policy}: "
                    f"{answer.text or answer.reason}\n"
                    "start the same command again: it goes on from the last checkpoint"
                )
            case _:
                super()._hear(worker, answer)

    def _carry_out(self, command: ClusterCommand) -> None:
        match command:
            case StartTraining():
                for worker in command.workers:
                    self._book(worker, "tail_idle")
                    self._trainers.add(worker)
                    self.executor.send(worker, Train(self.step, self._origin(worker)))
            case StopTraining():
                self._end_rollout()
                for worker in command.workers:
                    self.executor.send(worker, StopTrain())
            case PublishDrafter():
                self._end_rollout()
                self._publish(command)
            case ServeDrafter():
                self._drafter = command.drafter
                for worker in self._living:
                    self.executor.send(worker, Serve(command.drafter))
            case BeginPhase():
                self._end_rollout()
                self._begin_phase(command.phase)
            case EndStep():
                self._end_rollout()
                super()._carry_out(command)
            case _:
                super()._carry_out(command)

    # --- drafter training -----------------------------------------------------------------------------

    def _stop(self, worker: int, trained: Trained) -> None:
        """Take in that a worker has left training."""
        self._trainers.discard(worker)
        self._intervals += [Interval(worker, cause, end_s) for cause, end_s in trained.intervals]
        self._trained[worker] = self._trained.get(worker, ()) + trained.steps
        self._scored_early += trained.scored
        self._stop_s = max(self._stop_s, trained.stop_s)
        tokens = sum(head.tokens for head in trained.steps)
        self._execute(self.scheduler.handle(TrainingStopped(self._now(trained.t_s), worker, tokens)))

    def _publish(self, command: PublishDrafter) -> None:
        # It was trained on the responses of this step: it lags the update that came after them.
        self._version, self._age_steps = command.version, self._updates
        for worker in self._living:
            self.executor.send(worker, Publish(command.version, self._origin(worker), self._heads))

    # --- phases ---------------------------------------------------------------------------------------

    def _end_rollout(self) -> None:
        """Book the wait for the longest response, once a step, and what followed until now."""
        if self._rollout_end_s < 0.0:
            self._rollout_end_s = self._last_finish_s
            for worker in self._living:
                if worker not in self._trainers:  # they say themselves how they spent it
                    self._intervals.append(Interval(worker, "tail_idle", self._rollout_end_s))

    def _begin_phase(self, phase: str) -> None:
        if self._handover_end_s < 0.0:
            self._handover_end_s = self._last_s
            for worker in self._living:
                self._book(worker, "preempt_wait")
        self._phase_due = set(self._living)
        parts: tuple[Minibatch, ...] = ()
        values: dict[int, float] = {}
        if phase == "policy_update":
            parts, values = self._split(), self._advantages()
        for worker in self._living:
            self.executor.send(worker, Phase(phase, self.step, self._origin(worker), values, parts))

    def _end_part(self, worker: int, done: PhaseDone) -> None:
        """Take in one worker's part; when all have theirs, the phase is over."""
        self._intervals += [Interval(worker, cause, end_s) for cause, end_s in done.intervals]
        self._rewards |= done.rewards
        self._probes += done.probes
        for name, value in done.facts.items():
            self._facts[name] = self._facts.get(name, 0.0) + value
        self._phase_due.discard(worker)
        t_s = self._now(done.t_s)
        if self._phase_due:
            return
        for living in self._living:
            self._book(living, done.phase)
        if done.phase == "logprob" and self.scheduler.config.fallback.enabled:
            self._execute(self.scheduler.handle(self._measured(t_s)))
        if done.phase == "policy_update":
            self._updates, self._age_steps = 1, self._age_steps + 1
        self._execute(self.scheduler.handle(PhaseEnded(t_s, done.phase)))

    def _measured(self, t_s: float) -> DraftersMeasured:
        """Return what each drafter gets accepted: the head by its probes, the other where it served."""
        served = self._drafted_with == "model_free"
        return DraftersMeasured(
            t_s, head_length(self._probes, self._most_drafts), self._drafted_length() if served else None
        )

    def _drafted_length(self) -> float | None:
        """Return the acceptance length of this rollout's drafting engine steps; None if there was none."""
        intervals = [
            record.body
            for lines in self._worker_lines.values()
            for record in read(lines)
            if isinstance(record.body, DecisionEnded) and record.body.draft_config.depth
        ]
        accepted_tokens = sum(sum(interval.accepted_by_position) for interval in intervals)
        return length_with_bonus(accepted_tokens, sum(interval.request_steps for interval in intervals))

    def _advantages(self) -> dict[int, float]:
        requests = sorted(self._rewards)
        rewards = [self._rewards[request] for request in requests]
        groups = [self.group_of(request) for request in requests]
        return dict(zip(requests, advantages(rewards, groups, self._scale), strict=True))

    def _split(self) -> tuple[Minibatch, ...]:
        """Return the requests of each optimizer step, whole groups, with their response tokens."""
        tokens = {response.request: response.tokens for response in self._responses}
        groups = sorted({self.group_of(request) for request in tokens})
        count = min(self._minibatches, len(groups))
        parts = []
        for part in range(count):
            mine = set(groups[part::count])
            requests = tuple(sorted(request for request in tokens if self.group_of(request) in mine))
            parts.append((requests, sum(tokens[request] for request in requests)))
        return tuple(parts)

    def _take(self, worker: int, report: Report) -> None:
        if report.finished:
            self._last_finish_s = max(self._last_finish_s, *(finish.finish_s for finish in report.finished))
        super()._take(worker, report)

    def _book(self, worker: int, cause: str) -> None:
        """Book a worker's time up to the policy's newest time."""
        self._intervals.append(Interval(worker, cause, self._last_s))

    def _origin(self, worker: int) -> float:
        """Return the reading of a worker's clock at which the policy's stood at 0."""
        return self._origin_s + self.executor.clock_offset_s(worker)


def head_length(probes: Sequence[Probe], most_drafts: int) -> float | None:
    """Return the acceptance length, bonus counted, that probes expect of the serving head; None without any.

    Drafts and targets are taken as sampled; positions from `most_drafts` on are never drafted.
    """
    mine = [probe for probe in probes if probe.head == "serving" and probe.position < most_drafts]
    tokens, shared = dict[int, int](), dict[int, float]()
    for probe in mine:
        tokens[probe.position] = tokens.get(probe.position, 0) + probe.tokens
        shared[probe.position] = shared.get(probe.position, 0.0) + probe.sampled * probe.tokens
    if not mine:
        return None
    return 1.0 + sum(shared[position] / max(count, 1) for position, count in tokens.items())
