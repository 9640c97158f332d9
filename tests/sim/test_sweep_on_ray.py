"""A sweep on a Ray cluster of two nodes on this machine, one of which dies in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.sim.test_sweep import SMALL, silent
from tlt.sim.parallel.executors import SERIAL, executor
from tlt.sim.sweep.grid import axis, points
from tlt.sim.sweep.run import LINES, sweep

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
AXES = (axis("run.seed=1,2,3,4,5,6"), axis("policy=none,tlt"))


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Yield a cluster whose head has one CPU."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    ray.init(address=made.address, log_to_driver=False)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def test_a_node_that_dies_takes_no_result_with_it_and_none_comes_twice(cluster: Any, tmp_path: Path) -> None:
    other = cluster.add_node(num_cpus=2)
    found = points(SMALL | {"workload": SMALL["workload"] | {"steps": 20}}, AXES)
    died = []

    def kill(done: int, of: int) -> None:
        if done == 3 and not died:
            cluster.remove_node(other, allow_graceful=False)
            died.append(of)

    with executor("ray") as on_ray:
        there = sweep(found, AXES, tmp_path / "there", on_ray, kill)
    assert died == [12], "while nine of twelve were left"
    assert (tmp_path / "there" / LINES).read_bytes().count(b"\n") == 12
    pd.testing.assert_frame_equal(there, sweep(found, AXES, tmp_path / "here", SERIAL, silent))
