"""Schedules on live workers with a fake engine: who is generated when, what comes back, what weights do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.realrun.fakes import config_of, flat_times
from tests.realrun.test_replay import check_run, silent
from tests.sim.measured_world import write_calibration
from tlt.analysis.crosscheck.decisions import replay_decisions
from tlt.analysis.crosscheck.figures import crosscheck, load_pair
from tlt.analysis.crosscheck.report import render, verdict
from tlt.analysis.ledger import check_accounting
from tlt.realrun.config import RealConfig
from tlt.realrun.driver.part_file import part_paths
from tlt.realrun.replay.replay import replay
from tlt.sim.validate.replay_measured import simulate_replay
from tlt.traces.lengths.files import read_trace
from tlt.traces.runs.records import RECORDS, read_records
from tlt.traces.runs.runfolder import RunFolder
from tltsched.events import RequestsWithdrawn

FAKES = "tests.realrun.fakes"
POLICIES = (
    "none", "static:2@oversample_abort", "static:2@oversample_partial", "none@tail_batching", "none@repack",
    "static:2@bounded_async", "none@longest_first",
)  # fmt: skip
ROLLOUTS, GROUPS, SAMPLES = 3, 4, 3


def configured(folder: Path, **sections: object) -> RealConfig:
    settings: dict[str, object] = {
        "model": {"random_weights": False},
        "workload": {"rollouts": ROLLOUTS, "requests": GROUPS * SAMPLES, "samples_per_prompt": SAMPLES},
        "engine": {"max_running": 4},
        "phases": {"policy_update_s": 0.05, "weight_sync": True},
    }
    return config_of(folder, **(settings | sections))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schedules")
    replay(configured(folder), POLICIES, folder / "out", silent, flat_times, f"{FAKES}:make_slow")
    return folder / "out"


def folders(ran: Path) -> list[Path]:
    return sorted(path.parent for path in ran.glob(f"*/{RECORDS}"))


def test_decisions_replay_and_the_time_adds_up(ran: Path) -> None:
    assert len(folders(ran)) == len(POLICIES)
    for folder in folders(ran):
        assert replay_decisions(folder).difference is None, folder.name
        check_run(folder, 2)
        run = RunFolder(folder)
        assert check_accounting(run.summary(), run.intervals()) < 1e-9


def test_each_step_trains_on_as_many_responses_as_it_should(ran: Path) -> None:
    for folder in folders(ran):
        responses = RunFolder(folder).responses()
        assert responses.groupby("step").size().tolist() == [GROUPS * SAMPLES] * ROLLOUTS
        assert (responses.groupby(["step", "group"]).size() == SAMPLES).all()


def test_lengths_are_those_of_the_trace_whoever_interrupts_them(ran: Path) -> None:
    trace = read_trace(ran / "lengths.parquet").rows
    recorded = trace.groupby(["step", "prompt_id"])["response_tokens"].agg(sorted).tolist()
    for name in ("static-2-oversample_partial", "static-2-bounded_async"):
        responses = RunFolder(ran / name).responses()
        for group, mine in responses.groupby("group"):
            assert sorted(mine["response_tokens"]) == recorded[int(str(group)) % len(recorded)]


def test_partial_rollouts_go_on_and_aborted_ones_are_thrown_away(ran: Path) -> None:
    tables = {}
    for name in ("partial", "abort"):
        told = RunFolder(ran / f"static-2-oversample_{name}").schedule()
        assert told is not None
        tables[name] = told[1]
    assert (tables["partial"]["wasted_tokens"] == 0).all()
    assert (tables["partial"]["carried_responses"] == GROUPS * SAMPLES).all()
    assert tables["partial"]["staleness_max"].max() >= 1
    assert tables["abort"]["wasted_tokens"].sum() > 0
    assert (tables["abort"]["staleness_max"] == 0).all()
    records = list(read_records(ran / "static-2-oversample_partial" / RECORDS))
    withdrawn = [body for record in records if isinstance(body := record.body, RequestsWithdrawn)]
    assert sum(sum(event.generated_tokens) for event in withdrawn) > 0


def test_rollouts_go_on_while_the_policy_is_trained(ran: Path) -> None:
    run = RunFolder(ran / "static-2-bounded_async")
    intervals = run.intervals()
    generating = set(intervals[intervals["worker"] == 0]["cause"].astype(str))
    training = set(intervals[intervals["worker"] == 1]["cause"].astype(str))
    assert {"prefill", "speculate", "weight_sync"} <= generating <= {
        "prefill", "speculate", "weight_sync", "admission_wait",
    }  # fmt: skip
    assert training <= {"batch_wait", "policy_update", "weight_sync"}
    told = run.schedule()
    assert told is not None
    assert told[0].on_policy == "no"
    assert told[1]["staleness_mean"].iloc[-1] > 0


def test_a_crosscheck_compares_trained_tokens_drops_and_staleness(ran: Path, tmp_path: Path) -> None:
    simulate_replay(ran, write_calibration(tmp_path / "calibration.json"), tmp_path / "simulated")
    check = crosscheck(load_pair(ran, tmp_path / "simulated"))
    by_name = {policy.policy: policy.schedule for policy in check.policies}
    assert by_name.pop("none") is None
    assert all(told is not None and told.trained[0] == told.trained[1] for told in by_name.values())
    abort, tail = by_name["static:2@oversample_abort"], by_name["none@tail_batching"]
    assert abort is not None
    assert abort.dropped == (GROUPS * SAMPLES * check.rollouts,) * 2, "as many as were over-sampled"
    assert tail is not None
    assert tail.dropped[0] == tail.dropped[1] > 0
    assert tail.staleness == (0.0, 0.0)
    assert "seconds a trained token" in verdict(check) or check.stopped()
    assert "What schedules do" in render(check, [])


def test_a_stopped_replay_goes_on_behind_what_was_carried(tmp_path: Path) -> None:
    """What a kept step carries over is generated on, not anew: as one run, but for the clock."""
    policies = ["none@oversample_partial", "none@tail_batching"]
    config, out = configured(tmp_path), tmp_path / "out"
    stopped: list[str] = []

    def stop(what: str) -> None:
        stopped.append(what)
        if len(stopped) == 6:  # the warm-up and five rollouts
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(config, policies, out, stop, flat_times, f"{FAKES}:make_slow")
    kept = sum(len(part_paths(path)) for path in (out / "parts").iterdir())
    assert kept == 4
    replay(config, policies, out, silent, flat_times, f"{FAKES}:make_slow")
    for folder in folders(out):
        assert replay_decisions(folder).difference is None
        check_run(folder, 2)
        responses = RunFolder(folder).responses()
        assert responses.groupby("step").size().tolist() == [GROUPS * SAMPLES] * ROLLOUTS
        assert not responses.duplicated(["step", "request"]).any()


def test_rollouts_that_never_stop_begin_anew(tmp_path: Path) -> None:
    config, out = configured(tmp_path), tmp_path / "out"

    def stop(what: str) -> None:
        if what.endswith("rollout 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(config, ["none@bounded_async"], out, stop, flat_times, f"{FAKES}:make_slow")
    assert not part_paths(out / "parts" / "none-bounded_async")
    replay(config, ["none@bounded_async"], out, silent, flat_times, f"{FAKES}:make_slow")
    assert replay_decisions(out / "none-bounded_async").difference is None


def test_a_worker_that_dies_loses_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KILL", str(tmp_path / "kill"))
    monkeypatch.setenv("FAKE_KILL_AT", "60")
    (tmp_path / "kill").touch()
    replay(
        configured(tmp_path), ["none@oversample_partial"], tmp_path / "out", silent, flat_times,
        f"{FAKES}:make_mortal",
    )  # fmt: skip
    folder = tmp_path / "out" / "none-oversample_partial"
    assert "died in rollout" in RunFolder(folder).summary().warnings[0]
    assert replay_decisions(folder).difference is None
    check_run(folder, 2)
    responses = RunFolder(folder).responses()
    assert responses.groupby("step").size().tolist() == [GROUPS * SAMPLES] * ROLLOUTS
