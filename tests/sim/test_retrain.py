"""Predicting the second half of a measured training run, and the drift curve that comes out of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.sim.measured_world import write_calibration
from tests.sim.training_world import DRIFTING, SAMPLES, write_training_run
from tlt.commands.sim.group import sim
from tlt.sim.config import resolve
from tlt.sim.drift import load_drift
from tlt.sim.simulation import Simulation
from tlt.sim.validate.training.predict import drift_curve, predict_training, prediction_errors
from tlt.sim.workload import load_workload
from tlt.sim.write_run import warnings_of
from tlt.traces.lengths.generate import generate
from tlt.traces.lengths.shipped import load_histogram
from tlt.traces.results.predicted_training import PredictedTraining, StepPrediction, sentences
from tlt.traces.runs.runfolder import Comparison, RunFolder, read_struct, write_json
from tltsched.errors import InputError

pytestmark = pytest.mark.slow

Folders = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Return (measured comparison, calibration, prediction)."""
    root = tmp_path_factory.mktemp("world")
    calibration = write_calibration(root / "calibration.json")
    measured = root / "measured"
    write_training_run(measured / "none", calibration, policy="none", trains=False, steps=16)
    write_training_run(measured / "static-4-online", calibration, steps=16)
    write_json(measured / "comparison.json", Comparison(name="training", runs=("none", "static-4-online")))
    predict_training(measured, str(calibration), root / "predicted")
    return measured, calibration, root / "predicted"


def test_the_second_half_is_predicted(world: Folders) -> None:
    told = read_struct(world[2] / "predicted_training.json", PredictedTraining)
    assert [policy.run for policy in told.policies] == ["none", "static-4-online"]
    for policy in told.policies:
        assert [step.judged for step in policy.steps] == [False] * 8 + [True] * 8
        assert policy.same_placement
        for error in policy.errors:
            # Of a drift that is there the simulation takes what is sure of it, the nearer end of its
            # interval.
            assert abs(error.error.value) < 0.05, (policy.run, error)
    none, online = told.policies
    assert [error.quantity for error in none.errors] == ["rollout seconds", "step seconds"]
    assert online.errors[-1].quantity == "acceptance length"


def test_the_simulation_is_a_run_folder_of_all_steps(world: Folders) -> None:
    for name in read_struct(world[2] / "comparison.json", Comparison).runs:
        there, here = (RunFolder(folder / name) for folder in (world[0], world[2]))
        assert here.summary().kind == "simulated"
        assert here.responses()["response_tokens"].equals(there.responses()["response_tokens"])
        assert set(here.intervals()["cause"]) <= set(there.intervals()["cause"])
        assert len(here.steps()) == 16


def test_the_answer_is_told_in_words(world: Folders) -> None:
    text = "\n".join(sentences(read_struct(world[2] / "predicted_training.json", PredictedTraining)))
    assert "static:4/online: fitted on 8 steps, the prediction of steps 8 to 15 is off by" in text
    assert "no drift is fitted, since nothing was drafted" in text
    assert "acceptance falls as the policy is updated" in text


def test_lengths_of_a_run_can_be_simulated_on_another_model(world: Folders) -> None:
    run = world[0] / "static-4-online"
    settings = {"lengths": str(run / "responses.parquet"), "replay_steps": True, "steps": 16}
    rows = load_workload(resolve({"workload": settings}).workload, seed=0).rows
    measured = RunFolder(run).responses()
    assert rows["response_tokens"].tolist() == measured["response_tokens"].tolist()
    assert (rows.groupby("prompt_id").size() == SAMPLES).all()


def test_another_model_or_device_is_told(world: Folders, tmp_path: Path) -> None:
    told = predict_training(world[0] / "static-4-online", "paper-qwen32b-tp4", tmp_path / "out")
    assert told.warnings[0] == "the calibration is of Qwen2.5-32B, the run trained Qwen2.5-7B"
    assert read_struct(tmp_path / "out" / "comparison.json", Comparison).runs == ("static-4-online",)


def test_errors_are_of_judged_steps_alone() -> None:
    def step(number: int, judged: bool, length: float | None) -> StepPrediction:
        return StepPrediction(
            step=number, judged=judged, measured_rollout_s=1.0, simulated_rollout_s=1.1 if judged else 9.0,
            measured_step_s=2.0, simulated_step_s=2.1, measured_length=length, simulated_length=length,
        )  # fmt: skip

    steps = (step(0, False, 3.0), step(1, True, None), step(2, True, None))
    errors = prediction_errors(steps)
    assert [error.quantity for error in errors] == ["rollout seconds", "step seconds"]
    assert errors[0].error.value == pytest.approx(0.1)
    assert errors[0].error.interval == pytest.approx((0.1, 0.1))


