"""What rollout schedules cost beside time: in the table, the verdict and the warnings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from tests.analysis.fake_run import write_run
from tlt.analysis.comparison.compare import compare
from tlt.analysis.comparison.ranking import judge
from tlt.analysis.comparison.tables import markdown, schedule_table, schedule_terminal, scheduled
from tlt.analysis.load import load_runs
from tlt.analysis.report import present, write_report
from tlt.traces.runs.runfolder import Comparison, RunFolder, ScheduleFacts, write_json
from tltsched.errors import InputError

FACTS = ScheduleFacts(name="oversample_partial", keeps_order=False, on_policy="mixed")


def folder(path: Path, facts: ScheduleFacts | None = FACTS) -> Path:
    """Write a comparison of two runs, the second one under a schedule."""
    for name, speed, seed in (("none", 1.0, 1), ("fast", 2.0, 2)):
        write_run(path / name, policy=name, speed=speed, seed=seed if facts and not facts.keeps_order else 1)
    write_json(path / "comparison.json", Comparison(name="two", runs=("none", "fast")))
    if facts is not None:
        told = RunFolder(path / "fast")
        count = told.responses().groupby("step").size()
        rows = pd.DataFrame(
            {
                "step": count.index, "trained_responses": count.to_numpy(), "response_tokens": 1000,
                "wasted_tokens": 500, "carried_responses": 7, "carried_tokens": 90,
                "staleness_mean": 0.5, "staleness_max": 2,
            }
        )  # fmt: skip
        told.write_schedule(facts, rows)
    return path


@pytest.mark.slow
def test_plain_runs_have_no_schedule_table(tmp_path: Path) -> None:
    table = compare(load_runs(folder(tmp_path, None)))
    assert not scheduled(table)
    assert "On-policy" not in markdown(table) + write_report(tmp_path).read_text(encoding="utf-8")


@pytest.mark.slow
def test_consequences_stand_beside_the_time(tmp_path: Path) -> None:
    runs = load_runs(folder(tmp_path))
    table = compare(runs)
    assert scheduled(table)
    none, fast = schedule_table(table).rows
    assert none[1] == "synchronous"
    assert none[4:8] == ("yes", "yes", "0.00 / 0", "0.0%")
    assert fast[1] == "oversample_partial"
    assert fast[4:7] == ("mixed", "no", "0.50 / 2")
    assert "On-policy" in markdown(table)
    assert "On-policy" in write_report(tmp_path).read_text(encoding="utf-8")
    verdict = judge(table, runs)
    assert "0.50 policy updates old in the mean and 2 at most" in verdict.sentence
    assert "changes the order of samples" in verdict.sentence
    assert any("trains on other responses" in text and "7 responses are" in text for text in table.warnings)


def test_the_terminal_table_fits_80_columns(tmp_path: Path) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(schedule_terminal(compare(load_runs(folder(tmp_path)))))
    text = capture.get()
    assert "mixed" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.slow
def test_a_report_of_schedules_is_written(tmp_path: Path) -> None:
    console = Console(width=100)
    with console.capture() as capture:
        present(folder(tmp_path), console)
    assert "Staleness" in capture.get()
    assert "Staleness" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_schedule_that_keeps_the_order_must_train_on_the_same_responses(tmp_path: Path) -> None:
    facts = ScheduleFacts(name="divided", keeps_order=True, on_policy="yes")
    assert not compare(load_runs(folder(tmp_path / "same", facts))).warnings
    other = folder(tmp_path / "other", facts)
    write_run(other / "fast", policy="fast", speed=2.0, seed=5)
    with pytest.raises(InputError, match="same"):
        compare(load_runs(other))


def test_a_schedule_that_knows_lengths_is_shown_and_not_ranked(tmp_path: Path) -> None:
    facts = ScheduleFacts(name="longest_first", keeps_order=True, on_policy="yes", clairvoyant=True)
    runs = load_runs(folder(tmp_path, facts))
    table = compare(runs)
    assert schedule_table(table).rows[1][1] == "longest_first (knows lengths)"
    verdict = judge(table, runs)
    assert verdict.recommended == table.rows[0].policy
    assert verdict.regrets is None
    assert "Not ranked, since nobody can know lengths in advance: fast (1.84x)" in verdict.sentence
