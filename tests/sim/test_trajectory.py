"""The closed form of a batch against a plain loop over its engine steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tlt.sim.model.engines.decode_closed_form import Stages, State, Trajectory, segments
from tlt.traces.common.arrays import Floats, Ints

KV_S = 1e-4
MOST = 12
FIXED_S = np.linspace(0.01, 0.034, MOST + 1)


class Request(NamedTuple):
    """A request: engine steps and rate of each stage, and the context that it begins with."""

    stages: tuple[tuple[int, float], ...]
    context: int

    @property
    def finish(self) -> int:
        """Return the engine step of its finish."""
        return sum(steps for steps, _ in self.stages)

    def rate(self, engine_step: int) -> float:
        """Return the tokens that it emits in an engine step before its finish."""
        for steps, rate in self.stages:
            if engine_step < steps:
                return rate
            engine_step -= steps
        raise AssertionError("asked after the finish")


# Multiples of 1/8 are exact in binary, so floors of quotients are the same in both.
_stage = st.tuples(st.integers(0, 12), st.integers(8, 40).map(lambda eighths: eighths / 8))
_requests = st.integers(1, 3).flatmap(
    lambda count: st.lists(
        st.builds(Request, st.tuples(*[_stage] * count), st.integers(1, 500)), min_size=1, max_size=MOST
    )
).map(lambda rows: sorted(rows, key=lambda row: row.finish))  # fmt: skip


def _survival(rows: list[Request]) -> Floats:
    """Return survivals of two positions, [n, stages, 2]: shares of the rate, easy to know."""
    rates = np.array([[rate for _, rate in row.stages] for row in rows])
    return np.stack([rates / 10, rates / 20], axis=2)


def _trajectory(rows: list[Request]) -> Trajectory:
    steps, rates = np.array([row.stages for row in rows]).transpose(2, 0, 1)
    until: Ints = steps.cumsum(axis=1).astype(np.int64)
    context = np.array([row.context for row in rows], np.float64)
    return Trajectory(segments(Stages(until, rates, rates), context, _survival(rows), FIXED_S, KV_S), KV_S)


def _held(rows: list[Request], engine_step: int) -> list[float]:
    """Return the context of each request that runs after so many engine steps."""
    return [
        row.context + sum(row.rate(step) for step in range(engine_step))
        for row in rows
        if row.finish > engine_step
    ]


def _loop(rows: list[Request]) -> tuple[list[State], Floats]:
    """Return the state after each number of engine steps, and each request's finish in seconds."""
    seconds, request_steps, emitted = 0.0, 0, 0.0
    states: list[State] = []
    finish_s = np.zeros(len(rows))
    for engine_step in range(rows[-1].finish + 1):
        running = [row for row in rows if row.finish > engine_step]
        finish_s[[row.finish == engine_step for row in rows]] = seconds
        held = _held(rows, engine_step)
        states.append(State(len(rows) - len(running), seconds, request_steps, emitted, sum(held)))
        seconds += float(FIXED_S[len(running)] + KV_S * sum(held))
        request_steps += len(running)
        emitted += sum(row.rate(engine_step) for row in running)
    return states, finish_s


@given(_requests)
@settings(max_examples=150, deadline=None)
def test_every_state_and_finish_equals_the_loop(rows: list[Request]) -> None:
    trajectory = _trajectory(rows)
    states, finish_s = _loop(rows)
    assert trajectory.finish_s == pytest.approx(finish_s, rel=1e-9)
    assert trajectory.request_steps == states[-1].request_steps
    for engine_step, expected in enumerate(states):
        done = trajectory.finished(engine_step)
        assert done == expected.finished
        assert trajectory.at(engine_step, done) == pytest.approx(expected, rel=1e-9)


@given(_requests)
@settings(max_examples=100, deadline=None)
def test_survival_is_that_of_the_average_running_request(rows: list[Request]) -> None:
    trajectory = _trajectory(rows)
    for engine_step in range(rows[-1].finish):
        rates = [row.rate(engine_step) for row in rows if row.finish > engine_step]
        mean = sum(rates) / len(rates)
        held, running = trajectory.held_at(engine_step)
        assert held / running == pytest.approx([mean / 10, mean / 20], rel=1e-9)


@given(_requests, st.integers(0, 15))
@settings(max_examples=100, deadline=None)
def test_engine_step_below_is_the_first_with_fewer_running(rows: list[Request], min_requests: int) -> None:
    if min_requests > len(rows):
        return
    running = [len(rows) - state.finished for state in _loop(rows)[0]]
    first = next(engine_step for engine_step, count in enumerate(running) if count < max(min_requests, 1))
    assert _trajectory(rows).engine_step_below(min_requests) == first


@given(_requests, st.integers(1, 8000))
@settings(max_examples=200, deadline=None)
def test_contexts_fit_at_the_engine_step_named_and_not_after_it(rows: list[Request], limit: int) -> None:
    """Whoever finishes holds its context to the end of its last engine step: looked at before that ends."""
    assume(rows[0].finish > 0)
    held = [sum(_held(rows, engine_step)) for engine_step in range(rows[-1].finish)]
    last = [
        sum(_held([row for row in rows if row.finish >= step], step - 1))
        + sum(row.rate(step - 1) for row in rows if row.finish >= step)
        for step in range(1, rows[-1].finish + 1)
    ]
    peaks = [max(before, after) for before, after in zip(held, last, strict=True)]
    over = [step for step, tokens in enumerate(peaks) if tokens > limit]
    found = _trajectory(rows).engine_step_of_context(limit)
    if not over:
        assert found is None
    else:
        assert found == over[0]
