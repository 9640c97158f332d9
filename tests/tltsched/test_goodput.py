"""Goodput: the argmax, what holds it back, and the acceptance estimate under it."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Outcome
from tltsched.policies.estimators.acceptance import AcceptanceEstimate
from tltsched.policies.goodput import GoodputConfig, GoodputPolicy
from tltsched.step_times import DraftConfigTimes, StepTimeTable
from tltsched.written.draft_config import parse_draft_config

TREE = parse_draft_config("8_4_48")


def times(slope_s: float = 0.001) -> StepTimeTable:
    """10 ms an engine step, and `slope_s` for each verified token of each request beyond the first."""
    draft_configs = (OFF, chain(1), chain(2), chain(4), chain(8), TREE)
    return StepTimeTable(
        tuple(
            DraftConfigTimes(
                draft_config,
                tuple(0.01 + slope_s * requests * (draft_config.verify_tokens - 1) for requests in (0, 1)),
            )
            for draft_config in draft_configs
        )
    )


def policy(slope_s: float = 0.001, **settings: object) -> GoodputPolicy:
    config = GoodputConfig(**settings)  # type: ignore[arg-type]
    return config.build(Random(0), times(slope_s))  # noqa: S311


def ran(
    draft_config: DraftConfig, rate: float, request_steps: int = 100_000, engine_steps: int = 64
) -> Outcome:
    accepted = tuple(round(request_steps * rate ** (position + 1)) for position in range(draft_config.depth))
    return Outcome(draft_config, engine_steps, request_steps, 1.0, accepted)


def test_small_batches_draft_deep_and_large_ones_not_at_all() -> None:
    chosen = [policy().choose(Batch(requests, 0)).draft_config for requests in (1, 2, 4, 6, 64)]
    assert chosen == [chain(4), chain(2), chain(2), chain(1), OFF]


def test_the_choice_is_the_argmax_of_tokens_per_second() -> None:
    goodput = policy()
    survival = [0.7**position for position in range(1, 9)]
    for requests in (1, 3, 5, 9, 30):
        rates = {
            draft_config: (1 + sum(survival[: draft_config.depth]))
            / times().engine_step_s(draft_config, Batch(requests, 0))
            for draft_config in goodput.draft_configs
        }
        goodput.begin_rollout()
        assert goodput.choose(Batch(requests, 0)).draft_config == max(
            rates, key=lambda draft_config: rates[draft_config]
        )


def test_a_decision_holds_for_an_decision_interval() -> None:
    choice = policy(decision_engine_steps=17).choose(Batch(4, 0))
    assert (choice.max_engine_steps, choice.min_requests) == (17, 1)


def test_acceptance_moves_the_choice() -> None:
    goodput = policy()
    assert goodput.choose(Batch(6, 0)).draft_config == chain(1)
    goodput.observe(ran(chain(1), 0.05))
    assert goodput.choose(Batch(6, 0)).draft_config == OFF
    goodput.observe(ran(chain(1), 0.999))
    assert goodput.choose(Batch(6, 0)).draft_config.depth >= 4


def test_hysteresis_keeps_the_draft_config_in_use_until_the_gain_is_worth_it() -> None:
    for hysteresis, draft_config in ((0.0, OFF), (0.2, chain(1)), (10.0, chain(1))):
        goodput = policy(hysteresis=hysteresis, draft_configs=("off", "1"))
        assert goodput.choose(Batch(5, 0)).draft_config == chain(1)
        assert goodput.choose(Batch(9, 0)).draft_config == draft_config  # off is better by 12 %


def test_a_rollout_begins_without_a_draft_config_in_use() -> None:
    goodput = policy(hysteresis=10.0, draft_configs=("off", "1"))
    assert goodput.choose(Batch(2, 0)).draft_config == chain(1)
    goodput.begin_rollout()
    assert goodput.choose(Batch(64, 0)).draft_config == OFF


def test_a_dear_switch_is_not_made() -> None:
    for cost_s, draft_config in ((0.0, OFF), (10.0, chain(1))):
        goodput = policy(hysteresis=0.0, switch_cost_s=cost_s, draft_configs=("off", "1"))
        goodput.choose(Batch(5, 0))
        assert goodput.choose(Batch(9, 0)).draft_config == draft_config


@pytest.mark.parametrize("engine_steps", [16, 64])
def test_a_switch_costs_its_share_of_a_decision_interval(engine_steps: int) -> None:
    """At batch 9 a draft gives 9 x 1.7 tokens in 19 ms; off gives 9 in 10 ms, and as many a second in 11."""
    break_even_s = (9 * 0.019 / (9 * 1.7) - 0.01) * engine_steps
    for cost_s, draft_config in ((0.98 * break_even_s, OFF), (1.02 * break_even_s, chain(1))):
        goodput = policy(
            hysteresis=0.0, switch_cost_s=cost_s, draft_configs=("off", "1"),
            decision_engine_steps=engine_steps,
        )  # fmt: skip
        assert goodput.choose(Batch(5, 0)).draft_config == chain(1)
        assert goodput.choose(Batch(9, 0)).draft_config == draft_config


def test_a_probe_drafts_for_one_decision_interval_and_goes_back() -> None:
    goodput = policy(probe_every_engine_steps=128)
    assert goodput.choose(Batch(64, 0)).draft_config == OFF
    goodput.observe(Outcome(OFF, 64, 4096, 1.0, ()))
    assert goodput.choose(Batch(64, 0)).draft_config == OFF
    goodput.observe(Outcome(OFF, 64, 4096, 1.0, ()))
    probe = goodput.choose(Batch(64, 0))
    assert probe.draft_config == chain(1)
    goodput.observe(ran(probe.draft_config, 0.7))
    assert goodput.choose(Batch(64, 0)).draft_config == OFF


def test_the_requests_that_are_left_decide_not_the_average_of_all() -> None:
    # Two of eight accept nothing and are left; then four run that accept all, of which two are left.
    for hard, draft_config in ((True, OFF), (False, chain(8))):
        goodput, average = policy(), policy(by_request=False)
        rows = tuple((number, 64, 0 if (number < 2) is hard else 4 * 64) for number in range(8))
        total = sum(accepted for *_, accepted in rows) // 4
        told = Outcome(chain(4), 64, 8 * 64, 1.0, (total,) * 4, tuple(range(2, 8)), rows)
        chosen = []
        for each in (goodput, average):
            for _ in range(4):
                each.observe(told if each is goodput else msgspec.structs.replace(told, by_request=()))
            chosen.append(each.choose(Batch(2, 0)).draft_config)
        assert chosen[0] == draft_config
        assert chosen[1] != draft_config


def test_without_times_or_without_a_draft_config_in_them_it_cannot_be_built() -> None:
    with pytest.raises(InputError, match="calibration"):
        GoodputConfig().build(Random(0), None)  # noqa: S311
    with pytest.raises(InputError, match="'3' for draft_config"):
        policy(draft_configs=("off", "3"))


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("draft_configs", {"draft_configs": ()}),
        ("draft_configs", {"draft_configs": ("4", "4")}),
        ("draft_config", {"draft_configs": ("quick",)}),
        ("acceptance_prior", {"acceptance_prior": (0.5, 0.6)}),
        ("acceptance_prior", {"acceptance_prior": (float("nan"),)}),
        ("acceptance_prior", {"acceptance_prior": (1.2,)}),
        ("acceptance_prior", {"acceptance_prior": ()}),
        ("tree_prior", {"tree_prior": {"4": 3.0}}),
        ("tree_prior", {"tree_prior": {"8_4_48": 9.5}}),
        ("decision_engine_steps", {"decision_engine_steps": 0}),
        ("switch_cost_s", {"switch_cost_s": -1.0}),
        ("hysteresis", {"hysteresis": float("inf")}),
        ("memory_request_steps", {"memory_request_steps": 0.0}),
        ("probe_every_engine_steps", {"probe_every_engine_steps": -1}),
        ("request_spread", {"request_spread": 0.0}),
        ("request_memory_steps", {"request_memory_steps": float("nan")}),
    ],
)
def test_settings_out_of_range_are_named(field: str, settings: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        GoodputConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.field == field


def told(acceptance: AcceptanceEstimate, outcome: Outcome) -> None:
    acceptance.observe(outcome.draft_config, outcome.request_steps, outcome.shares())


def estimate(
    *prior: float, memory_request_steps: float = 1000.0, tree: float | None = None
) -> AcceptanceEstimate:
    return AcceptanceEstimate(prior, {} if tree is None else {TREE: tree}, memory_request_steps)


def test_the_prior_goes_on_geometrically() -> None:
    assert estimate(0.5, 0.4).tokens_per_engine_step(chain(4)) == pytest.approx(1 + 0.5 + 0.4 + 0.32 + 0.256)
    assert estimate(0.5).tokens_per_engine_step(OFF) == 1


def test_positions_beyond_those_observed_take_the_last_observed_rate() -> None:
    acceptance = estimate(0.9, 0.9, 0.9, 0.9)
    told(acceptance, Outcome(chain(2), 10, 1_000_000, 1.0, (600_000, 300_000)))
    assert acceptance.tokens_per_engine_step(chain(4)) == pytest.approx(
        1 + 0.6 + 0.3 + 0.15 + 0.075, rel=1e-6
    )


def test_a_position_out_of_use_keeps_its_rate_and_follows_those_before_it() -> None:
    acceptance = estimate(0.9)
    told(acceptance, Outcome(chain(2), 10, 1_000_000, 1.0, (800_000, 200_000)))
    told(acceptance, Outcome(chain(1), 10, 1_000_000, 1.0, (400_000,)))
    assert acceptance.tokens_per_engine_step(chain(2)) == pytest.approx(1 + 0.4 + 0.1, rel=1e-6)


def test_an_decision_interval_replaces_the_share_of_knowledge_that_its_size_is_worth() -> None:
    acceptance = estimate(0.5, memory_request_steps=1000)
    told(acceptance, Outcome(chain(1), 7, 693, 1.0, (693,)))  # 693 = 1000 ln 2: half of what was known
    assert acceptance.tokens_per_engine_step(chain(1)) == pytest.approx(1.75, abs=1e-3)


def test_positions_left_out_accepted_nothing() -> None:
    acceptance = estimate(0.9)
    told(acceptance, Outcome(chain(3), 10, 1_000_000, 1.0, (500_000,)))
    assert acceptance.tokens_per_engine_step(chain(8)) == pytest.approx(1.5, rel=1e-6)


def test_a_tree_is_worth_its_prior_or_its_chain_until_it_runs() -> None:
    acceptance = estimate(0.5, tree=6.4)
    assert acceptance.tokens_per_engine_step(TREE) == 6.4
    assert estimate(0.5).tokens_per_engine_step(TREE) == estimate(0.5).tokens_per_engine_step(chain(8))
    told(acceptance, Outcome(TREE, 10, 1_000_000, 1.0, (900_000, 800_000, 700_000)))
    assert acceptance.tokens_per_engine_step(TREE) == pytest.approx(3.4, rel=1e-6)
    assert acceptance.tokens_per_engine_step(chain(1)) == 1.5
