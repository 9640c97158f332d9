import numpy as np
import pytest

from tlt.analysis.bootstrap import speedup
from tlt.analysis.comparison.compare import SEED
from tlt.analysis.training.sample import NOTHING, Resamples, amdahl, divide


def test_ratios_have_the_interval_of_the_plain_bootstrap() -> None:
    rng = np.random.default_rng(3)
    base, policy = rng.uniform(1, 3, 12), rng.uniform(1, 2, 12)
    sample = Resamples(12)
    mine, plain = sample.estimate(sample.ratio(base, policy)), speedup(base, policy, seed=SEED)
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


def test_amdahl() -> None:
    share, gain = np.array([0.0, 0.5, 1.0]), np.array([2.0, 2.0, 2.0])
    np.testing.assert_allclose(amdahl(share, gain), [1.0, 1 / 0.75, 2.0])


def test_division_by_nothing_is_not_a_number() -> None:
    assert np.isnan(divide(np.ones(1), np.zeros(1)))[0]
