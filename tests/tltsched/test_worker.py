"""The worker's scheduler: events in, drafts out, and what it refuses."""

from __future__ import annotations

from random import Random

import pytest

from tltsched.commands import SetDraftConfig
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import ProtocolError
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan, RolloutEnded, WorkerEvent
from tltsched.policies import parse_policy
from tltsched.policies.base import PolicyConfig
from tltsched.policies.none import NoneConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig
from tltsched.policies.threshold import ThresholdConfig
from tltsched.step_times import DraftConfigTimes, StepTimeTable
from tltsched.worker import WorkerScheduler, WorkerState

DROPPED = TableConfig(
    draft_configs_by_batch=((1, "4"), (5, "off")), when_off="drafter_dropped", resume_cost="reprefill"
)


def scheduler(config: PolicyConfig) -> WorkerScheduler:
    return WorkerScheduler(3, config.build(Random(0), None))  # noqa: S311


def began(drafter_version: int = 0, t_s: float = 0.0) -> RolloutBegan:
    return RolloutBegan(t_s, 3, 0, drafter_version)


def formed(requests: int, t_s: float = 1.0) -> BatchFormed:
    return BatchFormed(t_s, 3, requests, 100 * requests)


def ended(
    draft_config: DraftConfig, requests: int, *, engine_steps: int = 5, t_s: float = 2.0
) -> DecisionEnded:
    accepted = (engine_steps,) * draft_config.depth
    return DecisionEnded(
        t_s,
        3,
        draft_config,
        engine_steps,
        engine_steps * 6,
        0.1 * engine_steps,
        accepted,
        (),
        requests,
        100 * requests,
    )


def by_request(*rows: tuple[int, int, int]) -> DecisionEnded:
    """Return one engine step without drafts, and what it says of requests nonetheless."""
    return DecisionEnded(2.0, 3, OFF, 1, 3, 0.1, (), (), 2, 200, rows)


def drafts(config: PolicyConfig, *events: WorkerEvent) -> list[tuple[SetDraftConfig, ...]]:
    worker = scheduler(config)
    return [worker.handle(event) for event in events]


def test_a_rollout_from_the_first_batch_to_the_last_request() -> None:
    assert drafts(
        DROPPED,
        began(),
        formed(9),
        ended(OFF, 4),
        ended(chain(4), 2),
        ended(chain(4), 0),
        RolloutEnded(9.0, 3),
    ) == [
        (),
        (SetDraftConfig(3, OFF, None, 5),),
        (SetDraftConfig(3, chain(4), None, 1, "reprefill"),),
        (SetDraftConfig(3, chain(4), None, 1),),
        (),
        (),
    ]


def test_drafting_from_the_start_needs_no_entry() -> None:
    assert drafts(DROPPED, began(), formed(3))[-1] == (SetDraftConfig(3, chain(4), None, 1),)


def test_an_entry_stays_due_until_a_drafting_decision_interval_has_run() -> None:
    *_, first, again, paid = drafts(
        DROPPED, began(), formed(9), ended(OFF, 4), ended(chain(4), 4, engine_steps=0), ended(chain(4), 3)
    )
    assert (first[0].resume_cost, again[0].resume_cost, paid[0].resume_cost) == (
        "reprefill",
        "reprefill",
        "none",
    )


def test_an_entry_is_due_again_after_each_time_off() -> None:
    *_, back_off, again = drafts(
        DROPPED,
        began(),
        formed(9),
        ended(OFF, 4),
        ended(chain(4), 4),
        formed(9, t_s=3.0),
        ended(OFF, 4, t_s=4.0),
    )
    assert (back_off[0].draft_config, again[0].resume_cost) == (OFF, "reprefill")


def test_a_batch_after_an_empty_engine_needs_no_entry() -> None:
    assert drafts(DROPPED, began(), formed(9), ended(OFF, 0), formed(2, t_s=3.0))[-1][0].resume_cost == "none"


@pytest.mark.parametrize("when_off", ["not_configured", "k0"])
def test_no_entry_is_due_where_nothing_was_dropped(when_off: str) -> None:
    config = TableConfig(
        draft_configs_by_batch=((1, "4"), (5, "off")),
        when_off="k0" if when_off == "k0" else "not_configured",
        resume_cost="reprefill",
    )
    assert drafts(config, began(), formed(9), ended(OFF, 4))[-1] == (
        SetDraftConfig(3, chain(4), None, 1, "none"),
    )


def test_without_a_drafter_the_rollout_runs_off() -> None:
    without: list[WorkerEvent] = [began(-1), formed(3), ended(OFF, 2)]
    assert drafts(StaticConfig(draft_config="4"), *without)[1:] == [(SetDraftConfig(3, OFF, None, 1),)] * 2
    worker = scheduler(StaticConfig(draft_config="4"))
    for event in (*without, RolloutEnded(3.0, 3), began(0, 4.0)):
        worker.handle(event)
    assert worker.handle(formed(3, 5.0)) == (SetDraftConfig(3, chain(4), None, 1),)


