"""`tlt trace doctor`: exit codes, what is printed, JSON, and the runs that come with the project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.traces.doctor_faults import nothing_accepted, old_drafter
from tests.traces.doctor_runs import PLAIN_S, healthy, write_comparison
from tlt.commands import main
from tlt.traces.doctor import CHECKS

PROJECT = Path(__file__).resolve().parents[2]
SAMPLES = PROJECT / "traces/importers/samples"


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main.cli, ["trace", "doctor", *map(str, arguments)])


def test_no_finding_is_an_answer_too(tmp_path: Path) -> None:
    done = doctor(healthy().write(tmp_path / "run"))
    assert done.exit_code == 0
    assert "problems: 0, notices: 0" in done.output
    assert f"ran: {len(CHECKS) - 11} of {len(CHECKS)} checks: " in done.output
    assert "could not run: break-even-calibrated: no --calibration" in done.output


def test_a_notice_is_no_failure_and_a_problem_is(tmp_path: Path) -> None:
    old, dead = healthy(), healthy()
    old_drafter(old)
    nothing_accepted(dead)
    noticed = doctor(old.write(tmp_path / "old"))
    assert noticed.exit_code == 0
    assert "notice [drafter-age]" in noticed.output
    assert doctor(tmp_path / "old", "--max-drafter-age", "20").output.count("notice [") == 0
    failed = doctor(tmp_path / "old", dead.write(tmp_path / "dead"))
    assert failed.exit_code == 1
    assert "problem [acceptance-none]" in failed.output
    assert failed.output.count("problems: ") == 2


def test_policies_with_the_same_finding_are_told_together(tmp_path: Path) -> None:
    runs = [healthy("none", drafts=False), healthy("one"), healthy("two")]
    for run in runs[1:]:
        old_drafter(run)
    done = doctor(write_comparison(tmp_path / "c", *runs))
    assert done.output.count("notice [drafter-age]") == 1
    assert "one, two: the drafter is up to 13 policy updates old" in done.output


def test_json_holds_findings_and_checks(tmp_path: Path) -> None:
    run = healthy()
    old_drafter(run)
    (found,) = json.loads(doctor(run.write(tmp_path / "run"), "--json").output)
    (finding,) = found["findings"]
    assert (finding["check"], finding["severity"]) == ("drafter-age", "notice")
    assert len(found["checks"]) == len(CHECKS)
    assert {one["check"] for one in found["checks"] if not one["ran_on"]} >= {"left-out"}


def test_break_even_from_a_calibration(tmp_path: Path) -> None:
    run = healthy()
    run.engine_steps.loc[run.engine_steps["k"] > 0, "seconds"] = 20 * PLAIN_S
    done = doctor(run.write(tmp_path / "run"), "--calibration", "vllm-0.32-h100-qwen2.5-7b")
    assert done.exit_code == 1
    assert "problem [break-even-calibrated]" in done.output
    assert "plain times from calibration vllm-0.32-h100-qwen2.5-7b at K = 0" in done.output


@pytest.mark.parametrize(
    "arguments", [["missing"], ["--calibration", "nonsense", "."], ["--break-even", "0.5", "."], []]
)
def test_bad_input(arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["tlt", "trace", "doctor", *arguments])
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 2


def test_a_trace_that_was_imported(tmp_path: Path) -> None:
    out = tmp_path / "lengths.parquet"
    arguments = ["trace", "import", str(SAMPLES / "areal"), "--out", str(out)]
    assert CliRunner().invoke(main.cli, arguments).exit_code == 0
    done = doctor(out)
    assert done.exit_code == 0
    assert f"{out}: trace" in done.output


def test_the_measured_replay() -> None:
    done = doctor(PROJECT / "evidence/runs/h100-qwen2.5-7b/replay")
    assert done.exit_code == 1
    assert (
        "tlt_chains: with speculation configured but off an engine step takes 6.0% longer than in none"
        in done.output
    )
    assert "problem [break-even]" not in done.output, "speculation pays at every batch of this replay"


def test_the_measured_training() -> None:
    done = doctor(PROJECT / "evidence/runs/h200-smollm2-train/natural")
    assert done.exit_code == 1
    assert "static-4-frozen: the drafter is up to 19 policy updates old" in done.output
    assert "problem [dispatch]" in done.output
    assert "problem [policy-lengths]" not in done.output
