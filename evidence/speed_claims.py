"""Claims about what the simulator itself takes, in processor time of one thread.

Machines are shared: seconds hold for this one, and for how busy it was. `python -m benchmarks.revisions` says
what a change is worth.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import AXES
from evidence.recording import OTHERS, PROJECT, write
from tlt.sim.parallel.executors import executor
from tlt.sim.sweep.grid import axis, points
from tlt.sim.sweep.run import sweep
from tlt.traces.common.settings import settings_of

HERE_ALONE = "no GPU: the simulator itself"
STEPS = 385  # of the published run
TARGETS_S = {"none": 1.5, "tlt": 5.0, "goodput": 5.0}
SWEPT = (
    "workload.max_response_tokens=4096,8192,16384,24576,32768", "workload.prompts_per_step=32,64,96,128,160",
    "run.seed=0,1,2,3,4", "policy=none,static:2,static:4,static:6,tlt_chains,goodput,none@longest_first,"
    "goodput@longest_first",
)  # fmt: skip
SWEPT_SETTINGS = (
    "hardware.gpus=64",
    "hardware.tp=2",
    "workload.steps=8",
    "hardware.model=Qwen2.5-7B",
    "hardware.gpu=H100",
)
SWEEP_CORES, SWEEP_S = 2, 300.0


def timed(case: str, repeats: int = 1, steps: int | None = None) -> list[dict[str, Any]]:
    """Run a case of benchmarks/cases.py, each time in a process of its own; returns what they say."""
    command = [sys.executable, "benchmarks/cases.py", case, "1", *([str(steps)] if steps else [])]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    runs = [
        subprocess.run(command, cwd=PROJECT, env=environment, check=True, capture_output=True, text=True)
        for _ in range(repeats)
    ]
    return [json.loads(run.stdout.splitlines()[-1]) for run in runs]


def step_s(case: str, repeats: int = 3, steps: int | None = None) -> float:
    """Return the processor seconds of an RL step of a case, the median of so many runs."""
    return float(median(run["cpu_s"] / run["steps"] for run in timed(case, repeats, steps)))


def speed() -> None:
    """The published production scale: 385 steps of 2,048 responses on 128 GPUs."""
    took_s = {f"{case}: {STEPS} steps": round(STEPS * step_s(case, steps=STEPS), 2) for case in TARGETS_S}
    write(
        "speed",
        claim=f"simulating {STEPS} RL steps x 2,048 responses on 128 GPUs (TP 4), R1 lengths, trees",
        value=took_s,
        unit={OTHERS: "s of one core"},
        target="none in at most 1.5 s, the paper's policy and goodput in 5 s",
        met=all(took_s[f"{case}: {STEPS} steps"] <= most for case, most in TARGETS_S.items()),
        measured_on=HERE_ALONE,
        how="measured as processor time of one thread, median of 3; without records, in compiled code (the "
        "extra `fast`)",
    )


def speed_scale() -> None:
    """Large clusters, and how the cost grows with responses, GPUs, cap and steps."""
    many, huge = timed("gpus_1024", 1, STEPS)[0], timed("gpus_10000")[0]
    value: dict[str, float] = {
        f"1,024 GPUs, 16,384 responses: {STEPS} steps": round(many["cpu_s"], 1),
        "1,024 GPUs, 16,384 responses: memory": many["peak_mb"],
        "10,000 GPUs, 100,000 responses: a step": round(huge["cpu_s"], 2),
        "10,000 GPUs, 100,000 responses: memory": huge["peak_mb"],
    }
    unit = {OTHERS: "exponent", **{name: "MB" if "memory" in name else "s of one core" for name in value}}
    for name, (low, high) in AXES.items():
        ratio = step_s(f"{name}_{high}", 1) / step_s(f"{name}_{low}", 1)
        value[f"{name}, {low:,} to {high:,}"] = round(math.log(ratio) / math.log(high / low), 2)
    write(
        "speed_scale",
        claim="large clusters under the paper's policy, and the exponent of a step's time over each size",
        value=value,
        unit=unit,
        target=f"{STEPS} steps on 1,024 GPUs in 60 s and 2 GB; exponents up to 1.1, of cap and steps 0.1",
        met=_scales(value),
        measured_on=HERE_ALONE,
        how="measured as processor time of one thread and the most memory of its process, tables included, "
        "a run each; exponents between two sizes, all else as in speed",
    )


def _scales(value: dict[str, float]) -> bool:
    named = list(value.values())
    exponents = dict(zip(AXES, named[4:], strict=True))
    flat = max(exponents["cap_tokens"], exponents["steps"]) <= 0.1
    return named[0] <= 60 and named[1] <= 2000 and max(exponents.values()) <= 1.1 and flat


def sweep_speed() -> None:
    """A thousand configurations on this machine."""
    settings = settings_of(None, SWEPT_SETTINGS)
    axes = [axis(text) for text in SWEPT]
    grid = points(settings, axes)
    began_s, began_cpu_s = time.monotonic(), sum(os.times()[:4])
    with tempfile.TemporaryDirectory() as folder, executor("processes") as opened:
        table = sweep(grid, axes, Path(folder), opened, _silent)
    took_s, cpu_s = time.monotonic() - began_s, sum(os.times()[:4]) - began_cpu_s
    failed = int((table["error"] != "").sum())
    value = {
        "wall": round(took_s, 1),
        "processor": round(cpu_s, 1),
        "configurations": len(grid),
        "failed": failed,
    }
    write(
        "sweep_speed",
        claim=f"{len(grid):,} configurations of 64 GPUs, 8 RL steps of 256 to 1,280 responses",
        value=value,
        unit={OTHERS: "s", "configurations": "configurations", "failed": "configurations"},
        target=f"at most {SWEEP_CORES * SWEEP_S:.0f} s of processor time: {SWEEP_S:.0f} s of two cores",
        met=cpu_s <= SWEEP_CORES * SWEEP_S and not failed,
        measured_on=HERE_ALONE,
        how=f"measured, `tlt sim sweep` on {os.cpu_count()} processes of this machine, which others may use",
    )


def _silent(done: int, of: int) -> None:
    del done, of


SPEED = (speed, speed_scale, sweep_speed)
