"""What a machine that ran slower under one policy is told apart from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.training_runs import PolicyPlan, write_training
from tlt.analysis.comparison.compare import compare
from tlt.analysis.comparison.pace import CELL, ROLLOUT, UNLIKE, against, even_pace
from tlt.analysis.load import load_runs
from tlt.analysis.training.figures import examine
from tlt.analysis.training.run import load_training
from tlt.analysis.training.verdict import judge_training
from tlt.traces.runs.engine_steps import ENGINE_STEP_COLUMNS, ENGINE_STEPS

STEPS, WORKERS = 12, 4
PLANS = (
    PolicyPlan("static:4/frozen", drafts=True),
    PolicyPlan("static:4/online", drafts=True, trains=True),
)
BATCHES = {64: 40, 16: 30, 4: 20}  # running -> decode engine steps
TAIL = 10  # engine steps of worker 0 alone, with one response


def engine_steps(
    slow: Mapping[int, float], tail: float = 1.0, k: int = 4, count: float = 1.0
) -> pd.DataFrame:
    """Return engine steps of 2 + batch / 32 ms, `slow` times by RL step, `tail` times for the last ones."""
    rows = []
    for step in range(STEPS):
        for worker in range(WORKERS):
            batches = [batch for batch, steps in BATCHES.items() for _ in range(int(steps * count))]
            batches += [1] * TAIL if worker == 0 else []
            at_s = 10.0 * step
            for place, batch in enumerate(batches):
                seconds = (2 + batch / 32) / 1000 * slow.get(step, 1.0)
                seconds *= tail if place >= len(batches) - TAIL and worker == 0 else 1.0
                rows.append((step, worker, at_s, seconds, batch, 100 * batch, 0, k, k * batch, batch, False))
                at_s += seconds
    return pd.DataFrame(rows, columns=list(ENGINE_STEP_COLUMNS)).astype(ENGINE_STEP_COLUMNS)


def written(root: Path, *tables: pd.DataFrame | None) -> Path:
    """Write two policies with these engine steps; rollouts end with the last of them."""
    path = write_training(root / "run", PLANS)
    for folder, table in zip(("static-4-frozen", "static-4-online"), tables, strict=True):
        file = path / folder / ENGINE_STEPS
        if table is None:
            file.unlink(missing_ok=True)
        else:
            table.to_parquet(file)
    return path


def test_cells_and_rollouts_are_told_apart_where_each_rollout_has_other_cells() -> None:
    takes, slow = [0.002, 0.003, 0.005], [1.0, 1.5, 1.2, 2.0]
    rows = [
        (0, step, 0, 0, 4, cell, takes[cell] * slow[step])
        for step in range(len(slow))
        for cell in ({0, 1}, {1, 2}, {0, 2}, {2})[step]
        for _ in range(5)
    ]
    even, found = even_pace(pd.DataFrame(rows, columns=[*ROLLOUT, *CELL, "seconds"]))
    quick = np.exp(np.quantile(np.log(slow), 0.25))
    np.testing.assert_allclose(even.to_numpy(), np.array(takes) * quick, rtol=1e-3)
    np.testing.assert_allclose(found.to_numpy(), np.array(slow) / quick, rtol=1e-3)


def test_a_slower_machine_is_no_slower_policy(tmp_path: Path) -> None:
    later = dict.fromkeys(range(STEPS // 2, STEPS), 1.6)
    runs = load_training(written(tmp_path, engine_steps({}), engine_steps(later)))
    frozen, online = runs.policies
    pace = against(online.run, frozen.run)
    assert pace is not None
    assert pace.shared
    assert pace.unlike
    assert pace.slower.value == pytest.approx(1.3, rel=0.02)  # half of the steps
    longest = [run.rollout_s() - engine_steps(slow).query("worker == 0").groupby("step")["seconds"].sum()
               for run, slow in ((frozen, {}), (online, later))]  # fmt: skip
    even_s = engine_steps({}).query("worker == 0")["seconds"].sum()
    expected = (longest[0].sum() + even_s) / (longest[1].sum() + even_s)
    assert pace.rollout_speedup.value == pytest.approx(expected, rel=0.01)
    facts = examine(runs)
    (flag,) = (flag for flag in facts.flags if flag.name == "pace")
    assert "ran 30.0% slower" in flag.text
    assert "engine steps of one K and batch" in flag.text
    assert "but the machine ran 30.0% slower" in judge_training(facts)


def test_what_training_slows_in_the_tail_is_not_the_machine(tmp_path: Path) -> None:
    runs = load_training(written(tmp_path, engine_steps({}), engine_steps({}, tail=1.5)))
    pace = against(runs.policies[1].run, runs.policies[0].run)
    assert pace is not None
    assert not pace.unlike
    assert pace.slower.value == pytest.approx(1.0, abs=0.02)


def test_more_engine_steps_are_the_policy(tmp_path: Path) -> None:
    runs = load_training(written(tmp_path, engine_steps({}), engine_steps({}, count=2.0)))
    pace = against(runs.policies[1].run, runs.policies[0].run)
    assert pace is not None
    assert pace.slower.value == pytest.approx(1.0, abs=0.01)
    assert pace.rollout_speedup.value == pytest.approx(
        runs.policies[0].rollout_s().sum() / runs.policies[1].rollout_s().sum(), rel=0.01
    )


def test_policies_without_a_common_k_are_held_against_their_own_quick_rollouts(tmp_path: Path) -> None:
    slow = {step: 1.5 for step in range(STEPS) if step % 2}
    runs = load_training(written(tmp_path, engine_steps({}), engine_steps(slow, k=2)))
    pace = against(runs.policies[1].run, runs.policies[0].run)
    assert pace is not None
    assert not pace.shared
    assert pace.slower.value == pytest.approx(1.25, rel=0.02)
    (flag,) = (flag for flag in examine(runs).flags if flag.name == "pace")
    assert "each policy's own quick rollouts" in flag.text


def test_a_few_common_engine_steps_do_not_tie_two_policies(tmp_path: Path) -> None:
    slow = dict.fromkeys(range(STEPS), 1.5)
    few = engine_steps({}, count=0.05)  # of K 4, of a machine that was fast just then
    tables = [engine_steps({}), pd.concat([engine_steps(slow, k=2), few], ignore_index=True)]
    runs = load_training(written(tmp_path, *tables))
    pace = against(runs.policies[1].run, runs.policies[0].run)
    assert pace is not None
    assert not pace.shared
    assert pace.slower.value == pytest.approx(1.0, abs=0.05)


def test_a_pace_that_two_steps_do_not_tell_is_not_told(tmp_path: Path) -> None:
    uneven = {step: 1.0 + 3.0 * (step == 0) for step in range(STEPS)}
    runs = load_training(written(tmp_path, engine_steps({}), engine_steps(uneven)))
    pace = against(runs.policies[1].run, runs.policies[0].run)
    assert pace is not None
    assert pace.slower.value > UNLIKE
    assert not pace.unlike


def test_a_comparison_of_live_runs_tells_it_too(tmp_path: Path) -> None:
    slow = dict.fromkeys(range(STEPS), 1.5)
    path = written(tmp_path, engine_steps({}), engine_steps(slow))
    for rewards in path.glob("*/rewards.parquet"):
        rewards.unlink()  # as of a replay, which trains nothing
    (said,) = (text for text in compare(load_runs(path)).warnings if "machine" in text)
    assert said.startswith("The machine ran 50.0% slower")
    assert "static:4/online" in said


def test_nothing_is_said_without_a_record_of_engine_steps(tmp_path: Path) -> None:
    facts = examine(load_training(written(tmp_path, engine_steps({}), None)))
    assert [policy.time.pace for policy in facts.policies] == [None, None]
    assert facts.against_frozen[0].pace is None
    assert "pace" not in {flag.name for flag in facts.flags}
