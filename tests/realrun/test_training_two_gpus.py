"""The committed training runs on two H200: their books close, decisions repeat, and what they taught."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evidence.recording import RUNS
from tests.realrun.recorded_runs import decisions_repeat, every_gpu_second_is_booked, name
from tlt.analysis.comparison.pace import against
from tlt.analysis.training.run import load_training
from tlt.sim.drift import load_drift
from tlt.sim.validate.training.run import TrainingRun
from tlt.traces.runs.acceptance import acceptance_length_with_bonus
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.request_acceptance import read_acceptance
from tlt.traces.runs.runfolder import RunFolder

DATA = RUNS / "h200x2-smollm2-train"
FOLDERS = sorted(path.parent for path in DATA.glob("*/*/summary.json"))
MOVING = DATA / "moving"


@pytest.mark.parametrize("run", FOLDERS, ids=name)
def test_the_recorded_decisions_repeat_and_the_books_close(run: Path) -> None:
    decisions_repeat(run)
    every_gpu_second_is_booked(run)


@pytest.mark.parametrize("run", FOLDERS, ids=name)
def test_every_draft_is_counted_by_request(run: Path) -> None:
    drafts, columns = read_acceptance(run), ["drafted_tokens", "accepted_tokens"]
    engine_steps = read_engine_steps(run, "step", *columns)
    assert engine_steps is not None
    counted = engine_steps.groupby("step").sum()
    if drafts is None:
        assert counted["drafted_tokens"].sum() == 0
    else:
        assert (drafts.groupby("step")[columns].sum() == counted[columns]).all(axis=None)


def test_seven_policies_ran_to_their_end() -> None:
    assert [len(RunFolder(run).steps()) for run in FOLDERS] == [18, 18, 16, 16, 16, 16, 16]


def test_the_frozen_drafter_fell_behind_the_policy_that_moved() -> None:
    """First and last five steps: learning rate 5e-5 costs acceptance, 1e-5 shows no such fall."""
    fell = {}
    for run in (MOVING / "static-4-frozen", DATA / "policies" / "static-4-frozen"):
        steps = RunFolder(run).steps()
        lengths = [acceptance_length_with_bonus(part) for part in (steps.iloc[:5], steps.iloc[-5:])]
        fell[run.parent.name] = lengths[0] - lengths[1]
    assert fell["moving"] > fell["policies"] + 0.1
    curve = load_drift("smollm2-135m-h200-5e-5")
    assert curve.learning_rate == 5e-5
    assert curve.updates == len(RunFolder(MOVING / "static-4-frozen").steps()) - 1
    assert curve.fit.verdict == "falls"
    assert curve.settings()["drift_per_update"] == pytest.approx(curve.fit.per_update.interval[0])  # type: ignore[index]


def test_entropy_is_recorded_at_every_step() -> None:
    for run in FOLDERS:
        nats = TrainingRun(run).entropy()
        assert np.isfinite(nats).all()
        assert 0.005 < nats.min() < nats.max() < 0.06


def test_the_host_was_slower_under_the_trained_drafter() -> None:
    """What an interval over steps alone would have called a slower policy."""
    runs = {run.policy: run for run in load_training(DATA / "policies").policies}
    pace = against(runs["static:4/online"].run, runs["static:4/frozen"].run)
    assert pace is not None
    assert pace.shared
    assert pace.slower.interval is not None
    assert pace.slower.interval[0] > 1.05
    assert pace.rollout_speedup.interval is not None
    assert pace.rollout_speedup.interval[0] < 1.0 < pace.rollout_speedup.interval[1]
