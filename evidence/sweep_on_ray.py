"""A thousand configurations on a Ray cluster of two nodes of this machine, one of which dies in the middle.

`python -m evidence.sweep_on_ray` in an environment that has the extras `ray` and `fast`. The node is killed,
not drained, when half of the configurations are done; a fresh one joins a little later.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.cluster_utils import Cluster

from evidence.recording import OTHERS, write
from evidence.speed_claims import HERE_ALONE, SWEPT, SWEPT_SETTINGS
from tlt.sim.parallel.executors import SERIAL, executor
from tlt.sim.sweep.grid import axis, points
from tlt.sim.sweep.run import LINES, sweep
from tlt.traces.common.settings import settings_of

DIES_AT, JOINS_AT = 500, 550  # configurations that are done by then
CHECKED_EACH = 20  # one in so many is simulated again without Ray


class Nodes:
    """Two nodes of a CPU each."""

    def __init__(self) -> None:
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        ray.init(address=self._cluster.address, log_to_driver=False)
        self._second: Any = self._cluster.add_node(num_cpus=1)
        self.died = 0

    def progress(self, done: int, of: int) -> None:
        """Kill the second node, and have a fresh one join, when it is time."""
        if done == DIES_AT:
            self._cluster.remove_node(self._second, allow_graceful=False)
            self.died += 1
        elif done == JOINS_AT:
            self._cluster.add_node(num_cpus=1)
        if done % 100 == 0:
            print(f"{done} of {of}", flush=True)

    def close(self) -> None:
        """End the cluster."""
        ray.shutdown()
        self._cluster.shutdown()


def keys(path: Path) -> list[str]:
    """Return the key of each result in a file of lines."""
    return [msgspec.json.decode(line)["key"] for line in path.read_bytes().splitlines()]


def main() -> None:
    """Sweep, and write the record."""
    axes = [axis(text) for text in SWEPT]
    grid = points(settings_of(None, SWEPT_SETTINGS), axes)
    nodes, began_s = Nodes(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, executor("ray") as on_ray:
        table = sweep(grid, axes, Path(folder), on_ray, nodes.progress)
        took_s, found = time.monotonic() - began_s, keys(Path(folder) / LINES)
    nodes.close()
    with tempfile.TemporaryDirectory() as folder:
        again = sweep(grid[::CHECKED_EACH], axes, Path(folder), SERIAL, lambda *_: None)
    there = table[::CHECKED_EACH].reset_index(drop=True)
    alike = there.eq(again) | (there.isna() & again.isna())
    value = {
        "wall": round(took_s, 1),
        "nodes that died": nodes.died,
        "lost": len(grid) - len(set(found)),
        "twice": len(found) - len(set(found)),
        "failed": int((table["error"] != "").sum()),
        "simulated again without Ray": len(again),
        "of these, other than on Ray": int((~alike.all(axis=1)).sum()),
    }
    write(
        "sweep_on_ray",
        claim=f"{len(grid):,} configurations of 64 GPUs, 8 RL steps of 256 to 1,280 responses, on "
        "a Ray cluster of two nodes, one of which is killed in the middle",
        value=value,
        unit={OTHERS: "configurations", "wall": "s", "nodes that died": "nodes"},
        target="none lost, none twice, none failed, the same results as without Ray",
        met=nodes.died == 1
        and not any(value[name] for name in ("lost", "twice", "failed", "of these, other than on Ray")),
        measured_on=HERE_ALONE,
        how="measured: two nodes of one CPU each on this machine, which others may use; one is killed at "
        f"{DIES_AT} results, a fresh one joins at {JOINS_AT}; one configuration in {CHECKED_EACH} again in "
        "this process",
        command="python -m evidence.sweep_on_ray",
    )


if __name__ == "__main__":
    main()
