"""Events are taken in or refused whole: the states before and after a refusal are the same."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from evidence.event_fuzz import fire, state_of
from tltsched.cluster import ClusterScheduler
from tltsched.cluster_config import ClusterConfig
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import ProtocolError
from tltsched.event_checks import refusal
from tltsched.events import (
    BatchFormed,
    ChunksEnded,
    DecisionEnded,
    DraftersMeasured,
    Event,
    Request,
    RequestsFinished,
    RequestsWithdrawn,
    RewardsReady,
    RolloutBegan,
    RolloutEnded,
    StepBegan,
    TrainingStopped,
    WorkerLost,
)
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig
from tltsched.schedules.bounded_async import BoundedAsyncConfig
from tltsched.worker import WorkerScheduler

NAN, INF = float("nan"), float("inf")
DECIDED = DecisionEnded(2.0, 0, chain(2), 4, 12, 0.1, (8, 5), (1, 2), 2, 300)


def decoding() -> WorkerScheduler:
    worker = WorkerScheduler(0, StaticConfig(draft_config="2").build(Random(0), None))  # noqa: S311
    worker.handle(RolloutBegan(0.0, 0, 3, 0))
    worker.handle(BatchFormed(1.0, 0, 4, 400))
    return worker


def rolling(schedule: str = "synchronous", workers: int = 2) -> ClusterScheduler:
    cluster = ClusterScheduler(workers, ClusterConfig(schedule=schedule))
    cluster.handle(StepBegan(1.0, 0, tuple(Request(each, each // 2, 10) for each in range(8)), 2, 2))
    return cluster


def refuse(scheduler: Any, event: Event, why: str) -> None:
    before = state_of(scheduler)
    with pytest.raises(ProtocolError, match=why):
        scheduler.handle(event)
    assert state_of(scheduler) == before


def test_a_state_is_told_from_another_by_any_attribute() -> None:
    """The comparison that the tests here rest on can fail."""
    worker = decoding()
    before = state_of(worker)
    worker.handle(DECIDED)
    assert state_of(worker) != before
    cluster = rolling()
    before = state_of(cluster)
    cluster.cluster_view.placed[1].pop(5)
    assert state_of(cluster) != before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"t_s": NAN}, "cannot be at nan"),
        ({"t_s": INF}, "cannot be at inf"),  # accepted once, and every later event was then refused
        ({"t_s": 1e300}, "cannot be at"),
        ({"t_s": 0.5}, "went back"),
        ({"t_s": "2"}, "cannot read it"),
        ({"worker": 1}, "worker 1"),
        ({"draft_config": OFF}, "not off"),
        ({"engine_steps": -1}, "negative"),
        ({"engine_steps": 13}, "contradict"),
        ({"engine_steps": 1.5}, "fractions"),
        ({"request_steps": 2**60}, "bounds"),
        ({"request_steps": 2**30}, "contradict"),
        ({"decode_s": 0.0}, "take time"),
        ({"decode_s": NAN}, "take time"),
        ({"decode_s": INF}, "take time"),
        ({"accepted_by_position": (13, 5)}, "than were drafted"),
        ({"accepted_by_position": (5, 8)}, "than at the one before"),
        ({"accepted_by_position": (5, 5, 1)}, "2 positions at most"),
        ({"accepted_by_position": (-1,)}, "negative"),
        ({"accepted_by_position": (10**5000,)}, "DecisionEnded"),  # Python writes no int as long as that
        ({"finished": (1, 1)}, "finishes once"),
        ({"finished": (-7,)}, "finishes once"),
        ({"finished": 3}, "cannot read it"),
        ({"requests": 2**40}, "contradict"),
        ({"context_tokens": -1}, "negative"),
        ({"by_request": ((1, 5, 1),)}, "cannot be"),  # in more engine steps than there were
        ({"by_request": ((1, 4, 9),)}, "cannot be"),  # of 8 drafts
        ({"by_request": ((1, 4, NAN),)}, "cannot be"),
        ({"by_request": ((1, 4, 1), (1, 2, 1))}, "once"),
        ({"by_request": ((1, 4),)}, "cannot read it"),
        ({"by_request": None}, "cannot read it"),
    ],
)
def test_a_decision_interval_that_cannot_be_is_refused(change: dict[str, Any], why: str) -> None:
    worker = decoding()
    refuse(worker, replace(DECIDED, **change), why)
    worker.handle(DECIDED)  # the truth is still taken in


def test_deeper_drafts_of_the_decision_before_are_verified_in_the_first_two_engine_steps() -> None:
    """On an engine that plans ahead; without it in the first alone."""
    table = TableConfig(draft_configs_by_batch=((1, "2"), (5, "1")))
    worker = WorkerScheduler(0, table.build(Random(0), None))  # noqa: S311
    worker.handle(RolloutBegan(0.0, 0, 0, 0))
    worker.handle(BatchFormed(1.0, 0, 3, 300))
    worker.handle(BatchFormed(1.0, 0, 6, 600))
    event = DecisionEnded(2.0, 0, DraftConfig(1, 1, 2), 3, 18, 0.1, (18, 18), (), 6, 600)
    refuse(worker, event, "first 2 engine steps alone")  # the third has a request at least
    one = DecisionEnded(2.0, 0, DraftConfig(1, 1, 2), 3, 3, 0.1, (3, 3), (), 1, 100)
    refuse(worker, one, "first 2 engine steps alone")
    worker.handle(replace(event, accepted_by_position=(18, 17)))  # of 17 in the first two
    worker.handle(replace(one, accepted_by_position=(3, 2)))  # a batch of one, whose two drafts were accepted


def test_drafts_of_the_rollout_before_may_come_back_in_the_next() -> None:
    """Weights that come under running requests part rollouts; what is in flight was drafted before."""
    table = TableConfig(draft_configs_by_batch=((1, "2"), (5, "1")))
    worker = WorkerScheduler(0, table.build(Random(0), None))  # noqa: S311
    worker.handle(RolloutBegan(0.0, 0, 0, 0))
    worker.handle(BatchFormed(1.0, 0, 3, 300))
    worker.handle(RolloutEnded(1.5, 0))
    worker.handle(RolloutBegan(1.5, 0, 1, 0))
    (chosen,) = worker.handle(BatchFormed(1.6, 0, 6, 600))
    assert chosen.draft_config.depth == 1
    event = DecisionEnded(2.0, 0, DraftConfig(1, 1, 2), 3, 18, 0.1, (17, 12), (), 6, 600)
    refuse(worker, replace(event, accepted_by_position=(17, 12, 3)), "2 positions at most")
    worker.handle(event)


def test_a_rollout_goes_on_in_its_step_or_a_later_one() -> None:
    worker = WorkerScheduler(0, StaticConfig(draft_config="2").build(Random(0), None))  # noqa: S311
    refuse(worker, RolloutBegan(0.0, 0, -1, 0), "steps from 0")
    refuse(worker, RolloutBegan(0.0, 0, 0, -2), "versions")
    refuse(worker, BatchFormed(0.0, 0, 1, 1), "resting")
    worker.handle(RolloutBegan(0.0, 0, 4, 0))
    refuse(worker, BatchFormed(0.0, 0, 0, 0), "a request or more")
    refuse(worker, BatchFormed(0.0, 0, 2**20 + 1, 0), "a request or more")
    refuse(worker, BatchFormed(0.0, 0, 1, -1), "negative context")


@pytest.mark.parametrize(
    ("schedule", "event", "why"),
    [
        # accepted once: the step ended without request 1
        ("synchronous", ChunksEnded(2.0, 0, (1,), (7,)), "no chunks"),
        ("divided", ChunksEnded(2.0, 0, (1,), (-7,)), "how many tokens"),
        ("divided", ChunksEnded(2.0, 0, (1,), ()), "how many tokens"),  # left half of itself behind once
        ("divided", ChunksEnded(2.0, 0, (1,), (5, 5)), "how many tokens"),
        ("divided", ChunksEnded(2.0, 0, (1,), (NAN,)), "how many tokens"),  # type: ignore[arg-type]
        ("divided", ChunksEnded(2.0, 0, (1,), (0,)), "1 to 2048 tokens"),
        ("divided", ChunksEnded(2.0, 0, (1,), (2049,)), "1 to 2048 tokens"),
        ("divided", ChunksEnded(2.0, 0, (), ()), "requests whose chunks"),
        ("synchronous", RequestsFinished(2.0, 0, ()), "requests that finished"),
        ("synchronous", RequestsFinished(2.0, 0, (1, 1)), "does not generate"),
        ("synchronous", RequestsFinished(2.0, 0, (99,)), "does not generate"),
        ("synchronous", RequestsFinished(2.0, 1, (1,)), "does not generate"),
        ("synchronous", RequestsFinished(2.0, 7, (1,)), "does not exist"),
        ("synchronous", RequestsFinished(2.0, 0, (1,), -1), "contexts"),
        ("synchronous", RequestsFinished(2.0, 0, (1,), NAN), "contexts"),  # type: ignore[arg-type]
        ("synchronous", RequestsWithdrawn(2.0, 0, (1,), (7,)), "did not tell"),
        ("synchronous", TrainingStopped(2.0, 0, 5), "did not tell"),
        ("synchronous", WorkerLost(2.0, 9), "no worker 9"),
        ("synchronous", WorkerLost(INF, 0), "cannot be at inf"),
        ("synchronous", StepBegan(2.0, 1, ()), "in state rollout"),
        ("synchronous", DraftersMeasured(2.0, 1.0, 1.0), "in state rollout"),
    ],
)
def test_a_report_that_cannot_be_is_refused(schedule: str, event: Event, why: str) -> None:
    refuse(rolling(schedule), event, why)


def test_what_is_withdrawn_has_not_lost_tokens() -> None:
    cluster = rolling("oversample_partial", workers=1)
    cluster.handle(RequestsFinished(2.0, 0, (0, 1, 2, 3)))
    whole = RequestsWithdrawn(3.0, 0, (4, 5, 6, 7), (3, 3, 3, 3))
    for tokens in ((3, 3, 3), (3, 3, 3, -1), (3, 3, 3, 2**60), (3, 3, 3, NAN)):
        refuse(cluster, replace(whole, generated_tokens=tokens), "how many tokens")
    refuse(cluster, replace(whole, requests=(4, 5, 6), generated_tokens=(3, 3, 3)), "did not tell")
    cluster.handle(whole)
    assert cluster.cluster_view.generated[7] == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"step": -1}, "a later one"),
        ({"step": 0.5}, "a later one"),
        ({"groups": -1}, "a later one"),
        ({"requests": (Request(0, 0, 10), Request(0, 1, 10))}, "each request once"),
        ({"requests": (Request(-1, 0, 10),)}, "whole numbers"),
        ({"requests": (Request(0, 0, -10),)}, "whole numbers"),
        ({"requests": (Request(0, 0, 10, NAN),)}, "whole numbers"),  # type: ignore[arg-type]
        ({"requests": (Request(0, 2**63, 10),)}, "whole numbers"),
        ({"requests": (Request(0, -(2**63) - 1, 10),)}, "whole numbers"),
        ({"requests": (Request(0, "a", 10),)}, "cannot read it"),  # type: ignore[arg-type]
        ({"requests": (3,)}, "cannot read it"),
        ({"requests": {}}, "no tuple: dict"),
        ({"groups": 3}, "for ever"),  # of which there are two
        ({"groups": 0}, "for ever"),
    ],
)
def test_a_step_that_cannot_be_is_refused(change: dict[str, Any], why: str) -> None:
    cluster = ClusterScheduler(2, ClusterConfig(schedule="bounded_async"))
    event = StepBegan(1.0, 0, tuple(Request(each, each // 2, 10) for each in range(4)), 2, 2)
    refuse(cluster, replace(event, **change), why)
    cluster.handle(event)


def test_names_of_groups_may_be_below_zero() -> None:
    rolling().handle(RequestsFinished(2.0, 0, (1,)))
    ClusterScheduler(1, ClusterConfig()).handle(StepBegan(1.0, 0, (Request(0, -(2**63), 10),)))


def test_a_long_event_is_cut_in_the_message_and_a_short_one_is_whole() -> None:
    short, long = WorkerLost(2.0, 9), RequestsFinished(2.0, 0, tuple(range(1000)))
    assert str(refusal("w", "why", short)) == f"w: why: {short!r}"
    assert str(refusal("w", "why", long)) == f"w: why: {repr(long)[:400]}..."


def test_a_reward_is_of_a_request_that_finished_and_comes_once() -> None:
    schedule = BoundedAsyncConfig(rewards="overlapped")
    cluster = ClusterScheduler(2, ClusterConfig(schedule=schedule, phases=("policy_update", "weight_sync")))
    cluster.handle(StepBegan(1.0, 0, tuple(Request(each, each // 2, 10) for each in range(4)), 2, 2))
    assert set(cluster.cluster_view.placed[0]) == {0, 2}
    cluster.handle(RequestsFinished(2.0, 0, (0,)))
    for requests in ((), (0, 0), (0, 2)):
        refuse(cluster, RewardsReady(3.0, requests), "no reward")
    cluster.handle(RewardsReady(3.0, (0,)))
    refuse(cluster, RewardsReady(4.0, (0,)), "no reward")


def test_groups_of_responses_that_are_carried_over_are_not_begun_again() -> None:
    cluster = ClusterScheduler(1, ClusterConfig(schedule="oversample_partial", phases=()))
    cluster.handle(StepBegan(1.0, 0, tuple(Request(each, each, 10) for each in range(2)), 1, 1))
    cluster.handle(RequestsFinished(2.0, 0, (0,)))
    cluster.handle(RequestsWithdrawn(3.0, 0, (1,), (5,)))
    refuse(cluster, StepBegan(4.0, 1, (Request(2, 1, 10),), 1, 1), "fresh groups")
    refuse(cluster, StepBegan(4.0, 1, (Request(1, 2, 10),), 1, 1), "each request once")
    cluster.handle(StepBegan(4.0, 1, (Request(2, 2, 10),), 1, 1))


def test_acceptance_lengths_with_the_bonus_are_one_or_more() -> None:
    cluster = ClusterScheduler(1, ClusterConfig(phases=("reward",)))
    cluster.handle(StepBegan(1.0, 0, (Request(0, 0, 10),)))
    cluster.handle(RequestsFinished(2.0, 0, (0,)))
    for length in (0.5, NAN, INF, -1.0):
        refuse(cluster, DraftersMeasured(3.0, length, None), "1 or more")
        refuse(cluster, DraftersMeasured(3.0, None, length), "1 or more")
    cluster.handle(DraftersMeasured(3.0, 1.0, 2.5))


@pytest.mark.parametrize("machine", ["worker", "cluster"])
def test_spoiled_events_are_taken_in_or_refused_whole(machine: str) -> None:
    """More of the same: python -m evidence.event_fuzz."""
    counts, faults = fire(machine, 1200, seed=5)
    assert not faults
    assert counts["refused"] > 300
    assert counts["accepted"] > 300
