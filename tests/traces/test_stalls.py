"""Workers that stood still are told from long engine steps, from waits for work and from compilations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tlt.traces.runs.engine_steps import ENGINE_STEP_COLUMNS
from tlt.traces.runs.stalls import stalls


def engine_steps(longest_s: dict[tuple[int, int], float]) -> pd.DataFrame:
    """Return ten engine steps of 0.01 s a worker and rollout, one of which takes longer."""
    rows = []
    for (step, worker), long_s in longest_s.items():
        seconds = np.full(10, 0.01)
        seconds[4] = long_s
        t_s = 100.0 * step + np.cumsum(seconds) - seconds
        rows += [(step, worker, t, s, 4, 40, 0, 0, 0, 0, False) for t, s in zip(t_s, seconds, strict=True)]
    return pd.DataFrame(rows, columns=list(ENGINE_STEP_COLUMNS)).astype(ENGINE_STEP_COLUMNS)


def test_a_stall_is_told_from_a_long_engine_step() -> None:
    steady = {(step, worker): 0.05 + 0.01 * worker for step in range(3) for worker in range(2)}
    assert stalls(engine_steps(steady)) == []
    (found,) = stalls(engine_steps(steady | {(1, 0): 60.0}))
    # The median of 0.05, 0.05, 60, 0.06, 0.06 and 0.06 is 0.06.
    assert (found.step, found.worker) == (1, 0)
    assert (found.seconds, found.usual_s) == (pytest.approx(60.0), pytest.approx(0.06))
    assert found.text() == "worker 0 stood still for 60.0 s in rollout 1, where 0.06 s is usual"
    assert stalls(engine_steps(steady | {(1, 0): 1.19})) == [], "20 times 0.06 is 1.2"
    assert len(stalls(engine_steps(steady | {(1, 0): 1.21}))) == 1
    between = engine_steps(steady)
    between.loc[between.index[15:20], "t_s"] += 30.0  # of worker 1 in rollout 0, between two engine steps
    (found,) = stalls(between)
    assert (found.step, found.worker, round(found.seconds)) == (0, 1, 30)
    between.loc[between.index[15], "prompt_tokens"] = 8  # it had nothing to do until a request came
    assert stalls(between) == []
    compiled = engine_steps(steady | {(1, 0): 60.0})
    compiled["compiled"] = compiled["seconds"] > 1
    assert stalls(compiled) == []
    assert stalls(compiled.iloc[:0]) == []


def test_less_than_a_second_is_no_stall_whatever_is_usual() -> None:
    quick = {(step, worker): 0.012 for step in range(3) for worker in range(2)}
    assert stalls(engine_steps(quick | {(2, 1): 0.9})) == [], "75 times what is usual"
    assert len(stalls(engine_steps(quick | {(2, 1): 1.1}))) == 1


def test_compilations_do_not_make_a_stall_usual() -> None:
    rows = engine_steps({(0, 0): 30.0, (0, 1): 30.0, (1, 0): 30.0, (1, 1): 5.0})
    rows["compiled"] = rows["seconds"] == 30.0
    (found,) = stalls(rows)
    assert (found.step, found.worker, found.usual_s) == (1, 1, pytest.approx(0.01))


def test_the_order_of_rows_does_not_matter() -> None:
    rows = engine_steps({(step, worker): 0.05 for step in range(3) for worker in range(2)} | {(1, 1): 60.0})
    assert stalls(rows.iloc[::-1]) == stalls(rows)
    assert stalls(rows.sample(frac=1, random_state=3)) == stalls(rows)
