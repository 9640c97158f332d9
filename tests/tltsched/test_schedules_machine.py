"""Any order of events under every schedule, against what must hold whichever rule it follows."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tltsched.cluster_config import ClusterConfig
from tltsched.commands import (
    Assign,
    BeginPhase,
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
from tltsched.event_log import RecordedCluster, Recorder, SchedulerSetup, build_cluster, encode, read, replay
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
    WorkerLost,
)
from tltsched.policies.none import NoneConfig
from tltsched.schedules import PRESETS, ScheduleSpec
from tltsched.schedules.bounded_async import BoundedAsyncConfig
from tltsched.schedules.cluster_view import Capacity
from tltsched.schedules.divided import DividedConfig
from tltsched.schedules.oversample_partial import OversamplePartialConfig
from tltsched.schedules.repack import RepackConfig
from tltsched.schedules.tail_batching import TailBatchingConfig
from tltsched.spot import SpotConfig

SPECS: tuple[ScheduleSpec, ...] = (
    *PRESETS.values(),
    OversamplePartialConfig(ratio=1.4),
    TailBatchingConfig(prompt_ratio=2.0, sample_ratio=1.0),
    RepackConfig(batch=4, transfer=True),
    DividedConfig(chunk_tokens=10, slots=2),
    BoundedAsyncConfig(staleness=0.5, sync_every=3),
    BoundedAsyncConfig(staleness=1.5, pause="abort", max_lag=1, rewards="overlapped"),
    BoundedAsyncConfig(staleness=2.0, pause="wait", max_lag=0, inflight=3),
    BoundedAsyncConfig(staleness=3.0, max_lag=1, cancel=True, inflight=5, sync_every=2, order="admission"),
    BoundedAsyncConfig(staleness=1.0, lend=True, trainer_share=0.4, kv="stale", enough=0.5),
    BoundedAsyncConfig(
        staleness=2.0,
        lend=True,
        trainer_share=0.6,
        pause="abort",
        max_lag=1,
        cancel=True,
        rewards="overlapped",
        enough=0.3,
    ),
)
LONGEST = 60  # tokens of a response


class Cluster(RuleBasedStateMachine):
    """Fake workers that generate, let go, train, stop and die as they like, and do what they are told."""

    @initialize(
        workers=st.integers(1, 5),
        spec=st.sampled_from(SPECS),
        phases=st.sampled_from(((), ("reward",), ("reward", "weight_sync"))),
        spot=st.booleans(),
        groups=st.integers(1, 4),
        samples=st.integers(1, 3),
        kv_tokens=st.sampled_from((0.0, 150.0)),
    )
    def build(
        self, workers: int, spec: ScheduleSpec, phases: tuple[str, ...], spot: bool, groups: int,
        samples: int, kv_tokens: float,
    ) -> None:  # fmt: skip
        config = ClusterConfig(
            schedule=spec, phases=phases, spot=SpotConfig(enabled=spot and not spec.overlaps)
        )
        self.spec, self.config, self.groups, self.samples = spec, config, groups, samples
        self.setup = SchedulerSetup(
            workers=workers, policy=NoneConfig(), cluster=config,
            capacity=Capacity(max_running=4, kv_tokens=kv_tokens),
        )  # fmt: skip
        self.lines: list[bytes] = []
        self.cluster = RecordedCluster(build_cluster(self.setup), Recorder(self.lines.append))
        self.t_s, self.step, self.next_id, self.next_group = 0.0, -1, 0, 0
        self.stepping = False
        self.phase: str | None = None
        self.on: dict[int, dict[int, int]] = {worker: {} for worker in range(workers)}  # request -> leaves at
        self.withdrawing: dict[int, list[tuple[int, ...]]] = {worker: [] for worker in range(workers)}
        self.training: dict[int, bool] = {}  # worker -> whether it was told to stop
        self.group: dict[int, int] = {}  # of each request that is alive
        self.finished: set[int] = set()
        self.length: dict[int, int] = {}
        self.generated: dict[int, int] = {}
        self.trained: set[int] = set()
        self.unscored: set[int] = set()
        self.version = self.updates = 0  # of the rollouts' weights, of the policy
        self.began: dict[int, int] = {}  # version of each request's weights
        self.batch: tuple[int, ...] | None = None

    def tell(self, event: ClusterEvent) -> None:
        for command in self.cluster.handle(event):
            self.carry_out(command)

    def carry_out(self, command: ClusterCommand) -> None:  # noqa: C901 -- one case a command
        match command:
            case Assign(worker=worker, requests=requests, chunk_tokens=chunk):
                assert requests
                assert worker not in self.training, "a worker decodes and trains at once"
                for request in requests:
                    assert request in self.group, "a request that is gone was assigned"
                    assert request not in self.finished
                    assert all(request not in on for on in self.on.values()), "assigned twice"
                    leaves = self.generated[request] + chunk if chunk else LONGEST
                    self.on[worker][request] = min(leaves, self.length[request])
                    self.began.setdefault(request, self.version)
            case Withdraw(worker=worker, requests=requests):
                assert requests
                assert self.spec.withdraws
                assert set(requests) <= set(self.on[worker])
                pending = [each for order in self.withdrawing[worker] for each in order]
                assert not set(requests) & set(pending), "withdrawn twice"
                self.withdrawing[worker].append(requests)
            case Restart(requests=requests):
                for request in requests:
                    assert request in self.group
                    assert all(request not in on for on in self.on.values())
                    self.generated[request] = 0
                    self.finished.discard(request)
                    self.began.pop(request, None)
            case Drop(requests=requests):
                for request in requests:
                    assert all(request not in on for on in self.on.values())
                    assert request not in self.unscored, "dropped while its reward is being made"
                    del self.group[request]
                    self.finished.discard(request)
            case TrainOn(requests=requests):
                assert self.batch is None, "two batches in a step"
                assert not self.spec.keeps_order
                self.train(requests)
            case StartTraining(workers=workers):
                for worker in workers:
                    assert not self.on[worker], "a worker decodes and trains at once"
                    assert worker not in self.training
                    self.training[worker] = False
            case StopTraining(workers=workers):
                for worker in workers:
                    assert self.training[worker] is False, "told to stop twice"
                    self.training[worker] = True
            case PublishDrafter():
                pass
            case BeginPhase(phase=phase):
                assert not self.training, "a phase starts while a worker trains"
                self.train_all()
                assert self.spec.overlaps or not any(self.on.values())
                if phase == "weight_sync" and getattr(self.spec, "pause", "keep") != "keep":
                    assert not any(self.on.values()), "weights go out under requests"
                assert phase != "reward" or not self.cluster.schedule.scores_early
                assert self.phase is None
                self.phase = phase
            case EndStep(step=step):
                assert step == self.step
                assert not self.training
                assert self.spec.overlaps or not any(self.on.values())
                self.train_all()
                self.stepping = False

    def train(self, requests: tuple[int, ...]) -> None:
        assert len(set(requests)) == len(requests)
        assert set(requests) <= self.finished, "trained on what is not done, twice, or dropped"
        if not self.spec.keeps_order:
            sizes: dict[int, int] = {}
            for request in requests:
                sizes[self.group[request]] = sizes.get(self.group[request], 0) + 1
            assert set(sizes.values()) <= {self.samples}, "a group is trained on in part"
            least = math.ceil(getattr(self.spec, "enough", 1.0) * self.groups)
            assert least <= len(sizes) <= self.groups, "another number of groups"
            assert not set(requests) & self.unscored, "trained on without a reward"
            self.check_lags(requests)
            self.updates += 1
        for request in requests:
            del self.group[request]
            self.finished.discard(request)
            assert request not in self.trained
            self.trained.add(request)
        self.batch = requests

    def check_lags(self, requests: tuple[int, ...]) -> None:
        lag = max(self.updates - self.began[request] for request in requests)
        if isinstance(self.spec, BoundedAsyncConfig):
            assert self.spec.max_lag < 0 or lag <= self.spec.max_lag, "staler than its bound"
            alive = self.spec.staleness if self.spec.order == "admission" else math.inf
            assert lag < self.spec.sync_every * (math.ceil(alive) if alive < math.inf else alive) + (
                self.spec.sync_every
            ), "staler than the order of admission allows"

    def train_all(self) -> None:
        if self.batch is None:
            assert self.spec.keeps_order
            self.train(tuple(sorted(self.finished)))

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.t_s += seconds

    @precondition(lambda self: not self.stepping)
    @rule(data=st.data())
    def begin_step(self, data: st.DataObject) -> None:
        schedule = self.cluster.schedule
        groups, samples = schedule.fresh_groups(self.groups), schedule.samples(self.samples)
        requests = []
        for _ in range(groups):
            for _ in range(samples):
                length = data.draw(st.integers(1, LONGEST))
                hint = length if self.spec.knows_lengths else 0
                requests.append(Request(self.next_id, self.next_group, 10, hint))
                self.group[self.next_id], self.length[self.next_id] = self.next_group, length
                self.generated[self.next_id] = 0
                self.next_id += 1
            self.next_group += 1
        self.step += 1
        self.stepping, self.batch = True, None
        if schedule.syncs():  # a driver without a phase for it has sent the weights by now
            self.version = self.updates
        goal = (0, 0) if self.spec.keeps_order else (self.groups, self.samples)
        self.tell(StepBegan(self.t_s, self.step, tuple(requests), *goal))

    def busy(self) -> list[int]:
        return [worker for worker, on in self.on.items() if on]

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Requests of a worker emit their tokens: those of a chunk, or all."""
        worker = data.draw(st.sampled_from(self.busy()))
        chosen = data.draw(st.lists(st.sampled_from(list(self.on[worker])), min_size=1, unique=True))
        done = [request for request in chosen if self.on[worker][request] == self.length[request]]
        chunks = [request for request in chosen if request not in done]
        for request in chosen:
            self.generated[request] = self.on[worker].pop(request)
        self.finished.update(done)
        if chunks:
            tokens = tuple(self.generated[request] for request in chunks)
            self.tell(ChunksEnded(self.t_s, worker, tuple(chunks), tokens))
        if done:
            if self.cluster.schedule.scores_early:
                self.unscored.update(done)
            context = data.draw(st.integers(0, 200)) if self.spec.watches else 0
            self.tell(RequestsFinished(self.t_s, worker, tuple(done), context))

    @precondition(lambda self: getattr(self, "unscored", ()))
    @rule(data=st.data())
    def score(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.unscored)), min_size=1, unique=True))
        self.unscored.difference_update(chosen)
        self.tell(RewardsReady(self.t_s, tuple(chosen)))

    @precondition(lambda self: any(self.withdrawing.values()))
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([each for each, orders in self.withdrawing.items() if orders]))
        order = self.withdrawing[worker].pop(0)
        there = tuple(request for request in order if request in self.on[worker])
        for request in there:
            most = self.on[worker].pop(request) - 1
            self.generated[request] = data.draw(st.integers(min(self.generated[request], most), most))
        tokens = tuple(self.generated[request] for request in there)
        self.tell(RequestsWithdrawn(self.t_s, worker, there, tokens))

    @precondition(lambda self: any(self.training.values()))
    @rule(data=st.data(), trained_tokens=st.integers(0, 1000))
    def stop_training(self, data: st.DataObject, trained_tokens: int) -> None:
        worker = data.draw(st.sampled_from([each for each, told in self.training.items() if told]))
        del self.training[worker]
        self.tell(TrainingStopped(self.t_s, worker, trained_tokens))

    @precondition(lambda self: self.phase is not None)
    @rule()
    def end_phase(self) -> None:
        assert self.phase is not None
        phase, self.phase = self.phase, None
        if phase == "weight_sync":
            self.version = self.updates
        self.tell(PhaseEnded(self.t_s, phase))

    @precondition(lambda self: len(getattr(self, "on", ())) > 1)
    @rule(data=st.data(), sure=st.integers(0, 9))
    def lose_worker(self, data: st.DataObject, sure: int) -> None:
        if sure:
            return
        worker = data.draw(st.sampled_from(list(self.on)))
        for request in self.on.pop(worker):
            self.generated[request] = 0
            self.began.pop(request, None)
        self.withdrawing.pop(worker)
        self.training.pop(worker, None)
        self.tell(WorkerLost(self.t_s, worker))

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "cluster"):
            cluster_view = self.cluster.view
            alive = set(self.group)
            done = self.finished if self.spec.keeps_order else set()  # let go of when the rollout is over
            assert alive - done <= set(cluster_view.requests) <= alive
            assert {request for placed in cluster_view.placed.values() for request in placed} >= {
                request for on in self.on.values() for request in on
            }

    @invariant()
    def somebody_can_act(self) -> None:
        """The step goes on by itself: nobody waits for what can never come."""
        if hasattr(self, "cluster") and self.stepping:
            told = any(self.training.values()) or any(self.withdrawing.values())
            assert self.busy() or told or self.phase or self.unscored

    def teardown(self) -> None:
        if hasattr(self, "lines"):
            again = [encode(record) for record in replay(self.setup, read(self.lines), Random)]
            assert again == self.lines


Cluster.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestCluster = pytest.mark.slow(Cluster.TestCase)
