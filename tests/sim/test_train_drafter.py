"""Train the drafter or leave it: exponents worked out by hand, and the choice at both ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sim.test_exports import CHAINS
from tlt.sim.advise.train_drafter import (
    Range,
    TrainOrLeave,
    exponents_left,
    exponents_trained,
    train_or_leave,
)
from tlt.sim.model.drafter import DrafterConfig
from tlt.sim.policy_set import policy_set
from tlt.traces.common.settings import merge
from tltsched.errors import InputError

SMALL: dict[str, Any] = {
    "workload": {"steps": 2, "prompts_per_step": 4, "samples_per_prompt": 4, "max_response_tokens": 600},
    "acceptance": {"survival_by_position": [0.8, 0.65, 0.5, 0.4]},
}


def answer(first_tokens: int = 0, policy: str = "static:4", steps: int = 50, **drafter: Any) -> TrainOrLeave:
    both = policy_set(merge(CHAINS, SMALL | {"drafter": drafter}), ["none", policy]).simulations
    return train_or_leave(both[policy], both["none"], policy, steps, first_tokens)


def test_exponents_of_a_drafter_that_is_left_and_of_one_that_is_trained() -> None:
    drafter = DrafterConfig(drift_per_update=0.1, recovery_tokens=1000)
    assert exponents_left(drafter, 3).tolist() == pytest.approx([1.0, 1.1, 1.2])
    kept = np.exp(-0.5)  # 500 tokens of 1,000
    second = 1.0 + 0.1 * kept + 0.1
    assert exponents_trained(drafter, 3, 1.0, 500).tolist() == pytest.approx([1.0, 1.1, second])
    assert exponents_trained(drafter, 4, 1.0, 0.0).tolist() == pytest.approx(
        exponents_left(drafter, 4).tolist()
    )
    rising = DrafterConfig(drift_per_update=-0.5)
    assert exponents_left(rising, 4)[-1] == pytest.approx(1e-3), "all drafts are accepted, nearly; no less"


def test_a_drafter_that_drifts_is_trained_and_one_that_does_not_is_left() -> None:
    drifting = answer(drift_per_update=0.2, recovery_tokens=2000.0)
    assert drifting.verdict == "train"
    assert drifting.saved.low > 0
    assert drifting.trained.value > drifting.training.value > 0
    assert drifting.left.value - drifting.trained.value == pytest.approx(drifting.saved.value)
    steady = answer(drift_per_update=0.0)
    assert steady.verdict == "leave"
    assert steady.saved.value == pytest.approx(-steady.training.value), "training then gains nothing"
    assert steady.share == 0.0625, "and the least of it is the least loss"
    dear = answer(drift_per_update=0.2, recovery_tokens=2000.0, training_tokens_per_s=0.5)
    assert dear.verdict == "leave"
    text = "\n".join(drifting.lines(2.0))
    assert text.startswith("static:4, 50 RL steps on 2 GPUs: train it on ")
    assert f"({drifting.saved.value * 2:,.0f} USD)" in text
    assert "each to a factor of 2" in text


def test_hours_have_three_figures_and_no_negative_zero() -> None:
    told = "\n".join(answer(drift_per_update=0.0).lines(None))
    assert "saved by training -0." in told
    assert "-0.0 " not in told
    assert Range(12345.6, 0.01234, -0.0004).text() == "12,346 [0.0123, -0.0004]"


@pytest.mark.parametrize("schedule", ["tail_batching", "bounded_async", "oversample_partial"])
def test_a_schedule_that_puts_responses_off_is_refused(schedule: str) -> None:
    with pytest.raises(InputError, match=f"got '{schedule}.* for cluster.schedule"):
        answer(policy=f"static:4@{schedule}")


def test_a_first_drafter_is_weighed_against_none() -> None:
    made = answer(first_tokens=1_000_000, exists=False, drift_per_update=0.01)
    assert made.left.value == pytest.approx(made.without_drafts)
    assert made.left.low == made.left.high, "no drafter drifts"
    one = 1_000_000 / 60_000 / 3600
    assert made.training.value > one
    huge = answer(first_tokens=10**12, exists=False)
    assert huge.verdict == "leave"


def test_what_cannot_be_weighed_is_refused() -> None:
    with pytest.raises(InputError, match="one that never drafts"):
        answer(policy="static:0")
    with pytest.raises(InputError, match="there is nothing to train"):
        answer(kind="ngram")
    with pytest.raises(InputError, match="first-tokens"):
        answer(first_tokens=10)
    with pytest.raises(InputError, match="first-tokens"):
        answer(exists=False)
