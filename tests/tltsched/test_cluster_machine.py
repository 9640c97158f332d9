"""Any order of events that a cluster can produce, against the invariants of the cluster's scheduler."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tltsched.cluster_config import ClusterConfig
from tltsched.commands import (
    Assign,
    BeginPhase,
    ClusterCommand,
    EndStep,
    PublishDrafter,
    StartTraining,
    StopTraining,
)
from tltsched.dispatch import DISPATCH
from tltsched.event_log import RecordedCluster, Recorder, SchedulerSetup, build_cluster, encode, read, replay
from tltsched.events import (
    ClusterEvent,
    PhaseEnded,
    Request,
    RequestsFinished,
    StepBegan,
    TrainingStopped,
    WorkerLost,
)
from tltsched.policies.none import NoneConfig
from tltsched.spot import SpotConfig

PHASES = ((), ("reward",), ("reward", "weight_sync"), ("weight_sync", "reward"))


class Cluster(RuleBasedStateMachine):
    """Fake workers that generate, train, stop and die as they like, and do only what they are told."""

    @initialize(
        workers=st.integers(1, 6),
        dispatch=st.sampled_from(sorted(DISPATCH)),
        phases=st.sampled_from(PHASES),
        spot=st.builds(
            SpotConfig,
            enabled=st.booleans(),
            min_idle_workers=st.integers(1, 2),
            max_trainers=st.sampled_from((0, 2)),
            grow=st.booleans(),
            order=st.sampled_from(("longest_idle", "lowest_rank")),
            interval_steps=st.integers(1, 2),
        ),
    )
    def build(self, workers: int, dispatch: str, phases: tuple[str, ...], spot: SpotConfig) -> None:
        self.config = ClusterConfig(dispatch=dispatch, phases=phases, spot=spot)
        self.setup = SchedulerSetup(workers=workers, policy=NoneConfig(), cluster=self.config)
        self.lines: list[bytes] = []
        self.scheduler = RecordedCluster(build_cluster(self.setup), Recorder(self.lines.append))
        self.t_s, self.step, self.version = 0.0, -1, 0
        self.stepping = False
        self.phase: str | None = None
        self.phases_done: list[str] = []
        self.generating: dict[int, list[int]] = {worker: [] for worker in range(workers)}
        self.training: dict[int, bool] = {}  # worker -> whether it was told to stop
        self.orphans: set[int] = set()  # requests of lost workers that wait for their next one
        self.unfinished: set[int] = set()
        self.unpublished_tokens = 0

    def tell(self, event: ClusterEvent) -> None:
        for command in self.scheduler.handle(event):
            self.carry_out(command)

    def carry_out(self, command: ClusterCommand) -> None:
        match command:
            case Assign(worker=worker, requests=requests):
                assert requests, "an empty assignment"
                assert worker in self.generating, "a lost worker got requests"
                assert worker not in self.training, "a worker decodes and trains at once"
                assert self.orphans.issuperset(requests), "a request is assigned twice"
                self.orphans.difference_update(requests)
                self.generating[worker].extend(requests)
            case StartTraining(workers=workers):
                assert self.unfinished, "training starts after the rollout"
                for worker in workers:
                    assert not self.generating[worker], "a worker decodes and trains at once"
                    assert worker not in self.training
                    self.training[worker] = False
            case StopTraining(workers=workers):
                for worker in workers:
                    assert self.training[worker] is False, "told to stop twice"
                    self.training[worker] = True
            case PublishDrafter(version=version, trained_tokens=trained_tokens):
                self.version += 1
                assert version == self.version
                assert trained_tokens == self.unpublished_tokens > 0
                self.unpublished_tokens = 0
            case BeginPhase(phase=phase):
                assert not self.training, "a phase starts while a worker trains"
                assert not self.unfinished, "a phase starts before the rollout ends"
                assert self.phase is None
                assert phase != "weight_sync" or not self.unpublished_tokens
                self.phase = phase
            case EndStep(step=step):
                assert step == self.step
                assert not self.unfinished, "a request was lost"
                assert not self.training
                assert self.phases_done == list(self.config.phases)
                assert not self.unpublished_tokens
                self.stepping = False

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.t_s += seconds

    @precondition(lambda self: not self.stepping)
    @rule(lengths=st.lists(st.integers(0, 99), max_size=15))
    def begin_step(self, lengths: list[int]) -> None:
        self.step += 1
        self.stepping, self.phases_done = True, []
        requests = tuple(Request(number, number // 3, 10, length) for number, length in enumerate(lengths))
        self.unfinished = {request.id for request in requests}
        self.orphans = set(self.unfinished)
        self.tell(StepBegan(self.t_s, self.step, requests))
        assert not self.orphans, "a request was not assigned"

    @precondition(lambda self: any(self.generating.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        busy = [worker for worker, requests in self.generating.items() if requests]
        worker = data.draw(st.sampled_from(busy))
        requests = data.draw(st.lists(st.sampled_from(self.generating[worker]), min_size=1, unique=True))
        for request in requests:
            self.generating[worker].remove(request)
            self.unfinished.remove(request)
        self.tell(RequestsFinished(self.t_s, worker, tuple(requests)))

    @precondition(lambda self: any(self.training.values()))
    @rule(data=st.data(), trained_tokens=st.integers(0, 1000))
    def stop_training(self, data: st.DataObject, trained_tokens: int) -> None:
        told = [worker for worker, stop in self.training.items() if stop]
        worker = data.draw(st.sampled_from(told))
        del self.training[worker]
        self.unpublished_tokens += trained_tokens
        self.tell(TrainingStopped(self.t_s, worker, trained_tokens))

    @precondition(lambda self: self.phase is not None)
    @rule()
    def end_phase(self) -> None:
        phase = self.phase
        assert phase is not None
        self.phase = None
        self.phases_done.append(phase)
        self.tell(PhaseEnded(self.t_s, phase))

    @precondition(lambda self: len(self.generating) > 1)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.generating)))
        self.orphans.update(self.generating.pop(worker))
        self.training.pop(worker, None)
        self.tell(WorkerLost(self.t_s, worker))

    @invariant()
    def every_unfinished_request_is_somewhere_once(self) -> None:
        placed = [request for requests in getattr(self, "generating", {}).values() for request in requests]
        assert len(set(placed)) == len(placed)
        assert set(placed) | getattr(self, "orphans", set()) == getattr(self, "unfinished", set())

    @invariant()
    def the_step_always_goes_on(self) -> None:
        """Something is generating, stopping or in a phase: no step waits for what cannot come."""
        if getattr(self, "stepping", False):
            assert any(self.generating.values()) or any(self.training.values()) or self.phase

    def teardown(self) -> None:
        if hasattr(self, "lines"):
            again = [encode(record) for record in replay(self.setup, read(self.lines), Random)]
            assert again == self.lines


Cluster.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestCluster = Cluster.TestCase