# --- the drift curve ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def curve(world: Folders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a curve as the command saves it."""
    root = tmp_path_factory.mktemp("curve")
    arguments = [
        "validate-training", str(world[0] / "static-4-online"), "--calibration", str(world[1]), "--out",
        str(root / "out"), "--save-drift", str(root / "mine.json"),
    ]  # fmt: skip
    result = CliRunner().invoke(sim, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "acceptance falls" in result.output
    return root / "mine.json"


def test_a_curve_says_what_it_rests_on(curve: Path) -> None:
    found = load_drift(str(curve))
    assert (found.name, found.model, found.updates) == ("mine", "Qwen2.5-7B", 15)
    assert found.fit.steps == tuple(range(16))
    assert found.learning_rate == 1e-6
    assert found.held_out is not None
    assert abs(found.held_out.error.value) < 0.03
    assert found.describe().startswith("drafter drift of Qwen2.5-7B (measured: vLLM")
    assert "mine): acceptance falls; exponent +0.0" in found.describe()


def test_a_named_curve_sets_the_drafter_of_a_simulation(curve: Path) -> None:
    config = resolve({"drafter": {"drift": str(curve)}, "workload": {"steps": 2}})
    assert config.drafter.drift_per_update == pytest.approx(DRIFTING.drift_per_update, rel=0.02)
    assert config.drafter.recovery_tokens == pytest.approx(DRIFTING.recovery_tokens, rel=0.05)
    assert config.drafter.initial_exponent == 1.0
    trace = generate(
        load_histogram("r1-client35"), steps=2, prompts_per_step=64, samples_per_prompt=2,
        max_response_tokens=2000, group_correlation=0.0, length_drift_per_step=0.0, prompt_tokens=16, seed=1,
    )  # fmt: skip
    simulation = Simulation(config, trace)
    assert any("drafter drift of Qwen2.5-7B" in text for text in warnings_of(simulation, simulation.run()))


def test_the_resolved_form_of_a_named_curve_resolves_to_itself(curve: Path) -> None:
    config = resolve({"drafter": {"drift": str(curve)}})
    again = {"drift": str(curve), "drift_per_update": config.drafter.drift_per_update}
    assert resolve({"drafter": again}).drafter == config.drafter


def test_a_curve_and_another_drift_contradict_each_other(curve: Path) -> None:
    with pytest.raises(InputError, match=r"drafter\.drift_per_update"):
        resolve({"drafter": {"drift": str(curve), "drift_per_update": 0.3}})


def test_no_drift_is_the_default() -> None:
    assert (resolve({}).drafter.drift, resolve({}).drafter.drift_per_update) == ("", 0.0)


def test_an_unknown_curve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"drafter\.drift"):
        resolve({"drafter": {"drift": "nosuch"}})
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="a drift curve"):
        load_drift(str(tmp_path / "bad.json"))


def test_a_curve_is_of_one_policy_that_drafts(world: Folders) -> None:
    with pytest.raises(InputError, match="the run folder of one policy"):
        drift_curve(world[0], "mine")
    with pytest.raises(InputError, match="nothing was drafted"):
        drift_curve(world[0] / "none", "mine")


def test_a_curve_goes_into_a_json_file_in_a_folder_that_exists(world: Folders, tmp_path: Path) -> None:
    arguments = [
        "validate-training",
        str(world[0]),
        "--calibration",
        str(world[1]),
        "--out",
        str(tmp_path / "out"),
    ]
    for place in ("x.toml", "no/x.json"):
        with pytest.raises(InputError, match="--save-drift"):
            CliRunner().invoke(
                sim, [*arguments, "--save-drift", str(tmp_path / place)], catch_exceptions=False
            )
    assert not (tmp_path / "out").exists()


def test_a_run_folder_that_lacks_a_table_is_refused(world: Folders, tmp_path: Path) -> None:
    shutil.copytree(world[0] / "none", tmp_path / "none")
    (tmp_path / "none" / "probes.parquet").unlink()
    with pytest.raises(InputError, match=r"probes\.parquet"):
        predict_training(tmp_path / "none", str(world[1]), tmp_path / "out")
