"""Simulating a measured run again: the same requests on the same workers, and the law on its engine steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from tests.sim.measured_world import SURVIVAL, measured, write_calibration, write_measured
from tlt.sim.steptimes.fit_live import fit_points
from tlt.sim.validate.replay_measured import MeasuredPolicy, acceptance_of, measured_survival, simulate_replay
from tlt.traces.common.manifest import seal_also
from tlt.traces.results.calibration_points import SYNTHETIC
from tlt.traces.results.simulated_replay import PREDICTED, SIMULATED_REPLAY, SimulatedReplay
from tlt.traces.runs.runfolder import RunFolder, read_struct, write_json
from tltsched.draft_config import chain
from tltsched.errors import InputError
from tltsched.event_log import Record
from tltsched.events import DecisionEnded, RolloutBegan

POLICIES = {"none": 1.0, "static:2": 1.1, "tlt_chains": 1.0}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return (measured, calibration, simulated)."""
    root = tmp_path_factory.mktemp("world")
    calibration = write_calibration(root / "calibration.json")
    measured = write_measured(root / "measured", calibration, POLICIES)
    simulate_replay(measured, calibration, root / "simulated")
    return measured, calibration, root / "simulated"


@pytest.mark.parametrize("name", ["none", "static-2", "tlt_chains"])
def test_the_same_requests_run_on_the_same_workers(world: tuple[Path, Path, Path], name: str) -> None:
    measured, _, simulated = world
    columns = ["step", "request", "worker", "prompt_tokens", "response_tokens"]
    there, here = (RunFolder(folder / name).responses()[columns] for folder in (measured, simulated))
    assert here.equals(there)
    assert RunFolder(simulated / name).summary().kind == "simulated"


def test_times_are_those_of_the_undistorted_run(world: tuple[Path, Path, Path]) -> None:
    measured, _, simulated = world
    for name, factor in (("none", 1.0), ("static-2", 1.1)):
        walls = [RunFolder(folder / name).summary().wall_s for folder in (measured, simulated)]
        assert walls[0] == pytest.approx(factor * walls[1])


def test_the_folder_says_what_it_rests_on(world: tuple[Path, Path, Path]) -> None:
    told = read_struct(world[2] / "simulated_replay.json", SimulatedReplay)
    assert told.calibration == "fake"
    assert told.acceptance_steps == ()
    assert told.acceptance_source.startswith("given")
    assert all(policy.same_placement for policy in told.policies)
    lengths = {policy.run: policy.break_even_length for policy in told.policies}
    assert lengths["none"] is None
    assert lengths["static-2"] is not None
    assert 1.0 < lengths["static-2"] < 2.0
    assert told.calibrated.held_tokens == 64 * 4000


def test_the_law_is_held_against_the_engine_steps_that_it_speaks_of(world: tuple[Path, Path, Path]) -> None:
    rows = pd.read_parquet(world[2] / "static-2" / PREDICTED)
    steady = rows[rows["steady"]]
    assert len(rows) - len(steady) == 2 * rows["step"].nunique()
    assert np.allclose(steady["predicted_s"] * 1.1, steady["seconds"])


def test_a_single_run_is_a_comparison_of_one(world: tuple[Path, Path, Path], tmp_path: Path) -> None:
    measured, calibration, _ = world
    simulate_replay(measured / "none", calibration, tmp_path / "one")
    assert RunFolder(tmp_path / "one" / "none").summary().policy == "none"


def test_another_placement_is_told(world: tuple[Path, Path, Path], tmp_path: Path) -> None:
    measured, calibration, _ = world
    shutil.copytree(measured / "none", tmp_path / "none")
    path = tmp_path / "none" / "responses.parquet"
    rows = pd.read_parquet(path)
    rows.loc[0, "worker"] = 1
    rows.to_parquet(path, index=False)
    simulate_replay(tmp_path / "none", calibration, tmp_path / "one")
    assert (
        not read_struct(tmp_path / "one" / "simulated_replay.json", SimulatedReplay)
        .policies[0]
        .same_placement
    )


def _decision_interval(owner: str, k: int, engine_steps: int, accepted: tuple[int, ...]) -> Record:
    event = DecisionEnded(1.0, 0, chain(k), engine_steps, engine_steps, 1.0, accepted, (), 1, 10)
    return Record(1.0, 0, owner, event)


def test_acceptance_of_one_rollout_is_by_position_over_what_drafted_as_many() -> None:
    records = [
        Record(0.0, 0, "worker/0", RolloutBegan(0.0, 0, 0, 0)),
        _decision_interval("worker/0", 2, 10, (8, 4)),
        _decision_interval("worker/0", 4, 10, (6, 5, 5, 1)),
        _decision_interval("worker/0", 0, 50, ()),
        Record(2.0, 0, "worker/0", RolloutBegan(2.0, 0, 1, 0)),
        _decision_interval("worker/0", 4, 99, (99, 99, 99, 99)),
    ]
    assert measured_survival(records, 0).tolist() == [0.7, 0.45, 0.45, 0.1]
    assert measured_survival(records, 2).tolist() == []


def test_a_drafters_own_acceptance_is_taken_from_the_first_rollout(tmp_path: Path) -> None:
    calibration = write_calibration(tmp_path / "calibration.json")
    measured = write_measured(tmp_path / "measured", calibration, {"none": 1.0, "static:4": 1.0})
    for name in ("none", "static-4"):
        config = tmp_path / "measured" / name / "resolved_config.json"
        config.write_text('{"engine": {"max_running": 16}}')
    policies = [MeasuredPolicy(measured / name) for name in ("none", "static-4")]
    law, steps = acceptance_of(policies)
    assert steps == (0,)
    assert law is not None
    assert law.survival(chain(4)) == pytest.approx(SURVIVAL, abs=0.05)


@pytest.mark.parametrize(
    ("notes", "survival", "temperature", "left_out"),
    [
        (f"{SYNTHETIC} 0.8", (), 1.0, True),
        (f"{SYNTHETIC} 0.8", (), 0.0, False),  # greedy: no distributions
        (f"{SYNTHETIC} 0.8", SURVIVAL, 1.0, False),
        ("the drafter's own acceptance", (), 1.0, False),
    ],
)
def test_a_sampler_that_was_not_calibrated_is_told(
    tmp_path: Path, notes: str, survival: tuple[float, ...], temperature: float, left_out: bool
) -> None:
    calibration = tmp_path / "calibration.json"
    points = msgspec.structs.replace(measured(), notes=(notes,))
    write_json(calibration, fit_points(points))
    run = write_measured(tmp_path / "measured", calibration, {"static:2": 1.0}, rollouts=1)
    settings = {
        "engine": {"max_running": 16, "device": "cpu", "temperature": temperature},
        "drafter": {"synthetic_survival": survival},
    }
    write_json(run / "static-2" / "resolved_config.json", settings)
    seal_also(run / "static-2", "resolved_config.json")
    simulate_replay(run, calibration, tmp_path / "simulated")
    assert (
        read_struct(tmp_path / "simulated" / SIMULATED_REPLAY, SimulatedReplay).sampler_left_out is left_out
    )


def test_a_simulated_run_is_refused(world: tuple[Path, Path, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a measured run"):
        simulate_replay(world[2], world[1], tmp_path / "again")
