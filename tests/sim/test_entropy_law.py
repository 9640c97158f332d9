"""How a head's exponent goes with the policy's entropy."""

from __future__ import annotations

import numpy as np
import pytest

from evidence.training_claims import NATURAL
from tlt.sim.drift import load_drift
from tlt.sim.validate.training.acceptance_exponents import HeadSeries, common_law, series
from tlt.sim.validate.training.entropy import entropy_law
from tlt.sim.validate.training.run import TrainingRun


def _series(exponents: list[float]) -> HeadSeries:
    steps = np.arange(len(exponents))
    return HeadSeries("serving", "rollout", steps, np.array(exponents), np.ones(len(exponents)))


def test_a_power_of_entropy_is_found() -> None:
    nats = np.array([0.1, 0.2, 0.4, 0.8, 1.6])
    law = entropy_law(_series((3.0 * nats**0.5).tolist()), nats)
    assert law is not None
    assert law.elasticity.value == pytest.approx(0.5)
    assert law.explained == pytest.approx(1.0)
    assert (law.lowest_nats, law.highest_nats, law.steps) == (0.1, 1.6, 5)


def test_steps_without_entropy_are_left_out() -> None:
    nats = np.array([0.1, 0.0, 0.4, np.nan, 1.6, 0.2])
    law = entropy_law(_series([1.0, 9.0, 2.0, 9.0, 4.0, 2.0**0.5]), nats)
    assert law is not None
    assert law.steps == 4
    assert law.elasticity.value == pytest.approx(0.5)


@pytest.mark.parametrize("nats", [[0.1, 0.2, 0.3], [0.2] * 6, [0.0] * 6])
def test_too_few_or_equal_entropies_give_no_law(nats: list[float]) -> None:
    assert entropy_law(_series([1.0 + place for place in range(len(nats))]), np.array(nats)) is None


def test_acceptance_fell_with_entropy_in_the_recorded_training() -> None:
    run = TrainingRun(NATURAL / "static-4-online")
    served = series("serving", "rollout", np.arange(len(run.steps)), run.counts, common_law(run.counts))
    law = entropy_law(served, run.entropy())
    assert law is not None
    assert law.elasticity.interval is not None
    assert law.elasticity.interval[0] > 0.0
    assert 0.3 < law.explained < 0.6
    shipped = load_drift("smollm2-135m-h200").fit.entropy
    assert shipped is not None
    assert shipped.elasticity.value == pytest.approx(law.elasticity.value, rel=1e-6)
