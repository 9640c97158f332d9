"""Decision replay of recorded runs, and where two runs part."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from tlt.analysis.crosscheck.decisions import divergences, replay_decisions, turns
from tlt.commands.report import report
from tlt.traces.common.seeds import scheduler_rng
from tlt.traces.runs.runfolder import Comparison, write_json
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.event_log import RecordedWorker, Recorder, SchedulerSetup, build_worker
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan, RolloutEnded
from tltsched.policies import parse_policy

SETUP = SchedulerSetup(workers=2, policy=parse_policy("tlt_chains"), seed=3)


def write_records(folder: Path, dip_requests: int = 20, engine_steps: int = 10) -> Path:
    """Record two workers that go from 40 to `dip_requests` requests, `engine_steps` an interval."""
    folder.mkdir()
    write_json(folder / "scheduler.json", SETUP)
    with (folder / "records.jsonl").open("wb") as file:
        recorder = Recorder(file.write)
        for index in range(2):
            scheduler = build_worker(SETUP, index, partial(scheduler_rng, SETUP.seed))
            worker = RecordedWorker(scheduler, recorder)
            worker.handle(RolloutBegan(0.0, index, 0, 0))
            draft_config = worker.handle(BatchFormed(1.0, index, 40, 400))[0].draft_config
            for time_s, requests in (
                (2.0, dip_requests),
                (3.0, dip_requests),
                (4.0, dip_requests - 2),
                (5.0, 0),
            ):
                event = decision_interval(time_s, index, draft_config, engine_steps, requests)
                drafts = worker.handle(event)
                draft_config = drafts[0].draft_config if drafts else draft_config
            worker.handle(RolloutEnded(6.0, index))
    return folder


def decision_interval(
    time_s: float, worker: int, draft_config: DraftConfig, engine_steps: int, requests: int
) -> DecisionEnded:
    return DecisionEnded(
        time_s,
        worker,
        draft_config,
        engine_steps,
        40 * engine_steps,
        0.1,
        (30,) * draft_config.depth,
        (),
        requests,
        10 * requests,
    )


def test_a_run_replays_to_the_same_bytes(tmp_path: Path) -> None:
    result = replay_decisions(write_records(tmp_path / "run"))
    assert result.difference is None
    assert result.recorded_sha256 == result.replayed_sha256
    assert (result.events, result.commands) == (14, 8)
    shown = CliRunner().invoke(report, ["decisions", str(tmp_path / "run")], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "all 22 lines are byte-identical (14 events, 8 commands)" in shown.output
    assert result.recorded_sha256 in shown.output


def test_a_changed_decision_is_found_with_its_event(tmp_path: Path) -> None:
    path = write_records(tmp_path / "run") / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    at = max(row for row, line in enumerate(lines) if b'"set_draft_config"' in line)
    lines[at] = lines[at].replace(b'"min_requests":', b'"min_requests":9')
    path.write_bytes(b"".join(lines))
    difference = replay_decisions(tmp_path / "run").difference
    assert difference is not None
    assert difference.line == at + 1
    assert '"decision_ended"' in difference.event
    shown = CliRunner().invoke(report, ["decisions", str(tmp_path / "run")], catch_exceptions=False)
    assert shown.exit_code == 1
    assert f"differ from line {at + 1} on" in shown.output


def test_lines_that_are_missing_or_refused_are_differences(tmp_path: Path) -> None:
    path = write_records(tmp_path / "run") / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))  # a command is gone
    assert replay_decisions(tmp_path / "run").difference is not None
    at = next(row for row, line in enumerate(lines) if b'"decision_ended"' in line)
    lines[at] = lines[at].replace(b'"t_s":2.0', b'"t_s":0.5')
    path.write_bytes(b"".join(lines))
    assert "refused: worker 0: time went back" in replay_decisions(tmp_path / "run").text()


def test_a_comparison_is_checked_run_by_run(tmp_path: Path) -> None:
    write_records(tmp_path / "one")
    write_records(tmp_path / "two")
    write_json(tmp_path / "comparison.json", Comparison(name="both", runs=("one", "two")))
    shown = CliRunner().invoke(report, ["decisions", str(tmp_path)], catch_exceptions=False)
    assert shown.output.count("byte-identical") == 2


def test_where_two_runs_part(tmp_path: Path) -> None:
    ours, theirs = write_records(tmp_path / "ours"), write_records(tmp_path / "theirs", 8)
    assert [turn.draft_config for turn in turns(ours, 0)] == ["off", "3"]
    assert divergences(ours, ours) == []
    first, second = divergences(ours, theirs)
    assert (first.worker, second.worker, first.agreed) == (0, 1, 1)
    assert first.ours is not None
    assert (first.ours.requests, first.ours.draft_config) == (20, "3")
    assert "the draft configuration and the batch differs" in first.text(ours, theirs)
    shown = CliRunner().invoke(
        report, ["decisions", str(ours), "--against", str(theirs)], catch_exceptions=False
    )
    assert shown.exit_code == 0
    assert "worker 1: after 1 equal changes of draft configuration" in shown.output


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "scheduler.json", SETUP)
    with pytest.raises(InputError, match=r"records\.jsonl"):
        replay_decisions(tmp_path)
