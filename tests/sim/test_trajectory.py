"""The closed form of a batch against a plain loop over its engine steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlt.sim.model.decode_closed_form import State, Trajectory
from tlt.traces.common.arrays import Floats, Ints

KV_S = 1e-4
# Multiples of 1/8 are exact in binary, so floors of quotients are the same in both.
requests = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 500), st.integers(8, 40).map(lambda eighths: eighths / 8)),
    min_size=1,
    max_size=12,
).map(sorted)


def _arrays(rows: list[tuple[int, int, float]]) -> tuple[Ints, Floats, Floats, Floats]:
    engine_steps, context, rate = zip(*rows, strict=True)
    fixed_s = np.linspace(0.01, 0.01 + 0.002 * len(rows), len(rows) + 1)
    return (
        np.array(engine_steps, np.int64),
        np.array(context, np.float64),
        np.array(rate, np.float64),
        fixed_s,
    )


def _loop(rows: list[tuple[int, int, float]]) -> tuple[list[State], Floats]:
    """Return the state after each number of engine steps, and each request's finish in seconds."""
    finish, context, rate, fixed_s = _arrays(rows)
    seconds, request_steps, emitted = 0.0, 0, 0.0
    states: list[State] = []
    finish_s = np.zeros(len(rows))
    for engine_step in range(int(finish.max()) + 1):
        running = finish > engine_step
        finish_s[finish == engine_step] = seconds
        held = context + rate * engine_step
        states.append(State(int((~running).sum()), seconds, request_steps, emitted, held[running].sum()))
        seconds += float(fixed_s[running.sum()] + KV_S * held[running].sum())
        request_steps += int(running.sum())
        emitted += float(rate[running].sum())
    return states, finish_s


@given(requests)
@settings(max_examples=150, deadline=None)
def test_every_state_and_finish_equals_the_loop(rows: list[tuple[int, int, float]]) -> None:
    trajectory = Trajectory(*_arrays(rows), KV_S)
    states, finish_s = _loop(rows)
    assert trajectory.finish_s == pytest.approx(finish_s, rel=1e-9)
    for engine_step, expected in enumerate(states):
        done = trajectory.finished(engine_step)
        assert done == expected.finished
        assert trajectory.at(engine_step, done) == pytest.approx(expected, rel=1e-9)


@given(requests, st.integers(0, 15))
@settings(max_examples=100, deadline=None)
def test_engine_step_below_is_the_first_with_fewer_running(
    rows: list[tuple[int, int, float]], min_requests: int
) -> None:
    if min_requests > len(rows):
        return
    trajectory = Trajectory(*_arrays(rows), KV_S)
    running = [len(rows) - state.finished for state in _loop(rows)[0]]
    first = next(engine_step for engine_step, count in enumerate(running) if count < max(min_requests, 1))
    assert trajectory.engine_step_below(min_requests) == first


@given(requests, st.integers(1, 8000))
@settings(max_examples=200, deadline=None)
def test_engine_step_of_context_is_the_last_that_fits(rows: list[tuple[int, int, float]], limit: int) -> None:
    finish, context, rate, fixed_s = _arrays(rows)
    expected = None
    starts = [0, *finish[:-1].tolist()]
    for segment, (start, end) in enumerate(zip(starts, finish.tolist(), strict=True)):
        held = [
            float((context + rate * engine_step)[segment:].sum()) for engine_step in range(start, end + 1)
        ]
        over = [start + index for index, tokens in enumerate(held) if tokens > limit]
        if over:
            expected = max(over[0] - 1, start)
            break
    assert Trajectory(finish, context, rate, fixed_s, KV_S).engine_step_of_context(limit) == expected
