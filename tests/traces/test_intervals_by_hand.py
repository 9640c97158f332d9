"""Intervals against the formulas that they name, written out once more with plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import (
    DRAWS_PER_ROW,
    LEVEL,
    LONG_TAILED,
    TAIL,
    Estimate,
    Jackknife,
    divide,
    drawn_sums,
    few_words,
    interval_of,
    mean_difference_s,
    speedup,
)
from tltsched.errors import InputError

ABOVE = np.array([3.0, 9.0, 5.0, 21.0, 8.0])
BELOW = np.array([2.0, 5.0, 4.0, 7.0, 6.0])


def left_out(above: Floats, below: Floats) -> list[float]:
    """Return the ratio of sums without each unit."""
    return [(above.sum() - a) / (below.sum() - b) for a, b in zip(above, below, strict=True)]


def hall(figure: float, without: list[float], level: float) -> float:
    """Return one end of an interval: Student's quantile through Hall's cubic, skewness shrunk."""
    n = len(without)
    mean = sum(without) / n
    influences = [(n - 1) * (mean - each) for each in without]
    spread = math.sqrt(sum(u**2 for u in influences) / n)
    skew = sum(u**3 for u in influences) / n / spread**3 * (n - 2) / (n + 1)
    student = LONG_TAILED * stats.t.ppf(level, n - 1) / math.sqrt(n - 1)
    w = 3 / skew * (np.cbrt(1 + skew * (student - skew / (6 * n))) - 1)
    return figure - spread * float(w)


def plain(figure: float, without: list[float]) -> tuple[float, float]:
    """Return Student's interval without any correction."""
    n = len(without)
    mean = sum(without) / n
    error = math.sqrt(sum(((n - 1) * (mean - each)) ** 2 for each in without) / (n * (n - 1)))
    reach = LONG_TAILED * float(stats.t.ppf(0.975, n - 1)) * error
    return figure - reach, figure + reach


def test_the_level_and_what_is_added_for_long_tails() -> None:
    assert (0.95, pytest.approx(0.025), 1.05) == (LEVEL, TAIL, LONG_TAILED)


def test_a_positive_ratio_has_students_interval_of_its_logarithm() -> None:
    jackknife = Jackknife(5)
    found = jackknife.estimate(jackknife.ratio(ABOVE, BELOW), positive=True)
    logs = [math.log(each) for each in left_out(ABOVE, BELOW)]
    low, high = plain(math.log(46 / 24), logs)
    assert found.value == pytest.approx(46 / 24)
    assert found.interval == pytest.approx((math.exp(low), math.exp(high)))


def test_other_figures_are_corrected_for_skewness() -> None:
    jackknife = Jackknife(5)
    found = jackknife.estimate(jackknife.ratio(ABOVE, BELOW))
    ends = [hall(46 / 24, left_out(ABOVE, BELOW), level) for level in (0.025, 0.975)]
    assert found.interval == pytest.approx((min(ends), max(ends)))
    assert found.interval != pytest.approx(plain(46 / 24, left_out(ABOVE, BELOW)))


def test_a_figure_that_is_not_above_0_has_no_logarithm() -> None:
    """As of a share that is 0 without one of its units."""
    figures = np.array([0.5, 0.0, 1.0, 0.7])
    jackknife = Jackknife(3)
    assert jackknife.estimate(figures, positive=True) == jackknife.estimate(figures)


@pytest.mark.parametrize(
    ("skewed", "side"), [([1.0, 1.0, 1.0, 1.0, 1.0, 9.0], 1), ([9.0, 9.0, 9.0, 9.0, 9.0, 1.0], -1)]
)
def test_an_interval_reaches_farther_to_where_the_tail_is(skewed: list[float], side: int) -> None:
    found = Jackknife(6).mean(np.array(skewed))
    assert found.interval is not None
    up, down = found.interval[1] - found.value, found.value - found.interval[0]
    assert (up - down) * side > 0.1 * found.value * side * side


