"""Workers and neighbours that stop, die or stand still are noticed, and nothing they spoil is believed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from evidence.fire.processes import descendants, ended
from tests.realrun.fakes import config_of
from tests.realrun.test_calibrate import MAKE, config
from tests.realrun.test_executor import prepare, work
from tests.realrun.test_replay import FAKES, check_run
from tlt.analysis.comparison.compare import compare
from tlt.analysis.comparison.ranking import judge
from tlt.analysis.load import load_runs
from tlt.realrun.calibrate import background_load
from tlt.realrun.calibrate.background_load import neighbours
from tlt.realrun.calibrate.sweep import calibrate
from tlt.realrun.replay.replay import replay
from tlt.realrun.workers import vital_signs
from tlt.realrun.workers.executor import Lost, WorkerError
from tlt.realrun.workers.local import LocalExecutor
from tlt.realrun.workers.machine import shown_environment
from tlt.traces.common.manifest import MANIFEST
from tlt.traces.results.answer import Answer
from tlt.traces.runs.engine_steps import ENGINE_STEPS
from tlt.traces.runs.runfolder import RunFolder, write_table


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_S", 0.1), ("STOPPED_S", 0.5), ("SILENT_S", 0.8)):
        monkeypatch.setattr(vital_signs, name, seconds)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("engine", "ranks"), [("make_slow", 0), ("make_ranked", 1)])
def test_a_worker_that_is_stopped_is_ended_and_lost(engine: str, ranks: int, tmp_path: Path) -> None:
    with LocalExecutor(config_of(tmp_path), (0,), tmp_path / "logs") as executor:
        executor.send(0, prepare(tmp_path, engine))
        executor.receive()
        executor.send(0, work(100_000))
        pid = executor.pid(0)
        below = descendants(pid)
        assert len(below) == ranks
        os.kill(below[0] if below else pid, signal.SIGSTOP)
        lost = executor.receive_within(30.0)
        assert lost == (0, Lost("its process was stopped for 0 s and was ended"))
        with pytest.raises(WorkerError, match="no worker is left"):
            executor.receive()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert ended(below, limit_s=5.0) == []


def test_a_replay_goes_on_without_a_worker_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    """A minute of such a stop was once measured as if it were the policy."""

    def stop_one() -> None:
        while not multiprocessing.active_children():
            time.sleep(0.01)
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGSTOP)

    def begun(what: str) -> None:
        if what == "warm-up":
            threading.Timer(0.2, stop_one).start()

    replay(config_of(tmp_path), ("none",), tmp_path / "out", begun, None, f"{FAKES}:make_slow")
    run = RunFolder(tmp_path / "out" / "none")
    check_run(run.path, 2)
    assert len(run.responses()) == 24
    (warning,) = [text for text in run.summary().warnings if "died" in text]
    assert "its process was stopped" in warning


def test_processor_time_tells_a_hang_from_work(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {1: ("S", 0.0), 2: ("R", 0.0), 3: ("S", 0.0)}
    now = [0.0]
    monkeypatch.setattr(vital_signs, "seen", lambda pid: seen[pid])
    monkeypatch.setattr(vital_signs, "monotonic", lambda: now[0])
    signs, lost = vital_signs.VitalSigns(), dict[int, str]()
    for _ in range(130):
        now[0] += 1.0
        seen[2] = ("R", now[0] * 0.5)
        lost |= signs.look({10: 1, 20: 2, 30: 3}, {10, 20})  # 30 has nothing to generate
        assert not lost or now[0] >= vital_signs.SILENT_S
    assert lost == {10: "it had requests and used no processor time for 120 s"}
    now[0] += 1e6  # the machine slept
    fresh = vital_signs.VitalSigns()
    now[0] += 1e6
    assert not fresh.look({20: 2}, {20})


def test_this_process_is_alive() -> None:
    state, used_s = vital_signs.seen(os.getpid())
    assert state == "R"
    assert used_s > 0
    assert vital_signs.seen(2**22 + 1) == ("", 0.0)


@pytest.mark.parametrize("who", ["none", "static-2"])
def test_what_was_measured_while_a_worker_stood_still_is_not_ranked(tmp_path: Path, who: str) -> None:
    """A stop of 60 s made the other policy 7.43 times as fast once, the fastest in every resample."""
    out = tmp_path / "out"
    replay(config_of(tmp_path), ("none", "static:2"), out, lambda _: None, None, f"{FAKES}:make_engine")
    before = answered(out)
    assert [each.rank for each in before.policies] in ([1, 2], [2, 1])
    (out / who / MANIFEST).unlink()
    rows = pd.read_parquet(out / who / ENGINE_STEPS)
    rows.loc[len(rows) // 2, "seconds"] = 60.0
    write_table(out / who / ENGINE_STEPS, rows)
    after = answered(out)
    assert (after.recommended, after.is_gain, after.regrets) == ("none", False, None)
    assert after.headline.startswith("Nothing is held against none: ")
    (why,) = [each.unranked for each in after.policies if each.policy != "none"]
    assert why.startswith(f"a worker of {who.replace('-', ':')} stood still for 60 of ")
    assert after.of("static:2").rank == 0


def test_a_worker_that_stood_still_is_told_in_the_summary(tmp_path: Path) -> None:
    config = config_of(tmp_path, workload={"rollouts": 3})
    replay(config, ("none",), tmp_path / "out", lambda _: None, None, f"{FAKES}:make_pausing")
    told = RunFolder(tmp_path / "out" / "none").summary().warnings
    found = [text for text in told if "stood still" in text]
    beginnings = [f"worker {worker} stood still for 60.0 s in rollout 0" for worker in (0, 1)]
    assert [text[:44] for text in found] == beginnings
    assert all(text.endswith("its figures hold that time, measure it again") for text in found)


def answered(out: Path) -> Answer:
    runs = load_runs(out)
    return judge(compare(runs), runs)


def test_secrets_and_paths_are_not_written_down() -> None:
    found = shown_environment(
        {
            "VLLM_API_KEY": "sk-secret-123", "TORCH_HUB_TOKEN": "hf_x", "VLLM_S3_SECRET": "1",
            "VLLM_FREE_TEXT": "hunter2", "VLLM_CACHE_ROOT": "/home/me", "HF_TOKEN": "x", "MKL_PASSWORD": "2",
            "OMP_NUM_THREADS": "4", "VLLM_USE_V1": "1", "KMP_AFFINITY": "granularity=fine,compact,1,0",
            "OMP_WAIT_POLICY": "PASSIVE", "VLLM_LONG_NUMBER": "4929123412341234", "TORCH_LOGS": "True",
        }
    )  # fmt: skip
    assert found == {
        "KMP_AFFINITY": "granularity=fine,compact,1,0", "OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "PASSIVE",
        "TORCH_LOGS": "True", "VLLM_FREE_TEXT": "(set)", "VLLM_LONG_NUMBER": "(set)", "VLLM_USE_V1": "1",
    }  # fmt: skip


def test_no_file_of_a_run_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "TORCH_HUB_TOKEN", "OPENAI_API_KEY", "VLLM_ANYTHING"):
        monkeypatch.setenv(name, "sk-secret-123")
    replay(config_of(tmp_path), ("none",), tmp_path / "out", lambda _: None, None, f"{FAKES}:make_engine")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if b"sk-secret" in path.read_bytes()]


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_what_was_measured_beside_a_dead_neighbour_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: signal.Signals
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    measured = tmp_path / "points.partial.jsonl"
    measured.write_text("trusted\n")
    with neighbours(config(neighbours=1), MAKE, tmp_path / "logs", measured, silence_s=3.0) as others:
        others.check()
        measured.write_text("trusted\ntoo\n")
        others.check()
        (child,) = multiprocessing.active_children()
        os.kill(child.pid or 0, fate)
        time.sleep(0.5)
        measured.write_text("trusted\ntoo\nalone\n")
        with pytest.raises(
            WorkerError, match=r"neighbour 1 of the calibration (died|has stood still).*neighbour-1\.log"
        ):
            others.check()
    assert measured.read_text() == "trusted\ntoo\n"
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["neighbour-1.log"]


def test_a_neighbour_that_stood_still_and_went_on_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    measured = tmp_path / "x"
    with neighbours(config(neighbours=1), MAKE, tmp_path / "logs", measured, silence_s=1.0) as others:
        (child,) = multiprocessing.active_children()
        os.kill(child.pid or 0, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(child.pid or 0, signal.SIGCONT)
        time.sleep(0.3)
        with pytest.raises(WorkerError, match="stood still for 1 s"):
            others.check()


def test_a_neighbour_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked like Ctrl-C once."""
    monkeypatch.setattr(background_load, "engine_factory", None)
    settings = config_of(tmp_path, calibration={"neighbours": 1})
    with pytest.raises(
        WorkerError, match=r"could not start: .*prepare one.*all that it said is in .*neighbour-1\.log"
    ):
        calibrate(settings, tmp_path / "points.json", lambda *_: None, f"{FAKES}:make_refusing")
