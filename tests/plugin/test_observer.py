"""The plugin around a fake engine: what it changes, what it writes, and the run folder made of that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.plugin.fake_engine import engine, run
from tlt.analysis.crosscheck.decisions import replay_decisions
from tlt.analysis.ledger import check_accounting
from tlt.plugin.facts import Advice, EngineFacts, Finished, RolloutOver, Step
from tlt.plugin.settings import Settings, StepTimesSettings
from tlt.traces.common.manifest import verify_all
from tlt.traces.live.engines import read_engines
from tlt.traces.live.run_folder import collect
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.request_acceptance import read_acceptance
from tlt.traces.runs.runfolder import RunFolder, write_json
from tlt.traces.sources import open_runs
from tltsched.draft_config import OFF, chain
from tltsched.step_times import DraftConfigTimes, StepTimeTable

LENGTHS = (6, 6, 9, 9, 30, 30, 40, 40)
TABLE = "vllm_table:1-2=4+3-4=2+5-8=0"


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(out=str(folder), rollout_gap_s=0.0, **more)


def test_watching_changes_no_k_and_writes_a_run_folder(tmp_path: Path) -> None:
    scheduler = engine(settings(tmp_path), k=3)
    run(scheduler, LENGTHS)
    run(scheduler, LENGTHS, first=8)
    scheduler.shutdown()
    assert set(scheduler.planned_ks) == {3}
    summary = collect(tmp_path)
    assert (summary.policy, summary.steps, summary.workers) == ("static:3", 2, 1)
    responses = RunFolder(tmp_path).responses()
    assert responses["response_tokens"].tolist() == [*LENGTHS, *LENGTHS]
    assert responses["group"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert responses["truncated"].all()
    engine_steps = read_engine_steps(tmp_path)
    assert engine_steps is not None
    first = engine_steps[engine_steps["step"] == 0]
    assert first["batch"].iloc[0] == 8
    assert first["prompt_tokens"].iloc[0] == 24
    # One token from prefill, none drafted before; then each engine step yields the draft accepted and one.
    assert first["drafted_tokens"].iloc[1] == 8 * 3
    assert first["accepted_tokens"].iloc[1] == 8
    assert len(first) == 1 + 20
    acceptance = read_acceptance(tmp_path)
    assert acceptance is not None
    assert acceptance["draft_config"].unique().tolist() == ["3"]
    assert replay_decisions(tmp_path).difference is None


def test_in_charge_it_chooses_k_by_batch(tmp_path: Path) -> None:
    scheduler = engine(settings(tmp_path, mode="control", policy=TABLE), k=4)
    run(scheduler, LENGTHS)
    scheduler.shutdown()
    (log,) = read_engines(tmp_path)
    (rollout,) = log.rollouts
    chosen = {(step.batch, step.k) for step in rollout.steps[1:]}
    assert chosen >= {(8, 0), (4, 2), (2, 4)}
    assert {k for batch, k in chosen if batch > 4} == {0}
    assert scheduler.planned_ks == [step.k for step in rollout.steps]
    collect(tmp_path)
    replayed = replay_decisions(tmp_path)
    assert replayed.difference is None
    assert replayed.commands >= 3


def test_advice_says_what_would_have_been_chosen(tmp_path: Path) -> None:
    scheduler = engine(settings(tmp_path, mode="advise", policy=TABLE), k=4)
    run(scheduler, LENGTHS)
    scheduler.shutdown()
    assert set(scheduler.planned_ks) == {4}
    (log,) = read_engines(tmp_path)
    assert {(each.requests, each.advised, each.actual) for each in log.advice} >= {
        (8, "off", "4"), (4, "2", "4"), (2, "4", "4"),
    }  # fmt: skip
    summary = collect(tmp_path)
    assert summary.policy == "static:4"
    (told,) = [warning for warning in summary.warnings if warning.startswith(TABLE)]
    assert told.endswith(
        "at 2 of 3 decisions: drafts of 2 in place of 4 at batch 4; off in place of 4 at batch 8"
    )
    assert replay_decisions(tmp_path).difference is None


def test_goodput_measures_its_step_times_first_and_all_engines_use_the_same(tmp_path: Path) -> None:
    measuring = StepTimesSettings(engine_steps=3)
    wanted = settings(tmp_path, mode="control", policy="goodput:off+1+2", step_times=measuring)
    first = engine(wanted, k=2)
    run(first, (90, 90, 90, 90))
    run(first, LENGTHS, first=8)
    first.shutdown()
    second = engine(wanted, k=2)
    run(second, LENGTHS)
    second.shutdown()
    logs = read_engines(tmp_path)
    assert [log.about.number for log in logs] == [0, 1]
    assert logs[0].about.setup is not None
    assert logs[1].about.setup is not None
    assert logs[0].about.setup.step_times == logs[1].about.setup.step_times
    summary = collect(tmp_path)
    assert summary.workers == 2
    check_accounting(summary, RunFolder(tmp_path).intervals())
    assert replay_decisions(tmp_path).difference is None


def test_step_times_of_a_file_are_used_from_the_first_engine_step(tmp_path: Path) -> None:
    rows = tuple(DraftConfigTimes(draft, (0.01,) * 9) for draft in (OFF, chain(2)))
    write_json(tmp_path / "times.json", StepTimeTable(rows))
    times = StepTimesSettings(source=str(tmp_path / "times.json"))
    scheduler = engine(
        settings(tmp_path / "job", mode="control", policy="goodput:off+2", step_times=times), k=2
    )
    run(scheduler, LENGTHS)
    scheduler.shutdown()
    assert scheduler.planned_ks[1:] == [2] * (len(scheduler.planned_ks) - 1)  # drafting costs nothing there
    assert collect(tmp_path / "job").policy == "goodput:off+2"


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda observer: observer.updated("policy"), "weights"),
        (lambda observer: observer.updated("caches"), "caches"),
        (lambda observer: observer.slept(1), "sleep"),
    ],
)
def test_sleep_and_weights_end_a_rollout(tmp_path: Path, act: Any, reason: str) -> None:
    scheduler = engine(Settings(out=str(tmp_path), rollout_gap_s=1000.0), k=2)
    run(scheduler, LENGTHS)
    act(scheduler._tlt)
    act(scheduler._tlt)  # twice, as trainers send weights in parts
    run(scheduler, LENGTHS, first=8)
    scheduler.shutdown()
    (log,) = read_engines(tmp_path)
    assert [rollout.reason for rollout in log.rollouts] == [reason, "shutdown"]
    assert collect(tmp_path).steps == 2


def test_reading_a_job_makes_its_run_folder_and_again_when_more_came(tmp_path: Path) -> None:
    scheduler = engine(settings(tmp_path))
    run(scheduler, LENGTHS)
    scheduler._tlt._writer.close()
    assert [folder.name for folder in open_runs(tmp_path).folders] == [tmp_path.name]
    made = RunFolder(tmp_path).responses()
    assert len(made) == len(LENGTHS)
    verify_all(tmp_path)
    second = engine(settings(tmp_path))
    run(second, LENGTHS, first=8)
    second.shutdown()
    os.utime(tmp_path / "summary.json", (0, 0))  # two writes in one tick of the clock look alike
    open_runs(tmp_path)
    assert len(RunFolder(tmp_path).responses()) == 2 * len(LENGTHS)


def test_weights_under_running_requests_part_rollouts(tmp_path: Path) -> None:
    scheduler = engine(settings(tmp_path, mode="control", policy=TABLE), k=4)

    def update(step: int) -> None:
        if step == 12:
            scheduler._tlt.updated("policy")

    run(scheduler, LENGTHS, between=update)
    scheduler.shutdown()
    summary = collect(tmp_path)
    assert summary.steps == 2
    responses = RunFolder(tmp_path).responses()
    assert responses.groupby("step").size().tolist() == [4, 4]
    acceptance = read_acceptance(tmp_path)  # no more drafts in a step than its engine steps have
    assert acceptance is not None
    assert replay_decisions(tmp_path).difference is None
    check_accounting(summary, RunFolder(tmp_path).intervals())


def test_a_short_pause_ends_no_rollout(tmp_path: Path) -> None:
    scheduler = engine(Settings(out=str(tmp_path), rollout_gap_s=1000.0))
    run(scheduler, LENGTHS)
    run(scheduler, LENGTHS, first=8)
    scheduler.shutdown()
    assert collect(tmp_path).steps == 1


def test_an_aborted_request_is_in_no_table(tmp_path: Path) -> None:
    scheduler = engine(settings(tmp_path))

    def abort(step: int) -> None:
        if step == 3:
            request = scheduler.requests.pop("r7")
            request.reason = "abort"

    run(scheduler, LENGTHS, between=abort)
    scheduler.shutdown()
    summary = collect(tmp_path)
    assert len(RunFolder(tmp_path).responses()) == len(LENGTHS) - 1
    assert any("1 requests were aborted" in warning for warning in summary.warnings)


def test_a_killed_engine_leaves_what_it_wrote(tmp_path: Path) -> None:
    scheduler = engine(settings(tmp_path))
    run(scheduler, LENGTHS)
    scheduler._tlt._writer.close()
    facts = tmp_path / "engines" / "0000" / "facts.jsonl"
    facts.write_bytes(facts.read_bytes() + b'{"kind":"step","t_s"')
    summary = collect(tmp_path)
    assert summary.steps == 1
    assert any("killed" in warning for warning in summary.warnings)


def test_what_is_written_can_be_read_by_its_names(tmp_path: Path) -> None:
    scheduler = engine(settings(tmp_path))
    run(scheduler, (3, 3))
    scheduler.shutdown()
    folder = tmp_path / "engines" / "0000"
    about = msgspec.json.decode((folder / "engine.json").read_bytes(), type=EngineFacts)
    assert (about.mode, about.policy, about.max_drafts, about.engine_version) == (
        "watch", "static:4", 4, "0.32.0",
    )  # fmt: skip
    (log,) = read_engines(tmp_path)
    assert isinstance(log.rollouts[0].steps[0], Step)
    assert isinstance(log.rollouts[0].done[0], Finished)
    assert b'"kind":"rollout_ended"' in (folder / "facts.jsonl").read_bytes()
    assert RolloutOver.__struct_config__.tag == "rollout_ended"
    assert Advice.__struct_config__.tag == "advice"
