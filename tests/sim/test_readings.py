"""What logged rollouts may be made of, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tlt.sim.counterfactual.readings import LoggedRollouts, Reading, readings_of


def logged(
    rollout: list[float], modelled: list[float], least: float = 0.0, most: float = 0.0,
    generations: float = 1.0, longest: float | None = None, engine: float = 1.0,
) -> LoggedRollouts:  # fmt: skip
    steps = len(rollout)
    return LoggedRollouts(
        rollout_s=np.array(rollout),
        least_s=np.full(steps, least),
        most_s=np.full(steps, most),
        longest_s=np.array(rollout) - least if longest is None else np.full(steps, longest),
        generations=np.full(steps, generations),
        modelled_s=np.array(modelled),
        engine=engine,
    )


def facts(reading: Reading) -> tuple[float, float, float]:
    return round(float(reading.fixed_s.sum()), 6), round(reading.factor, 6), round(reading.others, 6)


def test_a_log_of_decoding_alone_has_its_factor_or_a_constant() -> None:
    found = readings_of(logged([60.0, 65.0], [50.0, 50.0]))
    assert found.misfit == pytest.approx(1.25)
    # all in the step times; or the model is off as much the other way: 100 / 1.25 = 80 s and 45 s fixed
    assert [facts(each) for each in found.all] == [(0.0, 1.25, 1.25), (45.0, 0.8, 0.8)]
    assert found.all[1].fixed_s == pytest.approx([60 * 45 / 125, 65 * 45 / 125])
    # another engine of its kind may be faster by so much
    other = readings_of(logged([60.0, 65.0], [50.0, 50.0], engine=1.25))
    assert facts(other.all[1]) == (61.0, 0.64, 0.64)
    assert len(readings_of(logged([50.0], [50.0])).all) == 1


def test_rollouts_faster_than_modelled_may_be_so_without_drafts_alone() -> None:
    found = readings_of(logged([40.0, 40.0], [50.0, 50.0]))
    assert [facts(each) for each in found.all] == [(0.0, 0.8, 0.8), (0.0, 0.8, 1.0)]


def test_waiting_is_read_between_its_bounds() -> None:
    found = readings_of(logged([262.0], [37.0], least=199.0, most=258.0))
    # the middle, the least (63 s of decoding) and the most: 4 s, of a response that is not the longest
    assert [facts(each)[0] for each in found.all] == [228.5, 199.0, 258.0]
    assert found.all[1].factor == pytest.approx(63 / 37)
    assert found.all[2].factor == pytest.approx(4 / 37)


def test_the_least_is_raised_to_what_the_model_can_be() -> None:
    # of 100 s anything between 0 and 100 may be waiting; 20 s of decoding take no more than 40
    found = readings_of(logged([100.0], [20.0], least=0.0, most=100.0))
    assert [facts(each)[0] for each in found.all] == [80.0, 60.0, 100.0]


def test_generations_are_one_after_the_other() -> None:
    found = readings_of(logged([198.0], [55.0], generations=3.0))
    assert found.misfit == pytest.approx(198 / 165)
    assert found.fit.factor == pytest.approx(198 / 55)
    assert facts(found.all[1]) == (60.5, 2.5, 2.5)  # 165 / 1.2 = 137.5 s of decoding


@pytest.mark.parametrize(
    ("rollout", "most", "longest", "misfit"),
    [
        (262.0, 0.0, None, 262 / 37), (262.0, 100.0, None, 162 / 37),
        (10.0, 0.0, None, 10 / 37), (10.0, 5.0, None, 10 / 37),
        (262.0, 250.0, 12.0, 12 / 37),  # the longest response was decoded in a third of what the model says
    ],
)  # fmt: skip
def test_beyond_a_misfit_of_two_there_is_no_reading(
    rollout: float, most: float, longest: float | None, misfit: float
) -> None:
    found = readings_of(logged([rollout], [37.0], most=most, longest=longest))
    assert found.all == ()
    assert found.misfit == pytest.approx(misfit)
