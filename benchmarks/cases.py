"""What is timed: simulations by name. Runs under any revision that has tlt.sim.simulation; prints JSON.

`python benchmarks/cases.py NAME REPEATS` prints, for each repeat, processor seconds, the digest of what was
simulated, and counts of work where the revision has them. One step is simulated beforehand: what is compiled
or read once is not timed.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from time import process_time
from typing import Any

# What decides results is given: defaults change from revision to revision.
GIVEN = {"cost": {"source": "paper-qwen32b-tp4"}, "acceptance": {"kind": "published_tree"}}
# name -> (policy, steps, settings); the first have the GPUs and responses of the claim `speed`.
LARGE = {"hardware": {"gpus": 128, "tp": 4}, "workload": {"prompts_per_step": 128, "samples_per_prompt": 16}}
MANY = {"hardware": {"gpus": 1024, "tp": 4}, "workload": {"prompts_per_step": 1024, "samples_per_prompt": 16}}
HUGE = {
    "hardware": {"gpus": 10_000, "tp": 4}, "workload": {"prompts_per_step": 10_000, "samples_per_prompt": 10},
}  # fmt: skip
# Twice as many responses as engines run at once: each finish lets another in. Chains, by request.
QUEUE = {
    "hardware": {"gpus": 32, "tp": 2, "model": "Qwen2.5-7B", "gpu": "H100"}, "cost": {"source": "roofline"},
    "workload": {"prompts_per_step": 512, "samples_per_prompt": 16},
    "acceptance": {"kind": "geometric"}, "engine": {"max_running": 256},
}  # fmt: skip
LONG = {"workload": {"max_response_tokens": 65_536}}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "none": ("none", 20, LARGE),
    "tlt": ("tlt", 20, LARGE),
    "goodput": ("goodput_trees", 20, LARGE),
    "tail_batching": ("tlt@tail_batching", 8, LARGE),
    "bounded_async": ("tlt@bounded_async", 8, LARGE),
    "queue_none": ("none", 1, QUEUE),
    "queue_static": ("static:4", 1, QUEUE),
    "queue_goodput": ("goodput", 1, QUEUE),
    "tlt_64k": ("tlt", 8, LARGE | {"workload": LARGE["workload"] | LONG["workload"]}),
    "gpus_1024": ("tlt", 2, MANY),
    "gpus_10000": ("tlt", 1, HUGE),
}
# What the cost grows with: name -> (smaller, larger) of each axis, all else as in LARGE under `tlt`.
AXES = {"responses": (512, 8192), "gpus": (32, 512), "cap_tokens": (4096, 65_536), "steps": (4, 16)}
for _size in AXES["responses"]:
    CASES[f"responses_{_size}"] = (
        "tlt",
        4,
        LARGE | {"workload": {"prompts_per_step": _size // 16, "samples_per_prompt": 16}},
    )
for _size in AXES["gpus"]:
    CASES[f"gpus_{_size}"] = ("tlt", 4, LARGE | {"hardware": {"gpus": _size, "tp": 4}})
for _size in AXES["cap_tokens"]:
    _cap = {"max_response_tokens": _size}
    CASES[f"cap_tokens_{_size}"] = ("tlt", 4, LARGE | {"workload": LARGE["workload"] | _cap})
for _size in AXES["steps"]:
    CASES[f"steps_{_size}"] = ("tlt", _size, LARGE)


def simulation(name: str, steps: int | None = None) -> Any:
    """Return the simulation of a case, of so many steps."""
    from tlt.sim.config import resolve
    from tlt.sim.simulation import Simulation
    from tlt.sim.workload import load_workload

    policy, usual, settings = CASES[name]
    workload = settings["workload"] | {"steps": steps or usual}
    config = resolve(GIVEN | settings | {"workload": workload}, policy)
    return Simulation(config, load_workload(config.workload, config.run.seed))


def digest(tables: Any) -> str:
    """Hash the tables of a run: every response, interval and step."""
    found = hashlib.sha256()
    for table in tables:
        for column in table.columns:
            found.update(repr(table[column].tolist()).encode())
    return found.hexdigest()[:16]


def timed(name: str, steps: int | None = None) -> dict[str, Any]:
    """Simulate a case; returns processor seconds, the most memory up to its tables, and their digest."""
    made = simulation(name, steps)
    began_s = process_time()
    cluster = made.run()
    seconds = process_time() - began_s
    tables = cluster.tables()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {
        "cpu_s": seconds,
        "steps": len(cluster.log.step_rows),
        "digest": digest(tables),
        "decisions": getattr(cluster.log, "decisions", None),
        "peak_mb": peak_mb,
    }


if __name__ == "__main__":
    case, repeats, *rest = sys.argv[1:]
    os.environ.setdefault("TLT_COMPILED", "1")  # where there is any: loaded by the step beforehand
    if CASES[case][1] > 1 or case.startswith("queue"):
        simulation(case, 1).run()
    for _ in range(int(repeats)):
        print(json.dumps(timed(case, int(rest[0]) if rest else None)), flush=True)
