import numpy as np
import pytest

from analysis.bootstrap import mean_difference_s, speedup
from tltsched.errors import InputError


def test_a_constant_ratio_has_no_spread() -> None:
    base = np.array([3.0, 9.0, 5.0, 21.0])
    estimate = speedup(base, base / 2, seed=1)
    assert estimate.value == pytest.approx(2)
    assert estimate.interval == pytest.approx((2, 2))


def test_interval_of_the_mean_agrees_with_the_normal_law() -> None:
    rng = np.random.default_rng(5)
    differences = rng.normal(2.0, 1.0, size=400)
    estimate = mean_difference_s(10 + differences, np.full(400, 10.0), seed=0)
    error = differences.std(ddof=1) / np.sqrt(400)
    assert estimate.interval is not None
    assert estimate.value == pytest.approx(differences.mean())
    assert estimate.interval == pytest.approx(
        (differences.mean() - 1.96 * error, differences.mean() + 1.96 * error), abs=0.01
    )


def test_pairing_removes_what_both_arms_share() -> None:
    rng = np.random.default_rng(2)
    base = rng.lognormal(3, 1, size=50)
    paired = speedup(base, base / (1.5 + 0.01 * rng.standard_normal(50)), seed=0)
    shuffled = speedup(base, rng.permutation(base) / 1.5, seed=0)
    assert paired.interval is not None
    assert shuffled.interval is not None
    assert paired.interval[1] - paired.interval[0] < 0.1 * (shuffled.interval[1] - shuffled.interval[0])


def test_speedup_is_the_ratio_of_sums_not_the_mean_of_ratios() -> None:
    assert speedup(np.array([1.0, 100.0]), np.array([1.0, 50.0]), seed=0).value == pytest.approx(101 / 51)


def test_same_seed_same_interval() -> None:
    rng = np.random.default_rng(0)
    base, arm = rng.random(30) + 1, rng.random(30) + 1
    assert speedup(base, arm, seed=4) == speedup(base, arm, seed=4)
    assert speedup(base, arm, seed=4) != speedup(base, arm, seed=5)


def test_many_steps_are_drawn_in_blocks() -> None:
    base = np.linspace(1, 2, 3_000)
    estimate = speedup(base, base * 0.5, seed=0, resamples=2_000)
    assert estimate.interval == pytest.approx((2, 2))


@pytest.mark.parametrize("figure", [speedup, mean_difference_s])
def test_one_step_has_a_value_and_a_reason(figure) -> None:  # type: ignore[no-untyped-def]
    estimate = figure(np.array([4.0]), np.array([2.0]), seed=0)
    assert estimate.value == 2
    assert estimate.interval is None
    assert "at least 2 steps" in estimate.reason
    assert estimate.includes(1.0)


def test_no_steps_and_steps_without_time() -> None:
    none = np.array([])
    assert np.isnan(speedup(none, none, seed=0).value)
    assert np.isnan(mean_difference_s(none, none, seed=0).value)
    assert speedup(np.zeros(3), np.zeros(3), seed=0).interval is None
    assert speedup(np.ones(3), np.array([0.0, 1.0, 1.0]), seed=0).interval is None


def test_different_numbers_of_steps_are_refused() -> None:
    with pytest.raises(InputError, match="same steps"):
        speedup(np.ones(3), np.ones(2), seed=0)
