"""A batch of three requests, followed engine step by engine step by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tlt.sim.model.engines.decode_closed_form import START, Stages, Trajectory, segments
from tlt.traces.common.arrays import Floats

KV_S = 0.001
FIXED_S: Floats = np.array([0.0, 1.0, 2.0, 4.0])  # of no, one, two, three requests
# Two tokens a step for three steps; one for five; three for two, then one for four more.
UNTIL = np.array([[3, 3], [5, 5], [2, 6]])
RATES = np.array([[2.0, 2.0], [1.0, 1.0], [3.0, 1.0]])
CONTEXT = np.array([10.0, 20.0, 30.0])
SURVIVAL: Floats = np.stack([RATES / 10, RATES / 20], axis=2)
# Contexts held at the start of engine steps 0 to 5, and who runs.
HELD = (60.0, 66.0, 72.0, 60.0, 62.0, 39.0)
RUNNING = (3, 3, 3, 2, 2, 1)
EMITTED = (6.0, 6.0, 4.0, 2.0, 2.0, 1.0)
SECONDS = tuple(FIXED_S[count] + KV_S * held for count, held in zip(RUNNING, HELD, strict=True))


def trajectory() -> Trajectory:
    stages = Stages(UNTIL, RATES, RATES)
    return Trajectory(segments(stages, CONTEXT, SURVIVAL, FIXED_S, KV_S), KV_S)


def test_every_engine_step() -> None:
    found = trajectory()
    for step in range(7):
        done = sum(UNTIL[:, -1] <= step)
        assert found.finished(step) == done
        state = found.at(step, int(done))
        assert state.seconds == pytest.approx(sum(SECONDS[:step]))
        assert state.request_steps == sum(RUNNING[:step])
        assert state.emitted_tokens == pytest.approx(sum(EMITTED[:step]))
        assert state.context_tokens == pytest.approx(HELD[step] if step < 6 else 0.0)
    assert found.finish_engine_step.tolist() == [3, 5, 6]
    assert found.finish_s == pytest.approx([sum(SECONDS[:3]), sum(SECONDS[:5]), sum(SECONDS)])
    assert found.request_steps == 14
    assert tuple(START) == (0, 0.0, 0, 0.0, 0.0)


def test_who_holds_what() -> None:
    found = trajectory()
    for step in range(6):
        rates = [RATES[row, int(step >= UNTIL[row, 0])] for row in range(3) if step < UNTIL[row, -1]]
        held, running = found.held_at(step)
        assert running == RUNNING[step]
        assert held == pytest.approx([sum(rates) / 10, sum(rates) / 20])


def test_the_engine_step_that_ends_at_a_time() -> None:
    found, ends = trajectory(), np.cumsum(SECONDS)
    for step, end_s in enumerate(ends, 1):
        assert found.engine_step_ending(float(end_s), 0, 6) == step
        assert found.engine_step_ending(float(end_s) - 1e-6, 0, 6) == step
        assert found.engine_step_ending(float(end_s) + 1e-6, 0, 6) == min(step + 1, 6)
        assert found.engine_step_ending(float(end_s) * (1 + 1e-14), 0, 6) == step  # rounding
    assert found.engine_step_ending(0.0, 0, 6) == 0
    assert found.engine_step_ending(0.0, 2, 6) == 2
    assert found.engine_step_ending(1e9, 0, 4) == 4


def test_when_fewer_run() -> None:
    assert [trajectory().engine_step_below(least) for least in (0, 1, 2, 3)] == [6, 6, 5, 3]


def test_when_contexts_no_longer_fit() -> None:
    """The most is held at the end of engine step 3, before the first one leaves: 72 + 4."""
    found = trajectory()
    assert found.peak_tokens == pytest.approx(76.0)
    assert found.engine_step_of_context(76.0) is None
    assert [found.engine_step_of_context(limit) for limit in (75.9, 72.0, 71.9, 66.0, 60.0)] == [
        2,
        2,
        1,
        1,
        0,
    ]
    assert found.engine_step_of_context(1.0) == 0


def test_how_engine_steps_fall_into_stages() -> None:
    stages = Stages(UNTIL, RATES, RATES)
    assert stages.engine_steps(4).tolist() == [[3, 0], [4, 0], [2, 2]]
    assert stages.engine_steps(np.array([1, 5, 9])).tolist() == [[1, 0], [5, 0], [2, 4]]
    assert stages.engine_steps(0).tolist() == [[0, 0]] * 3
    assert UNTIL.tolist() == [[3, 3], [5, 5], [2, 6]]  # as it was
    one = Stages(UNTIL[:, -1:], RATES[:, -1:], RATES[:, -1:])
    assert one.engine_steps(4).tolist() == [[3], [4], [4]]
    some = stages.of(slice(1, None))
    assert some.until.tolist() == [[5, 5], [2, 6]]
    assert some.tokens_per_engine_step.tolist() == some.variance.tolist() == RATES[1:].tolist()


def test_one_stage_is_the_same_with_a_second_that_is_empty() -> None:
    until, rates = UNTIL[:, -1:], RATES[:, :1]
    plain = segments(Stages(until, rates, rates), CONTEXT, SURVIVAL[:, :1], FIXED_S, KV_S)
    twice = np.repeat(until, 2, axis=1), np.repeat(rates, 2, axis=1), np.repeat(rates, 2, axis=1)
    padded = segments(Stages(*twice), CONTEXT, np.repeat(SURVIVAL[:, :1], 2, axis=1), FIXED_S, KV_S)
    for mine, theirs in zip(plain, padded, strict=True):
        assert mine == pytest.approx(theirs)


def test_a_stage_of_no_engine_steps_is_passed_over() -> None:
    """The first bin is left before the first engine step, or changes come at once with another's finish."""
    until = np.array([[0, 4], [4, 6]])
    rates = np.array([[9.0, 2.0], [1.0, 3.0]])
    found = Trajectory(segments(Stages(until, rates, rates), CONTEXT[:2], SURVIVAL[:2], FIXED_S, KV_S), KV_S)
    held = (30.0, 33.0, 36.0, 39.0, 24.0, 27.0)
    seconds = [FIXED_S[2 if step < 4 else 1] + KV_S * tokens for step, tokens in enumerate(held)]
    for step in range(6):
        state = found.at(step, found.finished(step))
        assert state.context_tokens == pytest.approx(held[step])
        assert state.seconds == pytest.approx(sum(seconds[:step]))
    assert found.finish_s == pytest.approx([sum(seconds[:4]), sum(seconds)])
