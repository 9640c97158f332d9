"""The cluster's scheduler: events in, commands out, and what it refuses."""

from __future__ import annotations

import pytest

from tltsched.cluster import ClusterScheduler
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
from tltsched.errors import InputError, ProtocolError
from tltsched.events import (
    ClusterEvent,
    PhaseEnded,
    Request,
    RequestsFinished,
    StepBegan,
    TrainingStopped,
    WorkerLost,
)
from tltsched.spot import SpotConfig

Commands = tuple[ClusterCommand, ...]
SPOT = ClusterConfig(phases=("reward", "weight_sync"), spot=SpotConfig(enabled=True))


def step(number: int, requests: int, t_s: float = 0.0) -> StepBegan:
    return StepBegan(t_s, number, tuple(Request(request, 0, 10) for request in range(requests)))


def done(worker: int, *requests: int, t_s: float = 1.0) -> RequestsFinished:
    return RequestsFinished(t_s, worker, requests)


def commands(workers: int, config: ClusterConfig, *events: ClusterEvent) -> list[Commands]:
    cluster = ClusterScheduler(workers, config)
    return [cluster.handle(event) for event in events]


def test_a_step_without_training() -> None:
    config = ClusterConfig()
    assert commands(
        2,
        config,
        step(0, 4),
        done(0, 0, 1),
        done(1, 3),
        done(1, 2),
        *(PhaseEnded(2.0, phase) for phase in config.phases),
        step(1, 1, t_s=3.0),
    ) == [
        (Assign(0, (0, 1)), Assign(1, (2, 3))),
        (),
        (),
        (BeginPhase("reward"),),
        (BeginPhase("logprob"),),
        (BeginPhase("policy_update"),),
        (BeginPhase("weight_sync"),),
        (EndStep(0),),
        (Assign(0, (0,)),),
    ]


def test_a_step_with_training_publishes_before_weight_sync() -> None:
    assert commands(
        3,
        SPOT,
        step(0, 6),
        done(1, 2, 3),
        done(2, 4, 5),
        done(0, 0),
        done(0, 1, t_s=2.0),
        TrainingStopped(3.0, 2, 100),
        TrainingStopped(3.5, 1, 20),
        PhaseEnded(4.0, "reward"),
        PhaseEnded(5.0, "weight_sync"),
    ) == [
        (Assign(0, (0, 1)), Assign(1, (2, 3)), Assign(2, (4, 5))),
        (StartTraining((1,)),),
        (StartTraining((2,)),),
        (),
        (StopTraining((1, 2)),),
        (),
        (BeginPhase("reward"),),
        (PublishDrafter(1, 120), BeginPhase("weight_sync")),
        (EndStep(0),),
    ]


def test_a_worker_without_requests_trains_at_once() -> None:
    assert commands(3, SPOT, step(0, 2)) == [(Assign(0, (0,)), Assign(1, (1,)), StartTraining((2,)))]


def test_without_weight_sync_weights_go_out_before_the_step_ends() -> None:
    config = ClusterConfig(phases=(), spot=SpotConfig(enabled=True))
    *_, last = commands(2, config, step(0, 1), done(0, 0), TrainingStopped(2.0, 1, 7))
    assert last == (PublishDrafter(1, 7), EndStep(0))


def test_nothing_is_published_if_nothing_was_trained() -> None:
    *_, last = commands(
        2, SPOT, step(0, 1), done(0, 0), TrainingStopped(2.0, 1, 0), PhaseEnded(3.0, "reward")
    )
    assert last == (BeginPhase("weight_sync"),)


def test_a_step_without_requests_goes_straight_to_its_phases() -> None:
    assert commands(2, SPOT, step(0, 0)) == [(BeginPhase("reward"),)]


def test_requests_of_a_lost_worker_go_to_those_with_the_fewest() -> None:
    config = ClusterConfig(dispatch="round_robin")
    assert commands(3, config, step(0, 9), done(2, 2, 5), WorkerLost(2.0, 0), done(2, 8, 0, 3, t_s=3.0))[
        -2:
    ] == [
        (Assign(1, (6,)), Assign(2, (0, 3))),
        (),
    ]


