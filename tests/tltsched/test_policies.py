"""Tables of none, static, table and threshold: a batch or an outcome in, a choice out."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome, Policy, PolicyConfig
from tltsched.policies.beg_mab import BegMabConfig
from tltsched.policies.none import NoneConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig
from tltsched.policies.threshold import ThresholdConfig
from tltsched.written.draft_config import parse_draft_config

BUCKETS = ((1, "10_8_64"), (5, "4"), (9, "off"))


def build(config: PolicyConfig) -> Policy:
    return config.build(Random(0), None)  # noqa: S311


def ran(draft_config: DraftConfig, engine_steps: int, requests: int = 4) -> Outcome:
    return Outcome(
        draft_config,
        engine_steps,
        engine_steps * requests,
        0.01 * engine_steps,
        (engine_steps,) * draft_config.depth,
    )


def batch(requests: int) -> Batch:
    return Batch(requests, requests * 1000)


def test_none_never_drafts_and_never_asks_again() -> None:
    policy = build(NoneConfig())
    assert policy.choose(batch(7)) == Choice(OFF, None, 1)
    assert (policy.when_off, policy.draft_configs, NoneConfig.needs_drafter) == (
        "not_configured",
        (OFF,),
        False,
    )


@pytest.mark.parametrize("text", ["4", "8_4_48", "off"])
def test_static_holds_one_draft_config_until_the_batch_is_empty(text: str) -> None:
    policy = build(StaticConfig(draft_config=text))
    assert policy.choose(batch(1)) == policy.choose(batch(300)) == Choice(parse_draft_config(text), None, 1)
    assert policy.draft_configs == (parse_draft_config(text),)


@pytest.mark.parametrize(
    ("requests", "draft_config", "lowest"),
    [(1, "10_8_64", 1), (4, "10_8_64", 1), (5, "4", 5), (8, "4", 5), (9, "off", 9), (500, "off", 9)],
)
def test_table_holds_a_draft_config_down_to_the_edge_of_its_bucket(
    requests: int, draft_config: str, lowest: int
) -> None:
    assert build(TableConfig(draft_configs_by_batch=BUCKETS)).choose(batch(requests)) == Choice(
        parse_draft_config(draft_config), None, lowest
    )


@pytest.mark.parametrize("buckets", [(), ((2, "4"),), ((1, "4"), (1, "2")), ((1, "4"), (9, "2"), (5, "1"))])
def test_table_refuses_buckets_that_do_not_rise_from_one(buckets: tuple[tuple[int, str], ...]) -> None:
    with pytest.raises(InputError, match="draft_configs_by_batch"):
        TableConfig(draft_configs_by_batch=buckets)


@pytest.mark.parametrize(
    "make",
    [
        lambda: StaticConfig(draft_config="fast"),
        lambda: TableConfig(draft_configs_by_batch=((1, "8_4"),)),
        lambda: BegMabConfig(strategies=("8_4_x",), thresholds=(1,)),
    ],
)
def test_a_draft_config_that_does_not_parse_is_a_users_error(make: object) -> None:
    assert callable(make)
    with pytest.raises(InputError, match="draft_config"):
        make()


def threshold(*, latch: bool, warmup_engine_steps: int = 10) -> Policy:
    inner = TableConfig(draft_configs_by_batch=((1, "4"), (3, "2")))
    return build(
        ThresholdConfig(
            inner=inner, threshold_requests=8, warmup_engine_steps=warmup_engine_steps, latch=latch
        )
    )


@pytest.mark.parametrize("latch", [False, True])
def test_threshold_is_off_above_warms_up_at_and_drafts_after(latch: bool) -> None:
    policy = threshold(latch=latch)
    policy.begin_rollout()
    assert policy.choose(batch(20)) == Choice(OFF, None, 9)
    policy.observe(ran(OFF, 5000, 20))
    assert policy.choose(batch(8)) == Choice(OFF, 10, 1)
    policy.observe(ran(OFF, 4, 8))
    assert policy.choose(batch(6)) == Choice(OFF, 6, 1)
    policy.observe(ran(OFF, 6, 6))
    assert policy.choose(batch(6)) == Choice(chain(2), None, 3)
    assert policy.choose(batch(2)) == Choice(chain(4), None, 1)


@pytest.mark.parametrize("latch", [False, True])
def test_a_batch_above_the_threshold_starts_the_warm_up_anew(latch: bool) -> None:
    policy = threshold(latch=latch)
    policy.begin_rollout()
    policy.choose(batch(8))
    policy.observe(ran(OFF, 9, 8))
    assert policy.choose(batch(9)) == Choice(OFF, None, 9)
    policy.observe(ran(OFF, 50, 9))
    assert policy.choose(batch(8)) == Choice(OFF, 10, 1)


@pytest.mark.parametrize(("latch", "draft_config"), [(False, OFF), (True, chain(2))])
def test_only_the_latch_keeps_drafting_above_the_threshold(latch: bool, draft_config: DraftConfig) -> None:
    policy = threshold(latch=latch)
    policy.begin_rollout()
    policy.choose(batch(8))
    policy.observe(ran(OFF, 10, 8))
    assert policy.choose(batch(8)).draft_config == chain(2)
    assert policy.choose(batch(30)).draft_config == draft_config


@pytest.mark.parametrize("latch", [False, True])
def test_a_rollout_begins_with_the_warm_up_open(latch: bool) -> None:
    policy = threshold(latch=latch)
    policy.choose(batch(8))
    policy.observe(ran(OFF, 10, 8))
    policy.begin_rollout()
    assert policy.choose(batch(8)) == Choice(OFF, 10, 1)


def test_a_rollout_releases_the_latch() -> None:
    policy = threshold(latch=True)
    policy.begin_rollout()
    policy.choose(batch(8))
    policy.observe(ran(OFF, 10, 8))
    assert policy.choose(batch(8)).draft_config == chain(2)
    assert policy.choose(batch(30)).draft_config == chain(2)  # latched
    policy.begin_rollout()
    assert policy.choose(batch(30)) == Choice(OFF, None, 9)
    assert policy.choose(batch(8)) == Choice(OFF, 10, 1)


def test_no_warm_up_drafts_at_once() -> None:
    assert threshold(latch=False, warmup_engine_steps=0).choose(batch(8)).draft_config == chain(2)


def test_threshold_names_all_draft_configs_and_how_it_switches() -> None:
    policy = threshold(latch=False)
    assert policy.draft_configs == (OFF, chain(4), chain(2))
    assert (policy.when_off, policy.resume_cost) == ("drafter_dropped", "draft_prefill")


def test_inner_policy_learns_only_from_drafting_decision_intervals() -> None:
    inner = BegMabConfig(strategies=("8_4_8", "4_4_8"), thresholds=(1,), epsilon=0.0)
    policy = build(ThresholdConfig(inner=inner, warmup_engine_steps=1))
    policy.choose(batch(8))
    policy.observe(ran(OFF, 1, 8))
    assert policy.choose(batch(8)).draft_config == parse_draft_config("8_4_8")
    policy.observe(Outcome(parse_draft_config("8_4_8"), 32, 256, 1.0, (100,)))
    assert policy.choose(batch(8)).draft_config == parse_draft_config("4_4_8")  # not tried yet
    policy.observe(Outcome(parse_draft_config("4_4_8"), 32, 256, 2.0, (100,)))
    assert policy.choose(batch(8)).draft_config == parse_draft_config("8_4_8")


@pytest.mark.parametrize(("field", "value"), [("threshold_requests", 0), ("warmup_engine_steps", -1)])
def test_threshold_refuses_counts_out_of_range(field: str, value: int) -> None:
    settings: dict[str, Any] = {field: value}
    with pytest.raises(InputError, match=field):
        ThresholdConfig(inner=StaticConfig(draft_config="4"), **settings)
