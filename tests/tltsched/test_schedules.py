"""Rollout schedules: what each decides in small cases, and what its settings refuse."""

from __future__ import annotations

import pytest

from tltsched.cluster import ClusterScheduler
from tltsched.cluster_config import ClusterConfig
from tltsched.commands import (
    Assign,
    BeginPhase,
    ClusterCommand,
    Drop,
    EndStep,
    Restart,
    StartTraining,
    TrainOn,
    Withdraw,
)
from tltsched.errors import InputError, ProtocolError
from tltsched.events import (
    ChunksEnded,
    ClusterEvent,
    PhaseEnded,
    Request,
    RequestsFinished,
    RequestsWithdrawn,
    StepBegan,
    WorkerLost,
)
from tltsched.schedules import PRESETS, SCHEDULES, ScheduleSpec, parse_schedule, schedule_name
from tltsched.schedules.bounded_async import BoundedAsyncConfig
from tltsched.schedules.cluster_view import UNLIMITED, Capacity
from tltsched.schedules.divided import DividedConfig
from tltsched.schedules.oversample_partial import OversamplePartialConfig
from tltsched.schedules.repack import RepackConfig
from tltsched.schedules.tail_batching import TailBatchingConfig
from tltsched.spot import SpotConfig

Commands = tuple[ClusterCommand, ...]


