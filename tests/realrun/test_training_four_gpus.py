"""The committed training runs on four H200: their books close, decisions repeat, and what they taught."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evidence.training_claims import FROZEN, NATURAL
from evidence.training_four_gpus import (
    DATA,
    MOVING,
    MOVING_ON_TWO,
    NONE,
    ONLINE,
    training_of,
)
from tests.realrun.recorded_runs import decisions_repeat, every_gpu_second_is_booked, name
from tlt.analysis.training.equal_lengths import at_equal_lengths
from tlt.analysis.training.run import load_training
from tlt.sim.drift import load_drift
from tlt.sim.steptimes.calibration import load
from tlt.traces.runs.acceptance import acceptance_length_with_bonus
from tlt.traces.runs.runfolder import RunFolder

FOLDERS = [MOVING / FROZEN, MOVING / ONLINE, NONE]


@pytest.mark.parametrize("run", FOLDERS, ids=name)
def test_the_recorded_decisions_repeat_and_the_books_close(run: Path) -> None:
    decisions_repeat(run)
    every_gpu_second_is_booked(run)


def test_the_steps_that_were_asked_for_were_run() -> None:
    assert [len(RunFolder(run).steps()) for run in FOLDERS] == [20, 20, 16]


def test_the_trained_drafter_accepts_more_and_hands_over_in_time() -> None:
    lengths = [acceptance_length_with_bonus(RunFolder(MOVING / run).steps()) for run in (FROZEN, ONLINE)]
    assert lengths[1] > lengths[0] + 0.1
    waits_s = pd.read_parquet(MOVING / ONLINE / "updates.parquet")["handover_s"]
    assert 0 < waits_s.max() < 0.1


def test_idle_workers_train_faster_than_before() -> None:
    """Chain starts a second and worker: packed rows and a graph against padded rows."""
    now, four, two = (
        of["tokens"] / of["seconds"]
        for of in map(training_of, (MOVING / ONLINE, NATURAL / ONLINE, MOVING_ON_TWO / ONLINE))
    )
    assert now > 3 * four > 3 * two


def test_equal_lengths_are_told_from_what_the_drafter_gains() -> None:
    """As it came, the trained drafter looks slower: the longest responses of its steps are a fifth longer."""
    frozen, online = load_training(MOVING).policies
    found = at_equal_lengths(online, frozen)
    assert found is not None
    assert found.interval is not None
    assert found.interval[0] < 1.0 < found.value < found.interval[1]
    assert online.rollout_s().sum() > frozen.rollout_s().sum()


def test_acceptance_goes_with_entropy_where_the_policy_moves() -> None:
    """The curve that is shipped of the frozen drafter: no drift is visible in 20 steps, entropy tells."""
    curve = load_drift("smollm2-135m-h200x4-5e-5")
    assert "4 workers" in curve.provenance
    assert curve.updates == len(RunFolder(MOVING / FROZEN).steps()) - 1
    assert curve.fit.verdict == "none visible"
    assert curve.settings()["drift_per_update"] == 0.0
    assert curve.fit.entropy is not None
    assert curve.fit.entropy.elasticity.interval is not None
    assert 0 < curve.fit.entropy.elasticity.interval[0] < curve.fit.entropy.elasticity.interval[1] < 1


def test_the_calibration_that_was_made_beside_them_is_of_this_shape() -> None:
    calibration = load(str(DATA / "calibration.json"))
    assert "H200" in calibration.describe()
    assert np.isfinite(calibration.coefficients.off_s)
