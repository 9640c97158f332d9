import numpy as np
import pytest

from tlt.traces.common.intervals import NOTHING, Resamples, divide, fastest_shares, mean_difference_s, speedup
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


def test_pairing_removes_what_both_policies_share() -> None:
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
    base, policy = rng.random(30) + 1, rng.random(30) + 1
    assert speedup(base, policy, seed=4) == speedup(base, policy, seed=4)
    assert speedup(base, policy, seed=4) != speedup(base, policy, seed=5)


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
    assert not estimate.above(1.0)


def test_no_steps_and_steps_without_time() -> None:
    none = np.array([])
    assert np.isnan(speedup(none, none, seed=0).value)
    assert np.isnan(mean_difference_s(none, none, seed=0).value)
    assert speedup(np.zeros(3), np.zeros(3), seed=0).interval is None
    assert speedup(np.ones(3), np.array([0.0, 1.0, 1.0]), seed=0).interval is None


def test_different_numbers_of_steps_are_refused() -> None:
    with pytest.raises(InputError, match="same steps"):
        speedup(np.ones(3), np.ones(2), seed=0)


def _drawn(*ratios: float) -> np.ndarray:
    """Times of 6 equal steps in each row, so that rows differ and steps do not."""
    return np.array(ratios)[:, np.newaxis] * np.ones(6)


def test_draws_are_pooled_for_the_interval_and_the_fit_gives_the_value() -> None:
    ratios = np.linspace(1.2, 1.6, 101)
    estimate = speedup(_drawn(3.0, *ratios), _drawn(*np.ones(102)), seed=0)
    assert estimate.value == pytest.approx(3.0)
    assert estimate.interval == pytest.approx((1.21, 1.59), abs=0.005)
    assert mean_difference_s(_drawn(3.0, *ratios), _drawn(*np.ones(102)), seed=0).interval == pytest.approx(
        (0.21, 0.59), abs=0.005
    )


def test_pooling_adds_the_spread_of_draws_to_that_of_steps() -> None:
    rng = np.random.default_rng(3)
    base, policy = rng.lognormal(0, 0.1, 40), rng.lognormal(0, 0.1, 40)
    factors = np.exp(0.05 * rng.standard_normal(200))
    steps_only = speedup(base, policy, seed=0)
    pooled = speedup(
        np.vstack([base, *(base * factor for factor in factors)]), np.tile(policy, (201, 1)), seed=0
    )
    assert steps_only.interval is not None
    assert pooled.interval is not None
    assert pooled.value == steps_only.value
    widths = [np.log(high / low) / (2 * 1.96) for low, high in (steps_only.interval, pooled.interval)]
    assert widths[1] == pytest.approx(np.hypot(widths[0], factors.std()), rel=0.1)


def test_policies_are_paired_by_draw() -> None:
    factors = (1.0, 0.5, 0.8, 1.7)
    estimate = speedup(2 * _drawn(*factors), _drawn(*factors), seed=0)
    assert estimate.interval == pytest.approx((2, 2))


def test_a_single_row_is_its_own_pool() -> None:
    rng = np.random.default_rng(0)
    base, policy = rng.random(30) + 1, rng.random(30) + 1
    assert speedup(base[np.newaxis], policy[np.newaxis], seed=4) == speedup(base, policy, seed=4)


def test_draws_of_one_step_have_no_interval() -> None:
    assert speedup(np.ones((3, 1)), np.ones((3, 1)), seed=0).interval is None


def test_shares_of_the_fastest_count_draws_but_not_the_fit() -> None:
    shares = fastest_shares([_drawn(9, 1, 1, 1, 1), _drawn(1, 2, 2, 2, 0.5), _drawn(9, 9, 9, 9, 9)], seed=0)
    assert shares.tolist() == [0.75, 0.25, 0.0]


def test_shares_of_the_fastest_count_steps_and_ties_go_to_the_earlier_policy() -> None:
    even, uneven = np.ones(2), np.array([0.5, 1.6])
    assert fastest_shares([even, even], seed=0).tolist() == [1.0, 0.0]
    assert fastest_shares([even, uneven], seed=0) == pytest.approx([0.75, 0.25], abs=0.03)


def test_ratios_have_the_interval_of_the_plain_bootstrap() -> None:
    rng = np.random.default_rng(3)
    base, policy = rng.uniform(1, 3, 12), rng.uniform(1, 2, 12)
    sample = Resamples(12)
    mine, plain = sample.estimate(sample.ratio(base, policy)), speedup(base, policy)
    assert mine.value == pytest.approx(plain.value)
    assert mine.interval == pytest.approx(plain.interval)


def test_slope_of_a_line_has_no_spread() -> None:
    x = np.arange(8.0)
    sample = Resamples(8)
    found = sample.estimate(sample.slope(x, 2.0 - 0.5 * x))
    assert found.value == pytest.approx(-0.5)
    assert found.interval == pytest.approx((-0.5, -0.5))


def test_a_slope_over_one_place_does_not_exist() -> None:
    sample = Resamples(3)
    assert np.isnan(sample.estimate(sample.slope(np.ones(3), np.arange(3.0))).value)


def test_too_few_units_have_no_interval_and_say_so() -> None:
    one = Resamples(1, "updates").mean(np.array([2.0]))
    assert (one.value, one.interval, one.reason) == (2.0, None, "needs at least 2 updates")
    none = Resamples(0).mean(np.array([]))
    assert np.isnan(none.value)
    assert none.reason == NOTHING


def test_a_figure_that_most_resamples_lack_has_no_interval() -> None:
    sample = Resamples(10)
    rare = np.zeros(10)
    rare[0] = 1.0
    # about two thirds of the resamples draw the only unit that counts; of two such conditions under half do
    both = sample.ratio(np.ones(10), rare) * sample.ratio(np.ones(10), rare[::-1])
    found = sample.estimate(both)
    assert found.value == 100.0
    assert found.interval is None
    assert "too few" in found.reason


def test_division_by_nothing_is_not_a_number() -> None:
    assert np.isnan(divide(np.ones(1), np.zeros(1)))[0]
