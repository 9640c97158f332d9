"""How sure a choice is: against figures worked out by hand, and laws that hold for any finalists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlt.sim.parallel.timing import Timing
from tlt.sim.search.choose import Finalist, decide, response_of
from tlt.sim.search.unknowns import LENGTHS, Uncertain

COST = Uncertain(name="a's step times", spread="", command="measure a", sd=0.1, parts=("target",))
SHARED = Uncertain(name="phases", spread="", command="measure phases", sd=0.3, parts=("phases",))


def finalist(
    name: str, seconds: list[float], response: dict[tuple[str, str], float] | None = None
) -> Finalist:
    steps = np.array(seconds)
    return Finalist(
        design=name, timing=Timing(steps, np.full(len(steps), 100.0)), scale=100.0, response=response or {}
    )


def test_a_clear_choice_loses_nothing() -> None:
    found = decide([finalist("a", [2.0, 2.1]), finalist("b", [1.0, 1.1])], [COST], 0)
    assert (found.best, found.runner_up) == (1, 0)
    assert found.objective == pytest.approx((2.05, 1.05))
    assert found.runner_up_better == found.expected_loss == found.loss_if_wrong == 0.0
    assert found.ratio is not None
    assert found.ratio[0] == pytest.approx(2.05 / 1.05)


def test_an_even_choice_under_the_error_of_one() -> None:
    """With T_a = f, T_b = 1 and f log-normal of sd 0.1: E[f - 1; f > 1] is 0.1 / sqrt(2 pi), nearly."""
    answers = {("a's step times", "target"): 1.0}
    found = decide([finalist("a", [1.0] * 3, answers), finalist("b", [1.0 + 1e-9] * 3)], [COST, SHARED], 0)
    assert found.best == 0
    assert found.runner_up_better == pytest.approx(0.5, abs=0.03)
    assert found.expected_loss == pytest.approx(0.1 / np.sqrt(2 * np.pi), rel=0.12)
    assert found.loss_if_wrong == pytest.approx(2 * found.expected_loss, rel=0.06)
    first = found.inputs[0]
    assert (first.name, first.command) == ("a's step times", "measure a")
    assert first.expected_loss == pytest.approx(found.expected_loss, rel=0.1)
    assert first.variance_share == pytest.approx(1.0)


def test_what_all_share_costs_nothing() -> None:
    answers = {("phases", "phases"): 0.8}
    found = decide([finalist("a", [1.0] * 3, answers), finalist("b", [1.01] * 3, answers)], [SHARED], 0)
    assert found.expected_loss == 0.0
    assert found.high[0] > 1.3, "though the time itself is unsure"


def test_lengths_are_an_input_of_their_own() -> None:
    found = decide([finalist("a", [1.0, 3.0]), finalist("b", [2.0, 2.02])], [COST], 0)
    named = {each.name: each for each in found.inputs}
    assert named[LENGTHS].expected_loss == pytest.approx(found.expected_loss)
    assert named[LENGTHS].variance_share == pytest.approx(1.0)
    assert found.inputs[0].name == LENGTHS


def test_one_finalist_has_no_rival() -> None:
    found = decide([finalist("a", [1.0, 2.0])], [COST], 0)
    assert (found.best, found.runner_up, found.ratio) == (0, None, None)
    assert found.expected_loss == 0.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(-0.5, 1.5)), min_size=2, max_size=5))
def test_laws_of_any_decision(pairs: list[tuple[float, float]]) -> None:
    finalists = [
        finalist(str(index), [seconds, seconds * 1.1], {("a's step times", "target"): response})
        for index, (seconds, response) in enumerate(pairs)
    ]
    found = decide(finalists, [COST, SHARED], 3)
    assert found.objective[found.best] == min(found.objective)
    assert 0.0 <= found.runner_up_better <= found.other_better <= 1.0
    assert 0.0 <= found.expected_loss <= found.loss_if_wrong + 1e-12
    assert sum(each.variance_share for each in found.inputs) == pytest.approx(1.0, abs=1e-6) or all(
        each.variance_share == 0.0 for each in found.inputs
    )
    losses = [each.expected_loss for each in found.inputs]
    assert losses == sorted(losses, reverse=True)


def test_a_response_is_the_growth_for_a_change_of_one() -> None:
    base, slower = (Timing(np.array([seconds]), np.array([10.0])) for seconds in (1.0, 1.05))
    assert response_of(base, {("x", "target"): slower}) == {("x", "target"): pytest.approx(0.5)}
