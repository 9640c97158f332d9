"""What logged rollouts may be made of, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tlt.sim.counterfactual.readings import LoggedRollouts, Reading, readings_of


def logged(
    rollout: list[float],
    modelled: list[float],
    least: float = 0.0,
    most: float = 0.0,
    generations: float = 1.0,
) -> LoggedRollouts:
    steps = len(rollout)
    return LoggedRollouts(
        rollout_s=np.array(rollout),
        least_s=np.full(steps, least),
        most_s=np.full(steps, most),
        generations=np.full(steps, generations),
        modelled_s=np.array(modelled),
    )


def facts(reading: Reading) -> tuple[float, float, float]:
    return round(float(reading.fixed_s.sum()), 6), round(reading.factor, 6), round(reading.others, 6)


def test_a_log_of_decoding_alone_has_its_factor_or_a_constant() -> None:
    found = readings_of(logged([60.0, 70.0], [50.0, 50.0]))
    assert found.misfit == pytest.approx(1.3)
    # all in the step times; or 100 of 130 s as modelled and 30 s fixed, 3/13 of each step
    assert [facts(each) for each in found.all] == [(0.0, 1.3, 1.3), (30.0, 1.0, 1.0)]
    assert found.all[1].fixed_s == pytest.approx([60 * 3 / 13, 70 * 3 / 13])


def test_rollouts_faster_than_modelled_may_be_so_without_drafts_alone() -> None:
    found = readings_of(logged([40.0, 40.0], [50.0, 50.0]))
    assert [facts(each) for each in found.all] == [(0.0, 0.8, 0.8), (0.0, 0.8, 1.0)]


def test_waiting_is_read_between_its_bounds() -> None:
    found = readings_of(logged([262.0], [37.0], least=199.0, most=230.5))
    # middle, least, most (31.5 s of decoding), and as modelled (37 of 262 s): 225 s, which is below the most
    assert [round(facts(each)[0], 2) for each in found.all] == [214.75, 199.0, 230.5]
    assert found.misfit == pytest.approx((262 - 214.75) / 37)
    assert found.all[1].factor == pytest.approx(63 / 37)


def test_bounds_are_narrowed_to_what_the_model_can_be() -> None:
    # of 100 s anything between 0 and 100 may be waiting; 20 s of decoding may take 10 to 40 s
    found = readings_of(logged([100.0], [20.0], least=0.0, most=100.0))
    assert [facts(each)[0] for each in found.all] == pytest.approx([75.0, 60.0, 90.0])
    assert found.misfit == pytest.approx(1.25)


def test_generations_are_one_after_the_other() -> None:
    found = readings_of(logged([183.0], [55.0], generations=3.0))
    assert found.misfit == pytest.approx(183 / 165)
    assert found.fit.factor == pytest.approx(183 / 55)
    assert facts(found.all[1]) == (18.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("rollout", "most", "misfit"),
    [(262.0, 0.0, 262 / 37), (10.0, 0.0, 10 / 37), (262.0, 100.0, 162 / 37), (10.0, 5.0, 10 / 37)],
)
def test_beyond_a_misfit_of_two_there_is_no_reading(rollout: float, most: float, misfit: float) -> None:
    found = readings_of(logged([rollout], [37.0], most=most))
    assert found.all == ()
    assert found.misfit == pytest.approx(misfit)