def test_few_parameters_more_cost_degrees_of_freedom() -> None:
    x, y = np.array([0.0, 1.0, 2.0, 4.0, 7.0]), np.array([1.0, 2.0, 2.5, 6.0, 6.5])
    line = Jackknife(5, "runs", parameters=2)
    slopes = line.slope(x, y)
    expected = [np.polyfit(x, y, 1)[0]] + [
        np.polyfit(np.delete(x, i), np.delete(y, i), 1)[0] for i in range(5)
    ]
    assert slopes == pytest.approx(expected)
    wide, narrow = line.estimate(slopes).interval, Jackknife(5).estimate(slopes).interval
    assert wide is not None
    assert narrow is not None
    assert wide[1] - wide[0] > narrow[1] - narrow[0]
    assert Jackknife(2, "runs", parameters=2).estimate(np.ones(3)).reason == "needs at least 3 runs"
    assert Jackknife(3, "runs", parameters=2).estimate(np.array([1.0, 1.1, 0.9, 1.05])).interval is not None
    assert Jackknife(1).estimate(np.ones(2)).reason == "needs at least 2 steps"
    assert Jackknife(2).estimate(np.ones(3)).interval == pytest.approx((1.0, 1.0))


def test_a_line_through_equal_places_has_no_slope() -> None:
    assert np.isnan(Jackknife(3).slope(np.ones(3), np.arange(3.0))).all()


def test_sums_without_a_unit_count_as_many() -> None:
    jackknife = Jackknife(4)
    values = np.array([[1.0, 2.0, 3.0, 6.0], [0.0, 4.0, 4.0, 4.0]])
    assert jackknife.sums(values) == pytest.approx(
        np.array([[12, 44 / 3, 40 / 3, 12, 8], [12, 16, 32 / 3, 32 / 3, 32 / 3]])
    )
    assert jackknife.means(values)[0] == pytest.approx([3, 11 / 3, 10 / 3, 3, 2])
    assert np.isnan(Jackknife(1).sums(np.array([5.0]))[1])
    assert Jackknife(0).means(np.zeros(0)).tolist() == [0.0]


def test_units_without_a_lower_part_are_left_out() -> None:
    above, below = np.array([3.0, 7.0, 9.0, 5.0]), np.array([2.0, 0.0, 5.0, 4.0])
    assert Jackknife(4).estimate_ratio(above, below) == Jackknife(3).estimate(
        Jackknife(3).ratio(above[[0, 2, 3]], below[[0, 2, 3]])
    )
    share = Jackknife(3).share(np.array([0.0, 0.1, 1.9]), np.array([2.0, 2.0, 2.0]))
    assert share.value == pytest.approx(1 / 3)
    assert share.interval is not None
    assert share.interval[0] == 0.0
    assert share.interval[1] == 1.0
    alike = Jackknife(3).share(np.array([0.5, 0.5, 0.5]), np.ones(3))
    assert alike.interval == pytest.approx((0.5, 0.5))


def test_an_estimate_claims_what_its_whole_interval_does() -> None:
    estimate = Estimate(2.0, (1.0, 3.0))
    assert estimate.above(0.99)
    assert not estimate.above(1.0)
    assert not Estimate(2.0, None, "few").above(0.0)
    assert estimate.mapped(lambda x: x * 2) == Estimate(4.0, (2.0, 6.0))
    assert Estimate(2.0, None, "few").mapped(lambda x: x * 2) == Estimate(4.0, None, "few")


def test_words_on_few_units() -> None:
    assert few_words(1, "step") == "of only 1 step no interval can be told"
    assert "over only 2 steps" in few_words(2, "step")
    assert "in one of 2" in few_words(2, "step")


def test_ends_hold_95_of_100() -> None:
    assert interval_of(np.arange(1001.0)) == pytest.approx((25.0, 975.0))
    assert divide(np.array([1.0, 2.0]), np.array([2.0, 0.0]))[0] == 0.5
    assert np.isnan(divide(np.array([1.0, 2.0]), np.array([2.0, 0.0]))[1])


