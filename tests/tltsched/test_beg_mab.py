"""BEG-MAB: buckets, the pick, and what the paper's and the released rewards do differently."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome
from tltsched.policies.beg_mab import RELEASED_GROUPS, BegMabConfig, BegMabPolicy, PaperBegMab
from tltsched.policies.estimators.sliding_median import Window
from tltsched.written.draft_config import parse_draft_config

WIDE, FAST, SLOW = "10_8_64", "8_8_16", "4_8_16"


class ScriptedRng:
    """Gives the floats of a script, then 1.0 - epsilon for ever; randrange gives the last index."""

    def __init__(self, *floats: float) -> None:
        self._floats: Iterator[float] = iter(floats)

    def random(self) -> float:
        return next(self._floats, 0.999)

    def randrange(self, stop: int) -> int:
        return stop - 1


def policy(variant: str, *floats: float, window: int = 300) -> BegMabPolicy:
    config = BegMabConfig(
        variant="released" if variant == "released" else "paper",
        strategies=(FAST, WIDE, SLOW),
        thresholds=(1, 5),
        window=window,
    )
    return config.build(ScriptedRng(*floats), None)


def ran(
    draft_config: str, requests: int, accepted: float, engine_step_s: float, engine_steps: int = 32
) -> Outcome:
    """An decision interval with `accepted` drafts a request and engine step, bonus token not counted."""
    request_steps = requests * engine_steps
    return Outcome(
        parse_draft_config(draft_config),
        engine_steps,
        request_steps,
        engine_step_s * engine_steps,
        (round(accepted * request_steps),),
    )


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_the_widest_verification_serves_the_smallest_batches(variant: str) -> None:
    assert policy(variant).choose(Batch(4, 0)) == Choice(parse_draft_config(WIDE), None, 1)
    assert policy(variant).choose(Batch(5, 0)).draft_config.verify_tokens == 16


def test_shipped_settings_are_a_table() -> None:
    shipped = BegMabConfig(variant="released").build(ScriptedRng(), None)
    widths = {requests: shipped.choose(Batch(requests, 0)) for requests in (1, 2, 4, 5, 20, 21, 300)}
    assert {requests: choice.draft_config.verify_tokens for requests, choice in widths.items()} == {
        1: 48,
        2: 32,
        4: 32,
        5: 16,
        20: 16,
        21: 8,
        300: 8,
    }
    assert [choice.max_engine_steps for choice in widths.values()] == [None] * 7
    assert [choice.min_requests for choice in widths.values()] == [1, 2, 2, 5, 5, 21, 21]


@pytest.mark.parametrize(("variant", "lowest"), [("paper", 5), ("released", 9)])
def test_a_contested_bucket_is_picked_again_each_decision_interval(variant: str, lowest: int) -> None:
    choice = policy(variant).choose(Batch(9, 0))
    assert (choice.max_engine_steps, choice.min_requests) == (64, lowest)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_unseen_strategies_come_first_in_order_then_the_best_median(variant: str) -> None:
    bandit = policy(variant)
    assert bandit.choose(Batch(9, 0)).draft_config == parse_draft_config(FAST)
    bandit.observe(ran(FAST, 9, 2.0, 0.02))
    assert bandit.choose(Batch(9, 0)).draft_config == parse_draft_config(SLOW)
    bandit.observe(ran(SLOW, 9, 2.0, 0.03))
    assert bandit.choose(Batch(9, 0)).draft_config == parse_draft_config(FAST)
    bandit.begin_rollout()
    assert bandit.choose(Batch(9, 0)).draft_config == parse_draft_config(FAST)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_with_probability_epsilon_the_pick_is_random(variant: str) -> None:
    assert policy(variant, 0.0999).choose(Batch(9, 0)).draft_config == parse_draft_config(SLOW)
    assert policy(variant, 0.1001).choose(Batch(9, 0)).draft_config == parse_draft_config(FAST)


def test_only_the_paper_shares_rewards_between_batch_sizes() -> None:
    picks: dict[str, DraftConfig] = {}
    for variant in ("paper", "released"):
        bandit = policy(variant)
        bandit.observe(ran(FAST, 9, 1.0, 0.03))
        bandit.observe(ran(SLOW, 9, 3.0, 0.03))
        assert bandit.choose(Batch(9, 0)).draft_config == parse_draft_config(SLOW)
        picks[variant] = bandit.choose(Batch(12, 0)).draft_config
    assert picks == {
        "paper": parse_draft_config(SLOW),
        "released": parse_draft_config(FAST),
    }  # unseen in the group of 12


def test_paper_rewards_the_tokens_of_the_engine_step() -> None:
    bandit = policy("paper")
    assert isinstance(bandit, PaperBegMab)
    bandit.observe(ran(FAST, 10, 2.5, 0.05))
    assert bandit._score(10, parse_draft_config(FAST)) == pytest.approx((2.5 + 1) * 10 / 0.05)


def test_released_rewards_the_stable_acceptance_of_all_groups() -> None:
    bandit = policy("released", 0.999, 0.0)
    bandit.observe(ran(FAST, 10, 2.0, 0.05))
    bandit.observe(ran(FAST, 20, 5.0, 0.05))  # not refreshed: rewarded with the 3 tokens of before
    assert bandit._score(20, parse_draft_config(FAST)) == pytest.approx(3 * 20 / 0.05)
    bandit.observe(ran(FAST, 30, 5.0, 0.05))  # refreshed: as many engine steps of 3 as of 6 tokens are known
    assert bandit._score(30, parse_draft_config(FAST)) == pytest.approx(4.5 * 30 / 0.05)


def test_released_refreshes_once_in_ten_engine_steps_however_long_the_decision_interval() -> None:
    for float_drawn, tokens in ((0.18, 4.5), (0.20, 3.0)):  # 1 - 0.9 ** 2 = 0.19
        bandit = policy("released", float_drawn, float_drawn)
        bandit.observe(ran(FAST, 10, 2.0, 0.05, engine_steps=2))
        bandit.observe(ran(FAST, 20, 5.0, 0.05, engine_steps=2))
        bandit.observe(ran(FAST, 30, 5.0, 0.05, engine_steps=2))
        assert bandit._score(30, parse_draft_config(FAST)) == pytest.approx(tokens * 30 / 0.05)


def test_released_gives_the_first_engine_step_of_a_strategy_nothing() -> None:
    bandit = policy("released")
    bandit.observe(ran(FAST, 10, 2.0, 0.05, engine_steps=1))
    assert bandit._score(10, parse_draft_config(FAST)) == 0
    bandit.observe(ran(FAST, 11, 2.0, 0.05, engine_steps=1))
    assert bandit._score(11, parse_draft_config(FAST)) == pytest.approx(3 * 11 / 0.05)


def test_released_groups_grow_coarser() -> None:
    assert [bandit_group(requests) for requests in (1, 31, 32, 39, 40, 127, 128, 159, 256, 900)] == [
        *(1, 31, 32, 32, 40, 120, 128, 128, 256, 256)
    ]
    assert len(RELEASED_GROUPS) == 31 + 12 + 5


def bandit_group(requests: int) -> int:
    return policy("released")._group(requests)


def test_the_window_forgets_old_rewards() -> None:
    bandit = policy("paper", window=40)
    bandit.observe(ran(FAST, 10, 9.0, 0.05, engine_steps=1000))
    bandit.observe(ran(FAST, 10, 1.0, 0.05, engine_steps=32))
    assert bandit._score(10, parse_draft_config(FAST)) == pytest.approx(2 * 10 / 0.05)


@given(
    st.integers(1, 12), st.lists(st.tuples(st.floats(0, 100), st.integers(1, 15)), min_size=1, max_size=12)
)
def test_a_window_answers_as_a_plain_deque_would(length: int, added: list[tuple[float, int]]) -> None:
    window = Window(length)
    plain: list[float] = []
    for value, count in added:
        window.add(value, count)
        plain = (plain + [value] * count)[-length:]
        assert window.median() == median(plain)
        assert sum(count for _, count in window.entries) == len(plain)


def test_an_empty_window_has_no_median() -> None:
    assert Window(3).median() is None


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("thresholds", {"thresholds": (1, 2)}),
        ("thresholds", {"thresholds": (2, 3, 5, 21)}),
        ("thresholds", {"thresholds": (1, 5, 2, 21)}),
        ("strategies", {"strategies": ("8_4_48", "8_4_48"), "thresholds": (1,)}),
        ("strategies", {"strategies": ("off",), "thresholds": (1,)}),
        ("strategies", {"strategies": (), "thresholds": ()}),
        ("epsilon", {"epsilon": 1.5}),
        ("epsilon", {"epsilon": float("nan")}),
        ("window", {"window": 0}),
        ("decision_engine_steps", {"decision_engine_steps": 0}),
    ],
)
def test_settings_out_of_range_are_named(field: str, settings: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        BegMabConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.field == field
