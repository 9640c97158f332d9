"""Routing of turns, tool calls, and what a lost worker costs a session: worked out by hand."""

from __future__ import annotations

import pytest

from tests.tltsched.test_event_checks import refuse
from tltsched.cluster import ClusterScheduler
from tltsched.cluster_config import ClusterConfig
from tltsched.commands import Assign, BeginPhase, CallTools, StartTraining
from tltsched.errors import InputError
from tltsched.events import (
    PhaseEnded,
    Request,
    RequestsFinished,
    RequestsWithdrawn,
    StepBegan,
    ToolsReturned,
    TurnsEnded,
    WorkerLost,
)
from tltsched.schedules.cluster_view import Capacity
from tltsched.sessions.routing import Load, Router, RoutingConfig, Turn, parse_routing
from tltsched.spot import SpotConfig

LOADS = {0: Load(5, False, 0), 1: Load(2, False, 1), 2: Load(2, True, 2)}


def begun(workers: int = 2, requests: int = 4, **settings: object) -> ClusterScheduler:
    """Return a cluster in the rollout of its first step, two samples a group."""
    config = ClusterConfig(phases=("reward",), **settings)  # type: ignore[arg-type]
    cluster = ClusterScheduler(workers, config, Capacity(kv_tokens=1000.0))
    cluster.handle(StepBegan(0.0, 0, tuple(Request(each, each // 2, 100) for each in range(requests)), 0, 0))
    return cluster


def router(rule: str, kv_tokens: float = 0.0) -> Router:
    return Router(parse_routing(rule), kv_tokens)


def test_each_rule_chooses_as_it_says() -> None:
    turn = Turn(7, 100, 0)
    assert router("sticky").choose(turn, LOADS) == 0
    assert router("least_loaded").choose(turn, LOADS) == 1  # as few as worker 2, which trains
    turns = router("round_robin")
    assert [turns.choose(turn, LOADS) for _ in range(4)] == [0, 1, 2, 0]


def test_a_session_whose_worker_died_goes_to_the_fewest() -> None:
    assert router("sticky").choose(Turn(7, 100, 9), LOADS) == 1


def test_a_prefix_counts_while_it_is_cached_and_loads_are_alike() -> None:
    turn = Turn(7, 100, 0)
    rule = router("prefix(balance_requests=3)", 150.0)
    assert rule.choose(turn, LOADS) == 1  # nothing is cached
    rule.ran(0, 7, 80)
    assert rule.choose(turn, LOADS) == 0
    rule.ran(0, 8, 80)  # 160 of 150 tokens: what was used longest ago goes
    assert rule.choose(turn, LOADS) == 1
    rule.ran(0, 7, 30)
    assert rule.choose(turn, LOADS) == 1  # no more than 0.3 of the context
    rule.ran(0, 7, 31)
    assert rule.choose(turn, LOADS) == 0
    # 6 - 2 is more than 3, and 6 more than 1.5 x 2.
    assert rule.choose(turn, LOADS | {0: Load(6, False, 0)}) == 1
    rule.flush()
    assert rule.choose(turn, LOADS) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stcky", "did you mean 'sticky'"),
        ("prefix(cached_share=2)", "0 to 1"),
        ("sticky(balance_ratio=2)", "prefix, where it has settings"),
        ("prefix(balance_ratio=0.5)", "1 to 1,000,000"),
        ("prefix(balance_requests=-1)", "0 or more"),
    ],
)
def test_unknown_rules_and_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        parse_routing(text)


def test_a_turn_ends_its_tool_runs_and_the_session_comes_back() -> None:
    cluster = begun()
    assert cluster.handle(TurnsEnded(1.0, 0, (0,), (20,))) == (CallTools((0,)),)
    assert cluster.cluster_view.busy
    assert cluster.handle(ToolsReturned(2.0, (0,), (30,))) == (Assign(0, (0,)),)
    assert cluster.cluster_view.context(0) == 150


def test_the_rollout_waits_for_tools() -> None:
    cluster = begun()
    cluster.handle(TurnsEnded(1.0, 0, (0,), (20,)))
    cluster.handle(RequestsFinished(2.0, 0, (1,)))
    assert cluster.handle(RequestsFinished(3.0, 1, (2, 3))) == ()
    assert cluster.handle(ToolsReturned(4.0, (0,), (0,), ended=(0,))) == (BeginPhase("reward"),)
    assert not cluster.cluster_view.finished  # the step has trained on all four


def test_calls_above_the_limit_queue_in_order() -> None:
    cluster = begun(tools_at_once=1)
    assert cluster.handle(TurnsEnded(1.0, 1, (3, 2), (5, 5))) == (CallTools((3,)),)
    assert cluster.handle(TurnsEnded(1.0, 0, (0,), (5,))) == ()
    assert cluster.handle(ToolsReturned(2.0, (3,), (1,))) == (CallTools((2,)), Assign(1, (3,)))
    assert cluster.handle(ToolsReturned(3.0, (2,), (1,))) == (CallTools((0,)), Assign(1, (2,)))


def test_a_worker_that_waits_for_a_tool_is_not_idle() -> None:
    """It would begin to train its drafter, and be stopped a moment later."""
    cluster = begun(spot=SpotConfig(enabled=True))
    cluster.handle(TurnsEnded(1.0, 0, (0,), (20,)))
    assert cluster.handle(RequestsFinished(2.0, 0, (1,))) == ()
    assert cluster.handle(ToolsReturned(3.0, (0,), (1,))) == (Assign(0, (0,)),)
    assert cluster.handle(RequestsFinished(4.0, 0, (0,))) == (StartTraining((0,)),)


def test_a_worker_whose_session_goes_elsewhere_is_idle() -> None:
    cluster = begun(spot=SpotConfig(enabled=True), routing="round_robin", requests=3)
    cluster.handle(RequestsFinished(1.0, 0, (0,)))
    cluster.handle(TurnsEnded(2.0, 0, (1,), (20,)))
    cluster.handle(TurnsEnded(2.0, 1, (2,), (20,)))
    assert cluster.handle(ToolsReturned(3.0, (2,), (1,))) == (Assign(0, (2,)), StartTraining((1,)))


def test_a_lost_worker_costs_a_session_its_turn() -> None:
    cluster = begun(requests=2)
    cluster.handle(TurnsEnded(1.0, 0, (0,), (20,)))
    cluster.handle(ToolsReturned(2.0, (0,), (30,)))
    cluster.handle(TurnsEnded(3.0, 1, (1,), (10,)))
    assert cluster.handle(WorkerLost(4.0, 0)) == (Assign(1, (0,)),)
    assert cluster.cluster_view.generated == {0: 20, 1: 10}
    assert cluster.handle(ToolsReturned(5.0, (1,), (0,))) == (Assign(1, (1,)),)


def test_a_rollout_that_is_stopped_does_not_wait_for_tools() -> None:
    """With partial rollouts the session goes on in the next step, once its tool has returned."""
    cluster = ClusterScheduler(2, ClusterConfig(phases=("reward",), schedule="oversample_partial"))
    cluster.handle(StepBegan(0.0, 0, tuple(Request(each, each // 2, 100) for each in range(4)), 1, 2))
    cluster.handle(TurnsEnded(1.0, 1, (2,), (20,)))
    cluster.handle(TurnsEnded(1.0, 1, (3,), (20,)))
    commands = cluster.handle(RequestsFinished(2.0, 0, (0, 1)))
    assert BeginPhase("reward") in commands
    assert cluster.handle(ToolsReturned(3.0, (2,), (5,))) == ()  # it waits for the next step
    cluster.handle(PhaseEnded(4.0, "reward"))
    fresh = (Request(4, 2, 100), Request(5, 2, 100))
    assert cluster.handle(StepBegan(5.0, 1, fresh, 1, 2)) == (Assign(0, (2, 4)), Assign(1, (5,)))
    assert cluster.handle(ToolsReturned(6.0, (3,), (5,))) == (Assign(1, (3,)),)


def test_a_turn_that_ends_while_its_session_is_withdrawn_is_not_waited_for() -> None:
    cluster = ClusterScheduler(2, ClusterConfig(phases=("reward",), schedule="oversample_partial"))
    cluster.handle(StepBegan(0.0, 0, tuple(Request(each, each // 2, 100) for each in range(4)), 1, 2))
    cluster.handle(RequestsFinished(2.0, 0, (0, 1)))  # worker 1 is to let go of 2 and 3
    cluster.handle(TurnsEnded(2.0, 1, (2,), (20,)))
    commands = cluster.handle(RequestsWithdrawn(2.0, 1, (3,), (7,)))
    assert commands[-1] == BeginPhase("reward")


def test_schedules_that_move_requests_by_length_refuse_sessions() -> None:
    for schedule in ("divided", "repack"):
        with pytest.raises(InputError, match=f"'{schedule}' for cluster.schedule"):
            ClusterConfig(schedule=schedule).require_sessions()
        cluster = begun(schedule=schedule)
        refuse(cluster, TurnsEnded(1.0, 0, (0,), (3,)), "takes no sessions")


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (TurnsEnded(2.0, 0, (), ()), "hears of sessions"),
        (TurnsEnded(2.0, 0, (2,), (9,)), "does not generate"),
        (TurnsEnded(2.0, 0, (1,), (0,)), "a token or more"),
        (TurnsEnded(2.0, 0, (1,), (2, 3)), "how many tokens"),
        (TurnsEnded(2.0, 0, (0,), (40,)), "does not generate"),  # it is at its tool
        (ToolsReturned(2.0, (), ()), "has called"),
        (ToolsReturned(2.0, (1,), (3,)), "has called"),
        (ToolsReturned(2.0, (0, 0), (3, 3)), "each once"),
        (ToolsReturned(2.0, (0,), (-3,)), "how many tokens"),
        (ToolsReturned(2.0, (0,), (3,), (1,)), "ends sessions"),
        (ToolsReturned(2.0, (0,), (3,), (0, 0)), "ends sessions"),
        (ToolsReturned(2.0, (0,), 3), "cannot read it"),  # type: ignore[arg-type]
    ],
)
def test_events_that_cannot_be_change_nothing(event: TurnsEnded | ToolsReturned, why: str) -> None:
    cluster = begun()
    cluster.handle(TurnsEnded(1.0, 0, (0,), (20,)))
    refuse(cluster, event, why)


def test_the_routing_of_settings_is_a_name_or_a_table() -> None:
    assert ClusterConfig(routing=RoutingConfig(rule="prefix")).routing_config().rule == "prefix"
    with pytest.raises(InputError, match="routing"):
        ClusterConfig(routing="nearest")
    with pytest.raises(InputError, match="tools_at_once"):
        ClusterConfig(tools_at_once=-1)
