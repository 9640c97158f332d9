"""The committed engine over two GPUs that drafts, and its rollouts: what is made of them."""

from __future__ import annotations

import json

import msgspec
import pandas as pd
import pytest

from evidence import two_gpus_drafting as drafting
from evidence import two_gpus_replay as replay
from evidence.recording import HERE, load_all
from evidence.regimes_claims import Row, began_empty, rollout_s
from evidence.two_gpus import DATA, law_of
from tlt.sim.steptimes.calibration import load
from tlt.sim.steptimes.fit_live import fit_points
from tlt.traces.results.calibration_points import MeasuredPoints
from tlt.traces.runs.runfolder import read_struct


@pytest.fixture(scope="module")
def rows() -> dict[str, list[Row]]:
    return replay.simulated()


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return replay.recorded()


def test_the_calibration_is_what_its_points_say() -> None:
    points = read_struct(DATA / "calibration.points.json", MeasuredPoints)
    assert fit_points(points) == load(str(drafting.CALIBRATION))
    assert {point.draft_config.depth for point in points.points} == {0, 2, 4}
    assert len(points.mixed_points) == 48


def test_engine_steps_stand_beside_what_was_committed_and_the_first_machine() -> None:
    """K = 2, 64 requests at 512 tokens: 6.314 ms, committed 5.014; plain at batch 1: 3.079 and 3.280 ms."""
    steps = drafting.decode_steps(load(str(drafting.CALIBRATION)))
    of = {(step.engine, step.batch, step.context_tokens): step for step in steps}
    assert len(of) == len(steps) == 24
    large = of["K = 2", 64, 512]
    assert large.measured_s == pytest.approx(6.314e-3, abs=1e-6)
    assert large.committed_s is not None
    assert large.error(large.committed_s) == pytest.approx(-0.206, abs=1e-3)
    assert large.first_machine_s is None
    plain = of[drafting.PLAIN, 1, 512]
    assert (plain.measured_s, plain.first_machine_s) == pytest.approx((3.079e-3, 3.280e-3), abs=1e-6)
    assert plain.committed_s is None, "an engine that drafts was predicted, with K = 0 too"
    assert all(step.committed_s for step in steps if step.engine != drafting.PLAIN)


def test_the_record_of_engine_steps_is_what_the_points_say() -> None:
    calibration = load(str(drafting.CALIBRATION))
    decode, beside = drafting.decode_steps(calibration), drafting.beside_steps(calibration)
    record, values = load_all(HERE)["two_gpus_drafting"], drafting.figures_of(calibration, decode, beside)
    assert record.value == values
    assert record.how == drafting.how(calibration, values, decode)
    assert record.met is drafting.is_met(values, beside) is False
    assert (HERE / "two_gpus_drafting.md").read_text(encoding="utf-8") == drafting.table_of(decode)
    near = {"decode, committed before: mean error": 0.1, "decode, committed before: signed": -0.05}
    assert drafting.is_met(near, [])
    assert not drafting.is_met(near, beside)


def test_rollouts_were_as_long_as_their_folders_say(rows: dict[str, list[Row]]) -> None:
    runs = {"none": (10.83, 12.64, 8.82), "static-2": (7.80, 10.35), "static-4": (6.42, 10.43, 6.99)}
    for run, seconds in runs.items():
        assert rollout_s(replay.REPLAY / run).tolist() == pytest.approx(seconds, abs=5e-3)
        assert began_empty(replay.REPLAY, run) == [True] * len(seconds)
        for of in rows.values():
            told = [row.measured_s for row in of if row.policy == run]
            assert told == pytest.approx(seconds, abs=5e-3)


def test_what_either_law_says_of_rollouts(rows: dict[str, list[Row]], table: pd.DataFrame) -> None:
    """The repeat, whose host was as calibrated; the roofline has no host beside decode at all."""
    again = {law: [row for row in of if row.regime.endswith("again")] for law, of in rows.items()}
    assert max(abs(row.error) for row in again[replay.CALIBRATED]) < 0.06
    assert max(row.error for row in again[replay.ROOFLINE]) < -0.15
    first_s, again_s = replay.host_s(table, "none")
    assert (first_s, again_s) == pytest.approx((33.4e-3, 21.4e-3), abs=1e-4)
    assert replay.laws()[replay.ROOFLINE].coefficients == law_of(2)
    assert 100e-6 < replay.pass_s(table) < 250e-6


def test_the_record_of_rollouts_is_what_they_say(rows: dict[str, list[Row]], table: pd.DataFrame) -> None:
    record, values = load_all(HERE)["two_gpus_replay"], replay.figures_of(rows, table)
    assert record.value == pytest.approx(values, abs=2e-4)
    assert record.how == replay.how(values, table)
    assert record.met is False
    assert (HERE / "two_gpus_replay.md").read_text(encoding="utf-8") == replay.table_of(rows)
    on_time = [
        msgspec.structs.replace(row, simulated_s=row.measured_s, speedup_error=0.0)
        for row in rows[replay.ROOFLINE]
    ]
    assert replay.is_met(on_time)
    assert not replay.is_met([msgspec.structs.replace(on_time[0], simulated_s=1.04 * on_time[0].measured_s)])


def test_the_files_name_no_folder_of_the_machine() -> None:
    for path in [*DATA.glob("*.json"), *replay.REPLAY.rglob("*.json")]:
        text = path.read_text(encoding="utf-8")
        assert json.loads(text), path
        assert not [place for place in ('"/', "/root", "/home") if place in text], path
