"""The committed H100 run: its decisions replay to the same bytes, and the simulator still predicts it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tlt.commands.main import cli

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
DATA = PROJECT / "evidence/runs/h100-qwen2.5-7b/replay"
CALIBRATION = PROJECT / "sim/steptimes/calibrations" / "vllm-0.32-h100-qwen2.5-7b.json"


@pytest.fixture(scope="module")
def crosscheck(tmp_path_factory: pytest.TempPathFactory) -> dict:
    run = tmp_path_factory.mktemp("h100") / "replay"
    shutil.copytree(DATA, run)
    arguments = ["report", "crosscheck", str(run), "--calibration", str(CALIBRATION)]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads((run / "crosscheck.json").read_bytes())


def test_the_decisions_are_byte_identical() -> None:
    result = CliRunner().invoke(cli, ["report", "decisions", str(DATA)])
    assert result.exit_code == 0, result.output
    assert result.output.count("byte-identical") == 6


# Simulated over measured makespan, less 1, as the present model gives it for these files; a change of
# formats must not move it, and a change of the model says so here.
MAKESPAN_ERRORS = {
    "none": -0.020992,
    "static:2": -0.021110,
    "static:4": -0.018509,
    "static:8": -0.010069,
    "tlt_chains": -0.019947,
    "goodput:off+1+2+4+8": -0.020867,
}


def test_files_of_version_1_give_the_figures_of_the_model(crosscheck: dict) -> None:
    errors = {policy["policy"]: policy["makespan_error"]["value"] for policy in crosscheck["policies"]}
    assert errors == pytest.approx(MAKESPAN_ERRORS, abs=1e-6)


def test_makespans_and_speedups_are_predicted_within_five_percent(crosscheck: dict) -> None:
    for policy in crosscheck["policies"]:
        assert abs(policy["makespan_error"]["value"]) <= 0.05, policy["policy"]
        assert abs(policy["speedup_error"]["value"]) <= 0.05, policy["policy"]


def test_the_simulator_chooses_the_fastest_policy(crosscheck: dict) -> None:
    assert crosscheck["choice"] == crosscheck["best"]
    assert crosscheck["regret"]["value"] <= 0.02
    assert crosscheck["order"]["value"] == 1.0


def test_nothing_stops_the_conclusion(crosscheck: dict) -> None:
    assert [flag["name"] for flag in crosscheck["flags"] if flag["stops"]] == []
