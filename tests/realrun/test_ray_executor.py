"""Workers on a Ray cluster: two nodes on this machine, the same records as local processes, deaths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.realrun.fakes import config_of, flat_times
from tests.realrun.test_executor import prepare, work
from tests.realrun.test_replay import FAKES, check_run, silent
from tlt.realrun.driver.cluster import Cluster
from tlt.realrun.replay.replay import replay
from tlt.realrun.workers.executor import Lost
from tlt.realrun.workers.messages import Ready, Report
from tlt.realrun.workers.ray_executor import RayExecutor, check_room, needs
from tlt.traces.runs.runfolder import RunFolder
from tltsched.errors import InputError
from tltsched.event_log import read
from tltsched.events import DecisionEnded

NODES = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": True, "Resources": {"CPU": 3.0, "GPU": 1.0}}]


def test_workers_that_no_cluster_holds_are_refused_at_once(tmp_path: Path) -> None:
    config = config_of(tmp_path, engine={"threads": 2}, workers={"count": 2})
    check_room(NODES, needs(config), 2, config)  # one of two CPUs on each node
    more = config_of(tmp_path, engine={"threads": 2}, workers={"count": 3})
    with pytest.raises(InputError, match=r"3 that take 2 CPU each.*at most 2 on the 2 nodes.*2 CPU; 3 CPU"):
        check_room(NODES, needs(more), 3, more)
    gpu = config_of(tmp_path, engine={"device": "cuda"}, workers={"count": 2})
    with pytest.raises(InputError, match=r"2 that take 1 CPU and 1 GPU each.*at most 1"):
        check_room(NODES, needs(gpu), 2, gpu)


def test_an_address_where_nothing_listens_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'tlt-sim[ray]'")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match="RAY_ADDRESS"):
        RayExecutor(config_of(tmp_path), (0,), tmp_path / "logs")


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster of two nodes with one CPU each, in the settings of this process."""
    ray: Any = pytest.importorskip("ray", reason="ray is not installed: pip install 'tlt-sim[ray]'")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster()
    for _ in range(2):
        cluster.add_node(num_cpus=1, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


def counted(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return by worker what does not hang on times: engine steps, request-steps, accepted drafts."""
    sums: dict[str, tuple[int, ...]] = {}
    for record in read((folder / "records.jsonl").read_bytes().splitlines()):
        if isinstance(record.body, DecisionEnded):
            body = record.body
            new = (body.engine_steps, body.request_steps, sum(body.accepted_by_position))
            old = sums.get(record.owner, (0, 0, 0))
            sums[record.owner] = tuple(one + two for one, two in zip(old, new, strict=True))
    return sums


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_two_nodes_leave_the_records_of_local_processes(
    two_nodes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").touch()
    config = config_of(Path("."), workers={"count": 2})  # relative folders, as in a preset
    policies = ("none", "static:2")
    for where, on_ray in (("local", False), ("ray", True)):
        replay(config, policies, Path(where), silent, flat_times, f"{FAKES}:make_at_home", on_ray=on_ray)
    for name in ("none", "static-2"):
        check_run(tmp_path / "ray" / name, 2)
        assert counted(tmp_path / "ray" / name) == counted(tmp_path / "local" / name)
        columns = ["step", "request", "worker", "response_tokens"]
        tables = [RunFolder(tmp_path / where / name).responses()[columns] for where in ("local", "ray")]
        assert tables[0].equals(tables[1])
        assert len(tables[0]) == 24
    assert (tmp_path / "ray" / "logs" / "worker-1.log").is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_actor_that_is_killed_loses_no_request(
    two_nodes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = tmp_path / "kill"
    monkeypatch.setattr(Cluster, "_assign", killing(Cluster._assign, kill))
    replay(config_of(tmp_path), ("static:2",), tmp_path / "out", silent, factory=f"{FAKES}:make_slow",
           on_ray=True)  # fmt: skip
    assert kill.is_file()
    responses = RunFolder(tmp_path / "out" / "static-2").responses()
    assert len(responses) == 24
    assert not responses.duplicated(["step", "request"]).any()
    (warning,) = (
        text for text in RunFolder(tmp_path / "out" / "static-2").summary().warnings if "died" in text
    )
    assert "its actor on" in warning


def killing(assign: Any, mark: Path) -> Any:
    """Return `assign` that kills the actor of worker 1 once, right after it got its first requests."""

    def wrapped(self: Cluster, command: Any) -> None:
        assign(self, command)
        if command.worker == 1 and not mark.exists():
            mark.touch()
            executor = self.executor
            assert isinstance(executor, RayExecutor)
            executor.kill(1)

    return wrapped


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_process_that_is_killed_says_how_it_ended(two_nodes: None, tmp_path: Path) -> None:
    config = config_of(tmp_path, workers={"count": 1})
    with RayExecutor(config, (0,), tmp_path / "logs") as executor:
        executor.send(0, prepare(tmp_path, "make_slow"))
        worker, ready = executor.receive()
        assert worker == 0
        assert isinstance(ready, Ready)
        assert ready.info.environment["VLLM_CPU_OMP_THREADS_BIND"].isdigit()
        executor.send(0, work(30))
        _, report = executor.receive()
        assert isinstance(report, Report)
        assert 0 <= report.t_s < 60  # on the driver's clock
    with RayExecutor(config, (0,), tmp_path / "logs") as executor:
        executor.send(0, prepare(tmp_path, "make_broken"))
        executor.receive()
        executor.send(0, work(200))
        worker, lost = executor.receive()
        assert isinstance(lost, Lost)
        assert "MemoryError: no memory is left" in lost.reason