def test_a_trainer_stops_before_it_takes_requests_of_a_lost_worker() -> None:
    assert commands(
        2,
        SPOT,
        step(0, 4),
        done(1, 2, 3),
        WorkerLost(2.0, 0),
        TrainingStopped(3.0, 1, 50),
        done(1, 0, t_s=4.0),
        done(1, 1, t_s=5.0),
        PhaseEnded(6.0, "reward"),
    )[1:] == [
        (StartTraining((1,)),),
        (StopTraining((1,)),),
        (Assign(1, (0, 1)),),
        (),
        (BeginPhase("reward"),),
        (PublishDrafter(1, 50), BeginPhase("weight_sync")),
    ]


def test_an_idle_worker_is_taken_before_one_that_trains() -> None:
    config = ClusterConfig(spot=SpotConfig(enabled=True, max_trainers=1))
    assert commands(3, config, step(0, 3), done(1, 1), done(2, 2), WorkerLost(2.0, 0))[1:] == [
        (StartTraining((1,)),),
        (),
        (Assign(2, (0,)),),
    ]


def test_what_was_held_for_a_worker_that_is_lost_too_goes_on() -> None:
    assert commands(3, SPOT, step(0, 3), done(1, 1), done(2, 2), WorkerLost(2.0, 0), WorkerLost(3.0, 1))[
        1:
    ] == [
        (StartTraining((1,)),),
        (StartTraining((2,)),),
        (StopTraining((1,)),),
        (StopTraining((2,)),),
    ]


def test_the_hand_over_does_not_wait_for_a_lost_trainer() -> None:
    assert commands(2, SPOT, step(0, 1), done(0, 0), WorkerLost(2.0, 1))[1:] == [
        (StopTraining((1,)),),
        (BeginPhase("reward"),),
    ]


def test_a_lost_worker_gets_nothing_in_later_steps() -> None:
    *_, later = commands(
        *(3, ClusterConfig(phases=()), step(0, 3), WorkerLost(0.5, 1)),
        *(done(0, 0, 1), done(2, 2), step(1, 4, t_s=2.0)),
    )
    assert later == (Assign(0, (0, 1)), Assign(2, (2, 3)))


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ([], done(0, 0)),
        ([], PhaseEnded(0.0, "reward")),
        ([], TrainingStopped(0.0, 0, 1)),
        ([], StepBegan(0.0, 0, (Request(1, 0, 1), Request(1, 0, 1)))),
        ([], WorkerLost(0.0, 9)),
        ([step(0, 4)], step(1, 4)),
        ([step(0, 4)], done(0, 2)),
        ([step(0, 4)], done(0, 7)),
        ([step(0, 4)], done(5, 0)),
        ([step(0, 4), done(0, 0)], done(0, 0)),
        ([step(0, 4), done(0, 0)], done(0, 1, t_s=0.5)),
        ([step(0, 4), done(0, 0)], done(0, 1, t_s=float("nan"))),
        ([step(0, 4)], TrainingStopped(1.0, 0, 1)),
        ([step(0, 1), done(0, 0)], TrainingStopped(2.0, 1, -1)),
        ([step(0, 1), done(0, 0)], PhaseEnded(2.0, "reward")),
        ([step(0, 0)], PhaseEnded(2.0, "weight_sync")),
        ([step(0, 4), WorkerLost(0.5, 1)], WorkerLost(0.6, 1)),
        ([step(0, 4), WorkerLost(0.5, 1)], WorkerLost(0.6, 0)),
        ([step(0, 4), WorkerLost(0.5, 1)], done(1, 2)),
        ([step(0, 4), done(1, 2, 3), WorkerLost(2.0, 0)], done(1, 0, t_s=3.0)),
    ],
)
def test_events_out_of_order_or_out_of_range_are_refused(
    before: list[ClusterEvent], refused: ClusterEvent
) -> None:
    cluster = ClusterScheduler(2, SPOT)
    for event in before:
        cluster.handle(event)
    state = cluster.state
    with pytest.raises(ProtocolError):
        cluster.handle(refused)
    assert cluster.state is state


def test_steps_rise() -> None:
    cluster = ClusterScheduler(1, ClusterConfig(phases=()))
    cluster.handle(step(4, 0))
    with pytest.raises(ProtocolError, match="after step 4"):
        cluster.handle(step(4, 0))


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(InputError, match="contiguous, longest_first, round_robin"):
        ClusterConfig(dispatch="random")
    with pytest.raises(InputError, match="phases"):
        ClusterConfig(phases=("reward", "reward"))
    with pytest.raises(InputError, match="workers"):
        ClusterScheduler(0, ClusterConfig())