def began(step: int, first: int, groups: int, samples: int = 1, goal: int = 0, needed: int = 0) -> StepBegan:
    """Begin a step with fresh groups; ids and groups are numbered through the run."""
    requests = tuple(
        Request(first + number, first + number // samples, 10) for number in range(groups * samples)
    )
    return StepBegan(0.0, step, requests, goal, needed or samples)


def done(worker: int, *requests: int, context: int = 0) -> RequestsFinished:
    return RequestsFinished(0.0, worker, requests, context)


def gone(worker: int, *requests: int, tokens: int = 5) -> RequestsWithdrawn:
    return RequestsWithdrawn(0.0, worker, requests, (tokens,) * len(requests))


def cluster(
    spec: ScheduleSpec, workers: int = 2, capacity: Capacity = UNLIMITED, spot: bool = False
) -> ClusterScheduler:
    config = ClusterConfig(schedule=spec, phases=(), spot=SpotConfig(enabled=spot))
    return ClusterScheduler(workers, config, capacity)


def answers(scheduler: ClusterScheduler, *events: ClusterEvent) -> list[Commands]:
    return [scheduler.handle(event) for event in events]


def test_names_are_read_and_given_back() -> None:
    for name, spec in PRESETS.items():
        assert parse_schedule(f" {name} ") == spec
        assert schedule_name(spec) == name
    assert {type(spec) for spec in PRESETS.values()} == set(SCHEDULES)
    assert schedule_name(RepackConfig(batch=4)) == "repack"
    with pytest.raises(InputError, match="did you mean 'repack'"):
        ClusterConfig(schedule="repak")


def test_partial_rollouts_stop_the_rest_and_resume_it_first() -> None:
    scheduler = cluster(OversamplePartialConfig(ratio=2.0))
    assert scheduler.schedule.fresh_groups(2) == 4
    assert answers(
        scheduler,
        began(0, 0, 4, goal=2),
        done(0, 0),
        done(1, 2),
        gone(0, 1),
        gone(1, 3),
    ) == [
        (Assign(0, (0, 1)), Assign(1, (2, 3))),
        (),
        (Withdraw(0, (1,)), Withdraw(1, (3,))),
        (),
        (TrainOn((0, 2)), EndStep(0)),
    ]
    assert scheduler.schedule.fresh_groups(2) == 2
    assert scheduler.cluster_view.generated[1] == 5
    assert scheduler.handle(began(1, 4, 2, goal=2)) == (Assign(0, (1, 4)), Assign(1, (3, 5)))


def test_a_request_that_finishes_while_it_is_withdrawn_waits_for_the_next_batch() -> None:
    scheduler = cluster(OversamplePartialConfig(ratio=2.0))
    *_, last = answers(scheduler, began(0, 0, 2, goal=1), done(0, 0), done(1, 1), gone(1))
    assert last == (TrainOn((0,)), EndStep(0))
    assert scheduler.handle(began(1, 2, 1, goal=1))[:1] == (TrainOn((1,)),)


def test_without_partial_rollouts_the_rest_is_dropped() -> None:
    scheduler = cluster(OversamplePartialConfig(partial=False))
    *_, last = answers(scheduler, began(0, 0, 2, goal=1), done(0, 0), gone(1, 1))
    assert last == (TrainOn((0,)), Drop((1,)), EndStep(0))
    assert scheduler.cluster_view.requests == {}


def test_tail_batching_keeps_the_first_samples_of_the_first_prompts() -> None:
    scheduler = cluster(TailBatchingConfig(prompt_ratio=2.0, sample_ratio=1.5), workers=1)
    schedule = scheduler.schedule
    assert (schedule.fresh_groups(1), schedule.samples(2)) == (2, 3)
    assert answers(
        scheduler,
        began(0, 0, 2, 3, goal=1, needed=2),  # prompts 0 and 1 of 0-2 and 3-5
        done(0, 3),
        done(0, 1, 2),
        gone(0, 0, 4, 5),
    ) == [
        (Assign(0, (0, 1, 2, 3, 4, 5)),),
        (),
        (Withdraw(0, (0, 4, 5)),),
        # 3 was done, but its prompt starts anew, with as many samples as are trained on
        (TrainOn((1, 2)), Drop((0, 5)), Restart((3, 4)), EndStep(0)),
    ]
    assert schedule.fresh_groups(1) == 0
    assert answers(scheduler, StepBegan(0.0, 1, (), 1, 2), done(0, 4), done(0, 3)) == [
        (Assign(0, (3, 4)),),
        (),
        (TrainOn((4, 3)), EndStep(1)),
    ]


def test_the_spare_samples_of_a_complete_prompt_are_stopped_at_once() -> None:
    scheduler = cluster(TailBatchingConfig(prompt_ratio=2.0, sample_ratio=1.5), workers=1)
    *_, early, late = answers(scheduler, began(0, 0, 4, 3, goal=2, needed=2), done(0, 0, 1), done(0, 3, 4))
    assert early == (Withdraw(0, (2,)),)
    assert late == (Withdraw(0, (5, 6, 7, 8, 9, 10, 11)),), (
        "what was withdrawn already is not asked for again"
    )


def test_repack_moves_the_fewest_to_the_fullest_that_fits() -> None:
    scheduler = cluster(RepackConfig(batch=4), workers=3)
    assert (
        answers(
            scheduler,
            began(0, 0, 12),
            done(0, 0, 1, 2, context=100),  # 3 is left, and four are too many to join
            done(1, 4, context=300),
            gone(0, 3, tokens=7),
        )[1:]
        == [(), (Withdraw(0, (3,)),), (Assign(1, (3,)),)]
    )


def test_repack_leaves_caches_room() -> None:
    scheduler = cluster(RepackConfig(batch=8), 2, Capacity(kv_tokens=1000.0))
    events = (began(0, 0, 8), done(1, 4, 5, context=950), done(0, 0, 1, context=500))
    assert answers(scheduler, *events)[1:] == [(), ()]
    roomy = cluster(RepackConfig(batch=8), 2, Capacity(kv_tokens=2000.0))
    assert answers(roomy, *events)[1] == (Withdraw(1, (6, 7)),)


def test_a_worker_that_repack_has_emptied_may_train() -> None:
    scheduler = cluster(RepackConfig(batch=4), spot=True)
    *_, last = answers(scheduler, began(0, 0, 6), done(0, 0, 1), gone(0, 2))
    assert last == (Assign(1, (2,)), StartTraining((0,)))


def test_what_repack_took_off_goes_back_if_nobody_is_left_to_take_it() -> None:
    scheduler = cluster(RepackConfig(batch=4))
    *_, last = answers(scheduler, began(0, 0, 4), done(0, 0), done(1, 2, 3), gone(0, 1))
    assert last == (Assign(0, (1,)),)


def test_divided_gives_probes_first_and_chunks_to_the_worker_with_the_fewest() -> None:
    scheduler = cluster(DividedConfig(chunk_tokens=100, slots=2))
    assert answers(
        scheduler,
        began(0, 0, 3, 2),  # groups 0, 1, 2 of 0-1, 2-3, 4-5
        ChunksEnded(0.0, 1, (2,), (100,)),
        done(0, 0),
        done(0, 4),
    ) == [
        (Assign(0, (0, 4), 100, kv_kept=True), Assign(1, (2, 1), 100, kv_kept=True)),
        (Assign(1, (2,), 100, kv_kept=True),),
        (Assign(0, (3,), 100, kv_kept=True),),
        (Assign(0, (5,), 100, kv_kept=True),),
    ]


def test_divided_gives_out_no_more_than_the_cache_holds() -> None:
    scheduler = cluster(DividedConfig(chunk_tokens=100, kv_share=1.0), 1, Capacity(kv_tokens=250.0))
    assert scheduler.handle(began(0, 0, 3)) == (Assign(0, (0, 1), 100, kv_kept=True),)


def test_bounded_async_trains_while_it_generates() -> None:
    config = ClusterConfig(schedule=BoundedAsyncConfig(staleness=1.0), phases=())
    scheduler = ClusterScheduler(2, config)
    assert scheduler.schedule.fresh_groups(2) == 4
    assert answers(scheduler, began(0, 0, 4, goal=2), done(0, 0), done(1, 1)) == [
        (Assign(0, (0, 2)), Assign(1, (1, 3))),
        (),
        (TrainOn((0, 1)), EndStep(0)),
    ]
    assert answers(scheduler, done(0, 2), began(1, 4, 2, goal=2)) == [(), (Assign(0, (4, 5)),)]


def test_bounded_async_trains_on_a_batch_in_parts_and_syncs_after_the_last() -> None:
    schedule = BoundedAsyncConfig(staleness=0.0, sync_every=2)
    scheduler = ClusterScheduler(2, ClusterConfig(schedule=schedule, phases=("policy_update", "weight_sync")))
    update, sync = PhaseEnded(0.0, "policy_update"), PhaseEnded(0.0, "weight_sync")
    assert scheduler.schedule.fresh_groups(1) == 2
    assert answers(scheduler, began(0, 0, 2, goal=1), done(1, 1), update) == [
        (Assign(0, (0,)), Assign(1, (1,))),
        (TrainOn((1,)), BeginPhase("policy_update")),
        (EndStep(0),),  # the other part generates on under the weights that it began with
    ]
    assert scheduler.schedule.fresh_groups(1) == 0
    assert answers(scheduler, began(1, 2, 0, goal=1), done(0, 0), update, sync) == [
        (),
        (TrainOn((0,)), BeginPhase("policy_update")),
        (BeginPhase("weight_sync"),),
        (EndStep(1),),
    ]
    assert scheduler.schedule.fresh_groups(1) == 2


@pytest.mark.parametrize(
    "refused",
    [gone(0, 0), gone(0), ChunksEnded(0.0, 0, (3,), (1,)), gone(7), done(0, 0, 0)],
)
def test_what_was_not_ordered_is_refused(refused: ClusterEvent) -> None:
    scheduler = cluster(OversamplePartialConfig())
    scheduler.handle(began(0, 0, 4, goal=2))
    with pytest.raises(ProtocolError):
        scheduler.handle(refused)


def test_an_answer_may_be_due_after_the_last_request_has_finished() -> None:
    scheduler = cluster(OversamplePartialConfig(ratio=2.0), workers=2)
    told = answers(scheduler, began(0, 0, 2, goal=1), done(0, 0), done(1, 1))
    assert told[1:] == [(Withdraw(1, (1,)),), ()]


def test_a_worker_that_is_lost_while_it_is_emptied_answers_no_more() -> None:
    scheduler = cluster(OversamplePartialConfig(ratio=2.0), workers=2)
    *_, last = answers(scheduler, began(0, 0, 2, goal=1), done(0, 0), WorkerLost(0.0, 1))
    assert last == (TrainOn((0,)), EndStep(0))
    assert scheduler.cluster_view.generated == {1: 0}


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: OversamplePartialConfig(ratio=0.5), "ratio"),
        (lambda: TailBatchingConfig(sample_ratio=0.9), "sample_ratio"),
        (lambda: RepackConfig(batch=1), "batch"),
        (lambda: RepackConfig(kv_share=0.0), "kv_share"),
        (lambda: DividedConfig(chunk_tokens=0), "chunk_tokens"),
        (lambda: DividedConfig(kv_share=2.0), "kv_share"),
        (lambda: BoundedAsyncConfig(staleness=-1.0), "staleness"),
        (lambda: BoundedAsyncConfig(trainer_share=1.0), "trainer_share"),
        (lambda: BoundedAsyncConfig(sync_every=0), "sync_every"),
        (lambda: BoundedAsyncConfig().trainers(1), "workers"),
        (lambda: ClusterConfig(schedule="bounded_async", spot=SpotConfig(enabled=True)), "spot"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(build: object, field: str) -> None:
    assert callable(build)
    with pytest.raises(InputError, match=field):
        build()
