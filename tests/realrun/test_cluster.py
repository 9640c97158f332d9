"""The live training cluster against an executor that answers by a script."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from tlt.realrun.driver.clock import PolicyClock
from tlt.realrun.driver.cluster import Cluster
from tlt.realrun.driver.requests import Fresh
from tlt.realrun.driver.step import Drafter, LiveStep
from tlt.realrun.driver.update import Learning, head_length
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.workers.executor import Heard, Lost, WorkerError
from tlt.realrun.workers.messages import (
    Finish,
    HeadStep,
    Order,
    Phase,
    PhaseDone,
    Probe,
    Publish,
    Report,
    Serve,
    StopTrain,
    Train,
    Trained,
    Work,
)
from tltsched.cluster import ClusterScheduler
from tltsched.cluster_config import ClusterConfig
from tltsched.drafter_choice import FallbackConfig
from tltsched.event_log import CLUSTER, RecordedCluster, Recorder, read
from tltsched.spot import SpotConfig

SAMPLES = 2
NO_FALLBACK = FallbackConfig()
TOKENS = {0: 3, 1: 5, 2: 40, 3: 7}  # request -> response tokens


class ScriptedExecutor:
    """Two workers: worker 0 is done at once and trains until worker 1 is done as well."""

    def __init__(self, kill: bool = False) -> None:
        self.orders: list[tuple[int, Order]] = []
        self._answers: deque[tuple[int, Heard]] = deque()
        self._work: dict[int, Work] = {}
        self._kill = kill

    def send(self, worker: int, order: Order) -> None:
        self.orders.append((worker, order))
        match order:
            case Work():
                self._work[worker] = order
                if worker == 0:
                    self._finish(0)
            case Train():
                self._finish(1)
            case StopTrain():
                steps = (HeadStep(100, 2.0), HeadStep(60, 1.5))
                self._answers.append((worker, Trained(0, 0.0, (), steps, 2, 0.01)))
            case Phase():
                self._answers.append((worker, self._phase(worker, order)))

    def _finish(self, worker: int) -> None:
        if self._kill and worker == 1:
            self._answers.append((1, Lost("killed by signal 9 (SIGKILL)")))
            return
        work = self._work[worker]
        done = tuple(Finish(request.id, TOKENS[request.id], 0.0) for request in work.requests)
        report = Report(work.policy, work.step, 0.0, done, (("decode", 0.0),), (), (), over=True, works=1)
        self._answers.append((worker, report))

    def _phase(self, worker: int, order: Phase) -> PhaseDone:
        mine = [request.id for request in self._work[worker].requests]
        rewards = {request: float(request == 2) for request in mine} if order.phase == "reward" else {}
        facts = {"loss": 0.5} if order.phase == "policy_update" else {}
        probes = (Probe("serving", 0, 0.5, 0.4, 10 * (worker + 1)),) if order.phase == "logprob" else ()
        return PhaseDone(order.phase, 0.0, (), rewards, facts, probes)

    def receive(self) -> tuple[int, Heard]:
        return self._answers.popleft()

    def receive_within(self, seconds: float | None) -> tuple[int, Heard] | None:
        assert seconds is None, "nothing is waited for but workers"
        return self._answers.popleft()

    def close(self) -> None:
        """Nothing is held."""


def cluster(
    executor: ScriptedExecutor, minibatches: int = 1, fallback: FallbackConfig = NO_FALLBACK
) -> Cluster:
    def make(sink: Callable[[bytes], object]) -> RecordedCluster:
        scheduler = ClusterScheduler(2, ClusterConfig(spot=SpotConfig(enabled=True), fallback=fallback))
        return RecordedCluster(scheduler, Recorder(sink))

    learning = Learning(minibatches=minibatches, scale_advantages=True, heads="heads", most_drafts=1)
    return Cluster("tlt_chains", make, executor, (0, 1), PolicyClock(0.0), Drafter(0, 3), learning)


def requests() -> list[EngineRequest]:
    return [
        EngineRequest(number, (1, 2, 3), 64, forced=False, group=number // SAMPLES) for number in range(4)
    ]


def step(executor: ScriptedExecutor, minibatches: int = 1) -> LiveStep:
    return cluster(executor, minibatches).run(0, Fresh(requests()))


def test_a_step_trains_on_the_idle_worker_and_ends_with_all_phases() -> None:
    executor = ScriptedExecutor()
    done = step(executor)
    kinds = [type(order).__name__ for _, order in executor.orders]
    assert kinds[:4] == ["Work", "Work", "Train", "StopTrain"]
    phases = [order.phase for worker, order in executor.orders if isinstance(order, Phase) and worker == 0]
    assert phases == ["reward", "logprob", "policy_update", "weight_sync"]
    assert done.rewards == {0: 0.0, 1: 0.0, 2: 1.0, 3: 0.0}
    assert done.facts == {"loss": 1.0}  # workers' shares add up
    assert done.trained_tokens == 160
    assert done.scored_early == 2
    assert [record.owner for record in read(done.lines)].count(CLUSTER) > 10


def test_heads_are_published_before_the_policy_and_lag_one_update() -> None:
    executor = ScriptedExecutor()
    done = step(executor)
    zero = [order for worker, order in executor.orders if worker == 0]
    publish = next(index for index, order in enumerate(zero) if isinstance(order, Publish))
    following = zero[publish + 1]
    assert isinstance(following, Phase)
    assert following.phase == "weight_sync"
    assert (done.drafter_version, done.drafter_age_steps) == (0, 3)
    assert done.serves_next == (1, 1)


def test_drafts_without_a_model_serve_until_the_head_gets_more_accepted() -> None:
    executor = ScriptedExecutor()
    driven = cluster(executor, fallback=FallbackConfig(enabled=True, break_even_length=1.3))
    done = driven.run(0, Fresh(requests()))
    orders = [order for worker, order in executor.orders if worker == 0]
    assert orders[0] == Serve("model_free")
    assert done.drafter == "model_free"
    assert done.drafter_next == "head"  # the probes expect 1.4 tokens an engine step, bonus counted
    kinds = [type(order).__name__ for order in orders]
    assert kinds.index("Publish") < len(kinds) - 2
    assert orders[-2:] == [Serve("head"), orders[-1]]  # before the policy's weights go out
    assert isinstance(orders[-1], Phase)


def test_the_head_is_judged_by_the_positions_that_are_drafted() -> None:
    probes = [Probe("serving", place, 0.0, share, tokens) for place, share, tokens in
              ((0, 0.8, 30), (0, 0.4, 10), (1, 0.5, 40), (2, 0.4, 40))]  # fmt: skip
    other = [Probe("initial", 0, 0.0, 0.1, 40)]
    assert head_length([*probes, *other], 2) == pytest.approx(1 + 0.7 + 0.5)
    assert head_length(other, 2) is None


def test_advantages_and_whole_groups_go_to_the_update() -> None:
    executor = ScriptedExecutor()
    step(executor, minibatches=2)
    (order, _) = [
        order for _, order in executor.orders if isinstance(order, Phase) and order.phase == "policy_update"
    ]
    assert order.minibatches == (((0, 1), 8), ((2, 3), 47))
    assert order.advantages[0] == order.advantages[1] == 0.0  # a group of equal rewards teaches nothing
    assert order.advantages[2] > 0 > order.advantages[3]


def test_a_worker_that_dies_stops_the_run_and_says_how_to_go_on() -> None:
    with pytest.raises(WorkerError, match="start the same command again"):
        step(ScriptedExecutor(kill=True))
