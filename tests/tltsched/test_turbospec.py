"""TurboSpec: the acceptance rate, the linear law, and the K that follows from both."""

from __future__ import annotations

from math import exp
from random import Random

import pytest

from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome
from tltsched.policies.turbospec import LinearLaw, TurboSpecConfig, TurboSpecPolicy, least_squares
from tltsched.step_times import DraftConfigTimes, StepTimeTable

DRAFT_CONFIGS = tuple(chain(k) for k in range(5))
# Linear as the rule wants it: 10 s, 0.1 s a token read, 2 s a draft pass, 0.001 s a token of context.
LINEAR = StepTimeTable(
    tuple(
        DraftConfigTimes(
            draft_config,
            tuple(10 + 2.0 * draft_config.depth + 0.1 * draft_config.verify_tokens * b for b in (0, 1)),
            0.001,
        )
        for draft_config in DRAFT_CONFIGS
    )
)


def policy(**settings: object) -> TurboSpecPolicy:
    config = TurboSpecConfig(max_k=4, **settings)  # type: ignore[arg-type]
    return config.build(Random(0), LINEAR)  # noqa: S311


def test_least_squares_finds_the_line_and_splits_what_does_not_fit() -> None:
    assert least_squares([(0.0, 1.0), (2.0, 1.0), (4.0, 1.0)], [1.0, 5.0, 9.0]) == pytest.approx([2, 1])
    assert least_squares([(0.0, 1.0), (1.0, 1.0), (2.0, 1.0)], [0.0, 3.0, 0.0]) == pytest.approx([0, 1])


def test_a_linear_engine_is_fitted_exactly() -> None:
    law = LinearLaw(DRAFT_CONFIGS, LINEAR)
    assert law.coefficients == pytest.approx([0.001, 0.1, 2.0, 10.0])
    for draft_config in DRAFT_CONFIGS:
        batch = Batch(37, 50_000)
        assert law.engine_step_s(draft_config, batch) == pytest.approx(
            LINEAR.engine_step_s(draft_config, batch)
        )


def test_a_bent_engine_is_not_but_stays_above_its_fastest_engine_step() -> None:
    bent = StepTimeTable(
        tuple(
            DraftConfigTimes(
                draft_config,
                tuple(1.0 + max(0.0, b * draft_config.verify_tokens - 200.0) for b in range(300)),
            )
            for draft_config in DRAFT_CONFIGS
        )
    )
    law = LinearLaw(DRAFT_CONFIGS, bent)
    assert law.engine_step_s(chain(4), Batch(16, 0)) > bent.engine_step_s(chain(4), Batch(16, 0))
    assert law.engine_step_s(OFF, Batch(1, 0)) >= 1.0


def test_the_rate_counts_only_drafts_that_were_judged() -> None:
    turbo = policy(rate_prior=0.5, memory_request_steps=100.0)
    # 100 engine steps of one request: 60 first drafts, 30 second ones and 15 third ones were accepted; 100,
    # 60, 30 and 15 were judged
    turbo.observe(Outcome(chain(4), 100, 100, 1.0, (60, 30, 15)))
    assert turbo.rate == pytest.approx(exp(-1) * 0.5 + (1 - exp(-1)) * 105 / 205)
    before = turbo.rate
    turbo.observe(Outcome(OFF, 100, 100, 1.0, ()))
    assert turbo.rate == before


@pytest.mark.parametrize(
    ("rate", "requests", "context", "k"),
    [
        # tokens 1, 1.7, 2.19, 2.533, 2.7731; a request: 10.1, 12.2, 14.3, 16.4, 18.5 s
        (0.7, 1, 0, 3),  # 0.0990, 0.1393, 0.15315, 0.15445, 0.1499
        # 100 requests: 20, 32, 44, 56, 68 s
        (0.7, 100, 0, 1),  # 0.05, 0.0531, 0.0498
        (0.5, 100, 0, 0),  # 0.05, 0.0469
        # 100 requests and 100 s of context: 120, 132, 144, 156, 168 s
        (0.7, 100, 100_000, 4),  # 0.0083, 0.0129, 0.0152, 0.01624, 0.01651
        (0.0, 1, 0, 0),
        (1.0, 1, 0, 4),
    ],
)
def test_the_k_of_the_highest_goodput(rate: float, requests: int, context: int, k: int) -> None:
    assert policy(rate_prior=rate).choose(Batch(requests, context)) == Choice(chain(k), 16, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_k", 0), ("decision_engine_steps", 0), ("rate_prior", 1.1), ("memory_request_steps", float("inf"))],
)
def test_settings_that_cannot_be_are_named(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"for {field}"):
        TurboSpecConfig(**{field: value})  # type: ignore[arg-type]
