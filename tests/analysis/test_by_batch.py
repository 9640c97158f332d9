"""Acceptance by batch on the pages: live by engine step, simulated by decision interval."""

from __future__ import annotations

from pathlib import Path

from tests.traces.doctor_runs import healthy, write_comparison
from tlt.analysis.comparison.by_batch import batch_table
from tlt.analysis.load import load_run
from tlt.traces.runs.acceptance import acceptance_length_with_bonus


def test_a_live_run_is_told_by_engine_step(tmp_path: Path) -> None:
    run = healthy()
    last = run.engine_steps["batch"] == 2
    run.engine_steps.loc[last & (run.engine_steps["k"] > 0), "accepted_tokens"] = 1
    write_comparison(tmp_path, healthy("none", drafts=False), run)
    runs = tuple(load_run(tmp_path / name) for name in ("none", "static:4"))
    table = batch_table(runs)
    assert table is not None
    assert table.headers == ("Batch", "static:4"), "a policy without drafts has no column"
    # 1 + 1 / 2 in 360 engine steps of batch 2, and 1 + 2 in 1,080 of batch 8
    mean = 1 + (360 * 1 + 1080 * 16) / (360 * 2 + 1080 * 8)
    assert table.rows == [("2", "1.50 (360)"), ("5-8", "3.00 (1,080)"), ("all", f"{mean:.2f} (1,440)")]
    assert batch_table(runs[:1]) is None


def test_a_simulated_run_is_told_by_decision_interval(tmp_path: Path) -> None:
    run = healthy()
    run.left_out.add("engine_steps")
    read = load_run(run.write(tmp_path))
    rows = read.drafts_by_batch()
    assert rows is not None
    assert acceptance_length_with_bonus(rows) == 3.0
    table = batch_table((read,))
    assert table is not None
    assert table.rows == [("5-8", "3.00 (1,200)"), ("all", "3.00 (1,200)")]


def test_a_run_without_either_file_has_no_table(tmp_path: Path) -> None:
    run = healthy()
    run.left_out |= {"engine_steps", "records"}
    assert batch_table((load_run(run.write(tmp_path)),)) is None
