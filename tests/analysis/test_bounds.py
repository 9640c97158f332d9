"""The bounds of a comparison in words and beside its runs, and cost draws of comparisons without advice."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.analysis.fake_run import write_comparison, write_recommendation
from tlt.analysis.comparison.compare import compare
from tlt.analysis.comparison.ranking import judge
from tlt.analysis.comparison.verdict import ceiling_sentence, ceilings
from tlt.analysis.load import load_runs
from tlt.analysis.report import make_report
from tlt.traces.results.bounds import BOUNDS, Bounds, StepBound
from tlt.traces.results.cost_draws import COST_DRAWS, CostDraws
from tlt.traces.runs.runfolder import write_json
from tltsched.errors import InputError


def bounds(steps: int, drafted: float | None = 20.0) -> Bounds:
    rows = tuple(
        StepBound(step=step, phases_s=10.0, compute_s=4.0, longest_s=30.0, work_s=25.0,
                  drafted_longest_s=drafted, drafted_work_s=None if drafted is None else 5.0)
        for step in range(steps)
    )  # fmt: skip
    return Bounds(workers=4, draft_configs=("4",), rows=rows)


def test_bounds_are_means_over_steps(tmp_path: Path) -> None:
    baseline = load_runs(write_comparison(tmp_path)).runs[0]
    found = ceilings(bounds(3), baseline)
    assert [each.seconds for each in found] == [40.0, 30.0, 10.0, 10.0]
    step_s = float(baseline.step_seconds().mean())
    assert found[0].speedup == pytest.approx(step_s / 40.0)


def test_without_a_drafted_bound_it_is_left_out(tmp_path: Path) -> None:
    baseline = load_runs(write_comparison(tmp_path)).runs[0]
    found = ceilings(bounds(3, None), baseline)
    assert [each.seconds for each in found] == [40.0, 10.0, 29.0]
    assert ceiling_sentence(None, baseline) == ""


@pytest.mark.slow
def test_a_report_shows_them_and_its_bars_have_lines(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    before = make_report(tmp_path)
    assert before.answer.ceiling == ""
    write_json(tmp_path / BOUNDS, bounds(3))
    after = make_report(tmp_path)
    assert after.answer.ceiling.startswith("Bounds on the cluster of ")
    bars = [next(picture for picture in report.pictures if picture.name == "ledger")
            for report in (before, after)]  # fmt: skip
    assert bars[0].png != bars[1].png
    assert "bounds" in bars[1].caption


def test_bounds_of_other_steps_are_refused(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    write_json(tmp_path / BOUNDS, bounds(2))
    with pytest.raises(InputError, match=r"bounds\.json"):
        load_runs(tmp_path)


@pytest.mark.slow
def test_a_comparison_with_cost_draws_has_intervals_over_step_times_and_no_advice(tmp_path: Path) -> None:
    write_recommendation(tmp_path, draws=40, steps=12)
    (tmp_path / "advice.json").unlink()
    about = CostDraws(cost_error=0.042, cost_error_source="leave one out: x", probe_steps=3)
    write_json(tmp_path / COST_DRAWS, about)
    runs = load_runs(tmp_path)
    assert runs.advice() is None
    assert runs.recommendation is not None
    assert runs.recommendation.error.linear
    verdict = judge(compare(runs), runs)
    assert "step-time error of 4.2 %, leave one out: x (40 draws, linear response)" in verdict.covers
    page = tmp_path / "page"
    page.mkdir()
    assert make_report(tmp_path).runs.recommendation is not None


def test_cost_draws_without_rows_is_refused(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    write_json(tmp_path / COST_DRAWS, CostDraws(cost_error=0.1, cost_error_source="x", probe_steps=3))
    with pytest.raises(InputError, match="cost_draws"):
        load_runs(tmp_path)
    pd.DataFrame({"draw": []}).to_parquet(tmp_path / "cost_draws.parquet")
    with pytest.raises(InputError, match="cost_draws"):
        load_runs(tmp_path)
