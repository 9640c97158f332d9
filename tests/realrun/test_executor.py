"""Processes as workers: what they do when somebody dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from evidence.fire.processes import alive, ended
from tests.realrun.fakes import config_of
from tlt.realrun.workers.executor import Lost
from tlt.realrun.workers.local import LocalExecutor
from tlt.realrun.workers.messages import Close, EngineRequest, PolicySetup, Prepare, Ready, Report, Work
from tlt.realrun.workers.process import cores_of, worker_environment
from tltsched.cluster_config import ClusterConfig
from tltsched.errors import InputError
from tltsched.event_log import SchedulerSetup
from tltsched.policies import parse_policy

FAKES = "tests.realrun.fakes"


def prepare(folder: Path, factory: str, worker: int = 0) -> Prepare:
    setup = SchedulerSetup(workers=2, policy=parse_policy("static:2"), cluster=ClusterConfig(phases=()))
    policies = {"static:2": PolicySetup(setup, True)}
    return Prepare(worker, config_of(folder), f"{FAKES}:{factory}", policies, (1, 2), (0, 2))


def work(tokens: int) -> Work:
    return Work("static:2", 0, time.perf_counter(), (EngineRequest(0, (1, 2, 3), tokens),))


def test_a_worker_prepares_works_and_ends(tmp_path: Path) -> None:
    with LocalExecutor(config_of(tmp_path), (0,), tmp_path / "logs") as executor:
        executor.send(0, prepare(tmp_path, "make_engine"))
        worker, ready = executor.receive()
        assert worker == 0
        assert isinstance(ready, Ready)
        assert ready.info.environment["OMP_NUM_THREADS"] == "1"
        executor.send(0, work(20))
        reports: list[Report] = []
        while not (reports and reports[-1].over):
            _, answer = executor.receive()
            assert isinstance(answer, Report)
            reports.append(answer)
        assert [finish.tokens for report in reports for finish in report.finished] == [20]
        assert reports[-1].works == 1
        executor.send(0, Close())
        assert executor.receive()[1] == Lost(
            f"its process ended with exit code 0; what it printed is in {tmp_path / 'logs' / 'worker-0.log'}"
        )


def test_a_killed_worker_is_lost_once_and_the_other_goes_on(tmp_path: Path) -> None:
    with LocalExecutor(config_of(tmp_path), (0, 1), tmp_path / "logs") as executor:
        for worker in (0, 1):
            executor.send(worker, prepare(tmp_path, "make_slow", worker))
        assert {executor.receive()[0] for _ in range(2)} == {0, 1}
        executor.send(0, work(10_000))
        os.kill(executor.pid(0), signal.SIGKILL)
        assert executor.receive() == (0, Lost("killed by signal 9 (SIGKILL)"))
        executor.send(0, work(10))  # nothing happens
        executor.send(1, work(10))
        worker, report = executor.receive()
        assert worker == 1
        assert isinstance(report, Report)


def test_an_error_of_a_worker_arrives_as_text(tmp_path: Path) -> None:
    with LocalExecutor(config_of(tmp_path), (0,), tmp_path / "logs") as executor:
        executor.send(0, prepare(tmp_path, "make_broken"))
        executor.receive()
        executor.send(0, work(200))
        _, lost = executor.receive()
        assert isinstance(lost, Lost)
        assert lost.reason == "MemoryError: no memory is left"
        assert "in step" in lost.text


def test_what_a_worker_refuses_is_the_users_error(tmp_path: Path) -> None:
    with LocalExecutor(config_of(tmp_path), (0,), tmp_path / "logs") as executor:
        executor.send(0, prepare(tmp_path, "make_refusing"))
        with pytest.raises(InputError, match=r"model\.folder.*prepare one"):
            executor.receive()


def test_closing_ends_a_worker_that_is_at_work(tmp_path: Path) -> None:
    with closing(LocalExecutor(config_of(tmp_path), (0,), tmp_path / "logs")) as executor:
        executor.send(0, prepare(tmp_path, "make_slow"))
        executor.receive()
        executor.send(0, work(100_000))
        pid = executor.pid(0)
    assert not alive([pid])


PARENT = """
import sys, time
from pathlib import Path
from tlt.realrun.workers.local import LocalExecutor
from tests.realrun.fakes import config_of
from tests.realrun.test_executor import prepare, work

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    executor = LocalExecutor(config_of(folder), (0, 1), folder / "logs")
    for worker in (0, 1):
        executor.send(worker, prepare(folder, "make_stuck", worker))
    executor.receive(), executor.receive()
    executor.send(0, work(100_000))  # worker 1 rests
    time.sleep(1)  # worker 0 does not hear of anything any more
    print(executor.pid(0), executor.pid(1), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_no_orphan_is_left_when_the_driver_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(text) for text in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
        left = ended(pids)
        _, errors = parent.communicate()
    assert not left
    assert errors == "", "of what it leaves, which is taken away, nobody need hear"


def test_workers_get_their_own_cores_if_there_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 8, 9})
    config = config_of(tmp_path, engine={"threads": 2}, workers={"count": 2})
    assert [cores_of(config, worker) for worker in (0, 1)] == [(4, 5), (8, 9)]
    assert worker_environment(config, 1)["VLLM_CPU_OMP_THREADS_BIND"] == "8,9"
    assert cores_of(config_of(tmp_path, engine={"threads": 3}), 0) == ()
    parallel = config_of(tmp_path, engine={"threads": 2}, workers={"count": 1, "tp": 2})
    assert worker_environment(parallel, 0)["VLLM_CPU_OMP_THREADS_BIND"] == "4,5|8,9", "each rank its own"


def test_each_worker_sees_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path, engine={"device": "cuda"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    see = partial(worker_environment, config)
    assert [see(worker)["CUDA_VISIBLE_DEVICES"] for worker in (0, 1, 2)] == ["3", "5", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert "CUDA_VISIBLE_DEVICES" not in see(1)
