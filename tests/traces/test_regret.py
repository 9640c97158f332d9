"""What a choice loses, and what ties with it: against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlt.traces.common.regret import ONE_STEP, TIE, regrets_over_steps, weigh


def test_the_regret_is_the_mean_of_what_is_lost_to_the_fastest() -> None:
    """`a` loses 10 % in one of four samples; `b` 20, 20 and 10 % in the others."""
    fit = np.array([1.0, 1.2])
    samples = np.array([[1.0, 1.0, 1.0, 1.1], [1.2, 1.2, 1.1, 1.0]])
    found = weigh(["a", "b"], fit, samples, "a")
    assert found.regret.value == pytest.approx(0.1 / 4)
    assert found.instead["b"].value == pytest.approx(0.2)
    assert (found.group, found.near, found.runner_up) == ((), (), "b")
    other = weigh(["a", "b"], fit, samples, "b")
    assert other.regret.value == pytest.approx((0.2 + 0.2 + 0.1) / 4)
    assert other.instead["a"].value == pytest.approx(1 / 1.2 - 1)


def test_near_equal_points_of_a_grid_are_one_group_whatever_wins_in_how_many_samples() -> None:
    """Each of three wins a third of the samples, but never by more than 0.5 %."""
    jitter = 1.0 + 0.005 * np.eye(3)[:, np.tile([1, 2, 0], 100)]
    found = weigh(["3", "4", "5", "off"], np.array([1.0, 1.001, 1.002, 1.3]),
                  np.vstack([jitter, np.full(300, 1.3)]), "3")  # fmt: skip
    assert found.ties == ("4", "5")
    assert found.exact == ()
    assert found.runner_up == "off"
    assert found.highest <= TIE


def test_a_policy_that_decides_the_same_is_an_exact_tie() -> None:
    step_s = np.array([3.0, 5.0, 4.0])
    found = regrets_over_steps({"a": step_s, "b": 1.5 * step_s, "c": step_s.copy()}, "a")
    assert found is not None
    assert (found.exact, found.ties, found.near, found.runner_up) == (("c",), (), (), "b")
    assert found.regret.interval == (0.0, 0.0)


def test_equal_by_the_fit_alone_is_near_and_no_tie() -> None:
    """Means are equal, but single steps decide: a tie is not claimed of what may be 20 % apart."""
    one, two = np.array([1.0, 2.0, 1.0, 2.0]), np.array([2.0, 1.0, 2.0, 1.0])
    found = regrets_over_steps({"a": one, "b": two}, "a")
    assert found is not None
    assert (found.group, found.near) == ((), ("b",))
    assert found.highest > 0.1


def test_one_step_tells_no_loss_and_an_exact_tie_alone() -> None:
    found = regrets_over_steps({"a": np.ones(1), "b": np.ones(1), "c": np.full(1, 1.005)}, "a")
    assert found is not None
    assert (found.regret.interval, found.regret.reason) == (None, ONE_STEP)
    assert (found.exact, found.ties, found.near) == (("b",), (), ("c",))
    assert regrets_over_steps({"a": np.ones(3)}, "a") is None
    assert regrets_over_steps({"a": np.zeros(3), "b": np.ones(3)}, "a") is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=5), st.floats(0.0, 0.2), st.integers(0, 4))
def test_laws_of_any_choice(fits: list[float], spread: float, at: int) -> None:
    fit = np.array(fits)
    noise = np.random.default_rng(1).normal(0.0, spread, (len(fits), 50))
    names = [str(index) for index in range(len(fits))]
    chosen = names[at % len(fits)]
    found = weigh(names, fit, fit[:, None] * np.exp(noise), chosen)
    assert found.regret.value >= 0.0
    assert set(found.instead) == set(names) - {chosen}
    assert not set(found.group) & set(found.near)
    assert all(abs(found.instead[name].value) <= TIE for name in (*found.group, *found.near))
    fastest = weigh(names, fit, fit[:, None] * np.ones(50), names[int(fit.argmin())])
    assert fastest.regret.value == 0.0