def test_a_mixture_of_equal_rows_is_about_the_interval_of_one() -> None:
    """Its ends are quantiles of so many points of Student's law."""
    jackknife = Jackknife(5)
    figures = jackknife.ratio(ABOVE, BELOW)
    one = jackknife.mixture_interval(figures[np.newaxis], True)
    low, high = jackknife.mixture_interval(np.stack([figures] * 3), True)
    assert low == pytest.approx(one[0], rel=0.02)
    assert high == pytest.approx(one[1], rel=0.02)
    points = (np.arange(DRAWS_PER_ROW) + 0.5) / DRAWS_PER_ROW
    logs = np.log(figures)
    influences = 4 * (logs[1:].mean() - logs[1:])
    spread = math.sqrt((influences**2).mean())
    ends = logs[0] - spread * LONG_TAILED * stats.t.ppf(points, 4) / 2
    assert (low, high) == pytest.approx(tuple(np.exp(np.quantile(np.tile(ends, 3), [0.025, 0.975]))))


def test_draws_of_the_step_times_widen_an_interval_and_leave_the_value() -> None:
    fit = np.array([10.0, 12.0, 9.0, 11.0])
    base = np.stack([fit, fit * 1.2, fit * 0.8])
    policy = np.stack([fit / 2] * 3)
    found = speedup(base, policy)
    assert found.value == pytest.approx(2.0)
    assert found.interval == pytest.approx((1.6, 2.4), rel=0.01)
    alone = speedup(fit, fit / 2)
    assert alone.interval == pytest.approx((2.0, 2.0))
    difference = mean_difference_s(base, policy)
    assert difference.value == pytest.approx(10.5 / 2)


def test_times_of_no_steps_or_of_no_seconds_give_no_interval() -> None:
    assert math.isnan(mean_difference_s(np.zeros(0), np.zeros(0)).value)
    assert mean_difference_s(np.zeros(0), np.zeros(0)).reason == "needs at least 2 steps"
    assert mean_difference_s(np.ones(1), np.zeros(1)).value == 1.0
    none = speedup(np.array([1.0, 2.0]), np.array([0.0, 1.0]))
    assert (none.value, none.interval, none.reason) == (3.0, None, "needs steps that take time")
    assert math.isnan(speedup(np.ones(2), np.zeros(2)).value)
    for wrong in ([np.ones(2), np.ones(3)], [np.ones((1, 1, 2))] * 2):
        with pytest.raises(InputError, match="policies with the same steps"):
            drawn_sums(wrong)


def test_draws_of_sums_have_the_stretched_spread() -> None:
    """LONG_TAILED times Student's 95 % over the normal law's, at n - 1 degrees of freedom."""
    first, second = np.array([10.0, 12.0, 9.0, 11.0, 13.0]), np.array([5.0, 6.5, 4.0, 6.0, 6.0])
    drawn = drawn_sums([first, second])
    assert drawn.shape == (2, 4000)
    logs = np.log(Jackknife(5).sums(first))
    influences = 4 * (logs[1:].mean() - logs[1:])
    error = math.sqrt((influences**2).sum() / (5 * 4))
    stretch = LONG_TAILED * float(stats.t.ppf(0.975, 4) / stats.norm.ppf(0.975))
    assert np.log(drawn[0]).std() == pytest.approx(error * stretch, rel=0.05)
    assert np.log(drawn[0]).mean() == pytest.approx(logs[0], abs=0.01)
    others = np.log(Jackknife(5).sums(second))[1:]
    together = np.corrcoef(influences, others.mean() - others)[0, 1]
    assert np.corrcoef(np.log(drawn))[0, 1] == pytest.approx(together, abs=0.03)
    assert drawn_sums([np.stack([first] * 3), np.stack([second] * 3)]).shape == (2, 2 * DRAWS_PER_ROW)
    assert np.array_equal(drawn, drawn_sums([first, second]))
    one = drawn_sums([first[:1], second[:1]])
    assert np.array_equal(np.unique(one), [5.0, 10.0])