def test_a_policy_that_never_drafts_needs_no_drafter() -> None:
    assert drafts(NoneConfig(), began(-1), formed(3))[-1] == (SetDraftConfig(3, OFF, None, 1),)


def test_an_decision_interval_of_no_engine_steps_teaches_nothing() -> None:
    config = ThresholdConfig(
        inner=StaticConfig(draft_config="4"), threshold_requests=8, warmup_engine_steps=10
    )
    *_, none_ran, some_ran = drafts(
        config, began(), formed(8), ended(OFF, 8, engine_steps=0), ended(OFF, 8, engine_steps=4)
    )
    assert none_ran == (SetDraftConfig(3, OFF, 10, 1),)
    assert some_ran == (SetDraftConfig(3, OFF, 6, 1),)


def test_a_rollout_can_be_stopped_while_requests_run() -> None:
    worker = scheduler(NoneConfig())
    for event in (began(), formed(3), RolloutEnded(2.0, 3)):
        worker.handle(event)
    assert worker.state is WorkerState.RESTING


GOOD = ended(OFF, 2)


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ([], formed(3)),
        ([], GOOD),
        ([], RolloutEnded(1.0, 3)),
        ([began()], began(t_s=1.0)),
        ([began()], GOOD),
        ([began(), formed(3)], began(t_s=2.0)),
        ([began(), formed(3)], formed(3, t_s=0.5)),
        ([began(), formed(3)], formed(3, t_s=float("nan"))),
        ([began()], formed(0)),
        ([began()], BatchFormed(1.0, 3, 2, -1)),
        ([began()], BatchFormed(1.0, 4, 2, 100)),
        ([began(), formed(3)], ended(chain(4), 2)),
        ([began(), formed(3)], ended(OFF, -1)),
        ([began(), formed(3)], ended(OFF, 2, engine_steps=-1)),
        ([began(), formed(3)], DecisionEnded(2.0, 3, OFF, 1, 0, 0.1, (), (), 2, 200)),
        ([began(), formed(3)], DecisionEnded(2.0, 3, OFF, 1, 3, 0.0, (), (), 2, 200)),
        ([began(), formed(3)], DecisionEnded(2.0, 3, OFF, 1, 3, float("nan"), (), (), 2, 200)),
        ([began(), formed(3)], DecisionEnded(2.0, 3, OFF, 1, 3, 0.1, (-1,), (), 2, 200)),
        ([began(), formed(3)], DecisionEnded(2.0, 3, OFF, 1, 3, 0.1, (), (), 2, -200)),
        ([began(), formed(3)], by_request((1, 2, 0))),
        ([began(), formed(3)], by_request((1, -1, 0))),
        ([began(), formed(3)], by_request((1, 1, -1))),
        ([began(), formed(3)], by_request((1, 1, 1), (2, 0, 1))),
        ([began(), formed(3), RolloutEnded(2.0, 3)], ended(OFF, 2, t_s=3.0)),
    ],
)
def test_events_out_of_order_or_out_of_range_are_refused(
    before: list[WorkerEvent], refused: WorkerEvent
) -> None:
    worker = scheduler(NoneConfig())
    for event in before:
        worker.handle(event)
    state = worker.state
    with pytest.raises(ProtocolError, match="worker 3"):
        worker.handle(refused)
    assert worker.state is state


def test_a_scheduler_says_whether_its_policy_wants_drafts_by_request() -> None:
    times = StepTimeTable((DraftConfigTimes(OFF, (0.01,)), DraftConfigTimes(chain(1), (0.01,))))
    for spec, wants in (("goodput:off+1", True), ("goodput_mean:off+1", False), ("static:1", False)):
        policy = parse_policy(spec).build(Random(0), times)  # noqa: S311
        assert WorkerScheduler(3, policy).wants_requests is wants


@pytest.mark.parametrize("k", [1, 2])
def test_the_shortest_chain_pays_for_its_return_as_well(k: int) -> None:
    table = TableConfig(
        draft_configs_by_batch=((1, str(k)), (5, "off")), when_off="drafter_dropped", resume_cost="reprefill"
    )
    worker = scheduler(table)
    worker.handle(began())
    worker.handle(formed(9))
    (back,) = worker.handle(ended(OFF, 4))
    assert back == SetDraftConfig(3, chain(k), None, 1, "reprefill")
    (on,) = worker.handle(ended(chain(k), 3, t_s=3.0))
    assert on.resume_cost == "none"


def test_a_batch_that_starts_with_one_draft_has_its_drafter_in_step() -> None:
    worker = scheduler(TableConfig(
        draft_configs_by_batch=((1, "1"), (5, "off")), when_off="drafter_dropped", resume_cost="reprefill"
    ))  # fmt: skip
    worker.handle(began())
    (first,) = worker.handle(formed(3))
    assert first.resume_cost == "none"
    (again,) = worker.handle(ended(chain(1), 3))
    assert again.resume_cost == "none"
