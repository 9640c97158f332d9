"""Sessions recorded on one H200, simulated again from the calibration that was made before them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from evidence.live_sessions_claims import AIM, rows_of
from evidence.recording import RUNS, refuse_losses
from tlt.analysis.crosscheck.decisions import run_folders
from tlt.commands.main import cli
from tlt.sim.steptimes.calibration import load, mixed_errors
from tlt.sim.steptimes.fit_live import fit_points
from tlt.traces.results.calibration_points import MeasuredPoints
from tlt.traces.runs.records import RECORDS
from tlt.traces.runs.runfolder import read_struct
from tltsched.errors import InputError

RUN = RUNS / "h200-qwen2.5-7b-sessions"


def test_a_recorded_rollout_of_sessions_is_met() -> None:
    rows = rows_of(RUN / "sticky", RUN / "calibration.json", "sticky")
    assert [row["policy"] for row in rows] == ["none", "static:4"]
    for row in rows:
        assert row["simulated_s"] == pytest.approx(row["measured_s"], rel=AIM)
        assert row["simulated_hits"] == pytest.approx(row["measured_hits"], abs=0.01)
        assert row["hits_where_turns_went"] == pytest.approx(row["measured_hits"], abs=0.01)
        assert row["decisions_replay"]


def test_a_run_that_lost_a_worker_is_no_evidence(tmp_path: Path) -> None:
    """The worker that is left finds every context of the other's turns as well, once it has computed it."""
    run = tmp_path / "sticky"
    shutil.copytree(RUN / "sticky", run)
    refuse_losses(run_folders(run))
    with (run / "none" / RECORDS).open("a", encoding="utf-8") as records:
        records.write(
            '{"t_s":1.0,"seq":9,"owner":"cluster","body":{"kind":"worker_lost","t_s":1.0,"worker":0}}\n'
        )
    with pytest.raises(InputError, match="lost a worker"):
        rows_of(run, RUN / "calibration.json", "sticky")


def test_its_calibration_is_what_its_points_say(tmp_path: Path) -> None:
    """As `tlt real calibrate --refit` says as well, which takes no settings beside the points."""
    points = RUN / "calibration.points.json"
    fitted = fit_points(read_struct(points, MeasuredPoints))
    assert fitted == load(str(RUN / "calibration.json"))
    again = ["real", "calibrate", "--refit", str(points), "--out", str(tmp_path / "again.json")]
    assert CliRunner().invoke(cli, again).exit_code == 0
    assert (tmp_path / "again.json").read_bytes() == (RUN / "calibration.json").read_bytes()
    refused = CliRunner().invoke(cli, [*again, "--set", "seed=1"])
    assert refused.exit_code != 0
    assert "settings beside --refit" in str(refused.exception)


def test_a_step_that_prefills_beside_a_batch_waits_for_its_host() -> None:
    """Prompts of 16 to 1,024 tokens take alike; a constant on top of the other terms cannot say so."""
    calibration = load(str(RUN / "calibration.json"))
    law, points = calibration.coefficients, calibration.mixed_points
    short = [point.engine_step_s for point in points if point.prompt_tokens <= 1024]
    assert law.mixed_host_s == pytest.approx(sum(short) / len(short), rel=0.05)
    without = msgspec.structs.replace(law, mixed_host_s=0.0, mixed_s=0.0094)  # the best constant on top
    unseen = [point for point in points if point.held_out]
    assert abs(mixed_errors(law, unseen)).mean() < 0.1 < 0.25 < abs(mixed_errors(without, unseen)).mean()
