"""Regimes that the cross-check leaves out, measured on one engine: `python -m evidence.regimes DEVICE OUT`

Four stages, each in processes of its own, into the folder OUT (`--stages` chooses some):

    calibrate   step times of the engine as `vllm serve` sets it up, prompts that join a batch included
    replay      rollouts of the regimes below under three policies in turn, on such engines
    serve       the first regime through the HTTP interface of a stock `vllm serve`
    uncached    the first two regimes again, without prefix caching, into OUT/uncached

DEVICE is `cuda` (a 7B shape of random weights; about ten minutes on one H200), `cuda-tp2` (the same over two
GPUs, queues alone, without `serve`; `cuda-tp1` is what it is held against) or `cpu` (the shape of
SmolLM2-135M). A stage that runs out of its time keeps what it has: calibrations and replays go on where they
were.
`python -m evidence.regimes_claims OUT` makes the record.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from evidence.recording import PROJECT
from evidence.regimes_serve import Serving, serve
from tlt.traces.lengths.files import write_trace
from tlt.traces.lengths.schema import Origin, Trace

STAGES = ("calibrate", "replay", "serve", "uncached")
UNCACHED = "uncached"
POLICIES = "none,static:2,static:4"
SURVIVAL = [0.6, 0.36, 0.24, 0.15]


class Regime(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout. Response lengths are log-normal with `median_tokens`, cut at `longest_tokens`."""

    name: str
    requests: int
    prompt_tokens: tuple[int, int]  # drawn evenly from this range, one value a prompt
    samples: int = 1  # responses that share a prompt
    median_tokens: int
    longest_tokens: int
    spread: float = 0.8  # of the logarithm


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What is run where; `repeated` regimes come once more at the end, to show how far a run repeats."""

    model: str
    settings: dict[str, Any]
    calibration: dict[str, Any]
    regimes: tuple[Regime, ...]
    repeated: str
    calibrate_s: float
    replay_s: float


CUDA = Machine(
    model="Qwen2.5-7B",
    settings={
        "engine.device": "cuda", "engine.graphs": "stock", "engine.prefix_caching": True,
        "engine.max_running": 64, "engine.max_context_tokens": 33_000, "engine.memory_fraction": 0.42,
        "engine.kv_tokens": 150_000,
    },
    calibration={
        "calibration.batches": [1, 4, 16, 32, 64], "calibration.contexts_tokens": [512, 4096, 24_576],
        "calibration.most_tokens": 132_000, "calibration.repeats": 3, "calibration.visits": 1,
        "calibration.time_limit_s": 45,
    },
    regimes=(
        Regime(name="queue, prompts of 512", requests=256, prompt_tokens=(512, 512), median_tokens=150,
               longest_tokens=800),
        Regime(name="queue, prompts of 2,048", requests=256, prompt_tokens=(2048, 2048), median_tokens=150,
               longest_tokens=800),
        Regime(name="queue, prompts of 512 shared by 8", requests=256, prompt_tokens=(512, 512), samples=8,
               median_tokens=150, longest_tokens=800),
        Regime(name="queue, prompts of 2,048 shared by 8", requests=256, prompt_tokens=(2048, 2048),
               samples=8, median_tokens=150, longest_tokens=800),
        Regime(name="KV cache too small", requests=96, prompt_tokens=(1536, 1536), median_tokens=1200,
               longest_tokens=2000, spread=0.25),
        Regime(name="contexts of 16k to 32k", requests=8, prompt_tokens=(15_500, 30_000), median_tokens=400,
               longest_tokens=900, spread=0.5),
    ),
    repeated="queue, prompts of 512",
    calibrate_s=400,
    replay_s=620,
)  # fmt: skip
CPU = Machine(
    model="SmolLM2-135M",
    settings={
        "engine.device": "cpu", "engine.graphs": "stock", "engine.prefix_caching": True,
        "engine.max_running": 8, "engine.max_context_tokens": 640, "engine.kv_tokens": 2560,
    },
    calibration={
        "calibration.batches": [1, 2, 4, 8], "calibration.contexts_tokens": [32, 128, 256],
        "calibration.repeats": 3, "calibration.time_limit_s": 240,
    },
    regimes=(
        Regime(name="queue, prompts of 64", requests=32, prompt_tokens=(64, 64), median_tokens=30,
               longest_tokens=90),
        Regime(name="queue, prompts of 192", requests=32, prompt_tokens=(192, 192), median_tokens=30,
               longest_tokens=90),
        Regime(name="queue, prompts of 192 shared by 8", requests=32, prompt_tokens=(192, 192), samples=8,
               median_tokens=30, longest_tokens=90),
        Regime(name="KV cache too small", requests=24, prompt_tokens=(192, 192), median_tokens=140,
               longest_tokens=300, spread=0.3),
    ),
    repeated="queue, prompts of 64",
    calibrate_s=900,
    replay_s=1500,
)  # fmt: skip
TWO_GPUS = msgspec.structs.replace(
    CUDA,
    settings=CUDA.settings | {"workers.tp": 2, "engine.max_context_tokens": 8192},
    calibration=CUDA.calibration | {
        "calibration.batches": [1, 8, 32, 64], "calibration.contexts_tokens": [512, 4096],
    },
    regimes=CUDA.regimes[:2],
    replay_s=200,
)  # fmt: skip
ONE_OF_TWO = msgspec.structs.replace(TWO_GPUS, settings=TWO_GPUS.settings | {"workers.tp": 1})
MACHINES = {"cuda": CUDA, "cuda-tp2": TWO_GPUS, "cuda-tp1": ONE_OF_TWO, "cpu": CPU}


def rollouts(machine: Machine) -> tuple[Regime, ...]:
    """Return the regimes in the order in which they are run: a step of the trace each.

    Prompts that are shared come last: an engine that fails there has done the others.
    """
    alone = tuple(regime for regime in machine.regimes if regime.samples == 1)
    again = tuple(regime for regime in alone if regime.name == machine.repeated)
    return (*alone, *again, *(regime for regime in machine.regimes if regime.samples > 1))


def names_of(machine: Machine) -> tuple[str, ...]:
    """Return the names of the rollouts; one that comes again says so."""
    names: list[str] = []
    for regime in rollouts(machine):
        names.append(f"{regime.name}, again" if regime.name in names else regime.name)
    return tuple(names)


def uncached(machine: Machine) -> Machine:
    """Return what the stage of that name runs."""
    settings = machine.settings | {"engine.prefix_caching": False}
    return msgspec.structs.replace(machine, settings=settings, regimes=machine.regimes[:2])


def trace_of(machine: Machine) -> Trace:
    """Return the responses of all rollouts; a regime that comes again has the same lengths."""
    frames = []
    for step, regime in enumerate(rollouts(machine)):
        rng = np.random.default_rng(machine.regimes.index(regime))
        prompts = regime.requests // regime.samples
        lengths = regime.median_tokens * np.exp(regime.spread * rng.standard_normal(regime.requests))
        low, high = regime.prompt_tokens
        frames.append(
            pd.DataFrame(
                {
                    "step": step,
                    "prompt_id": np.repeat(1000 * step + np.arange(prompts), regime.samples),
                    "sample": np.tile(np.arange(regime.samples), prompts),
                    "prompt_tokens": np.repeat(rng.integers(low, high + 1, prompts), regime.samples),
                    "response_tokens": np.clip(np.rint(lengths), 2, regime.longest_tokens).astype(int),
                    "truncated": False,
                }
            )
        )
    rows = pd.concat(frames, ignore_index=True)
    rows = rows.astype(
        {"step": "int32", "sample": "int32", "prompt_tokens": "int32", "response_tokens": "int32"}
    )
    names = "; ".join(regime.name for regime in rollouts(machine))
    origin = Origin(
        source="evidence.regimes", kind="generated", model=machine.model, licence="Apache-2.0",
        note=f"A step a regime: {names}.",
    )  # fmt: skip
    return Trace(rows, origin)


def settings_of(machine: Machine, out: Path, folder: Path) -> dict[str, Any]:
    """Return the settings of the stages that build engines of this project, of a model in `folder`."""
    return {
        "name": "regimes", "model.folder": str(folder / "model"), "model.name": machine.model,
        "model.random_weights": True, "drafter.folder": str(folder / "eagle3"), "drafter.ks": [0, 2, 4],
        "drafter.synthetic_survival": SURVIVAL, "workers.count": 1,
        "workload.lengths": str(out / "lengths.parquet"), "workload.replay_steps": True,
        "workload.requests": machine.settings["engine.max_running"],
        "workload.rollouts": len(rollouts(machine)), **machine.settings, **machine.calibration,
    }  # fmt: skip


def tlt(out: Path, limit_s: float, *arguments: str) -> bool:
    """Run a command of this project, its output to OUT/log.txt; returns whether it ended well in time."""
    start_s = time.perf_counter()
    with (out / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "tlt", *arguments]
        process = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log)
        try:
            code: int | str = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "its time is up"
    print(f"{' '.join(arguments[:2])}: {time.perf_counter() - start_s:.0f} s, {code}", flush=True)
    return code == 0


def prepare(machine: Machine, out: Path) -> None:
    """Write the lengths and what was asked for, unless they are there."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "lengths.parquet").is_file():
        write_trace(trace_of(machine), out / "lengths.parquet")
        (out / "machine.json").write_bytes(msgspec.json.format(msgspec.json.encode(machine), indent=1))


def sets_of(settings: dict[str, Any]) -> list[str]:
    """Return settings as arguments of a command."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]


def replay(machine: Machine, out: Path, settings: dict[str, Any]) -> None:
    """Run the regimes of a machine under all policies into OUT/replay."""
    options = ("--policies", POLICIES, "--no-report", "--out", str(out / "replay"))
    tlt(out, machine.replay_s, "real", "replay", *sets_of(settings), *options)


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("device", choices=MACHINES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--graphs", choices=("stock", "every_k"), default="stock")
    asked = parser.parse_args()
    machine, out, stages = MACHINES[asked.device], asked.out.resolve(), asked.stages.split(",")
    graphs = {"engine.graphs": asked.graphs}
    machine = msgspec.structs.replace(machine, settings=machine.settings | graphs)
    prepare(machine, out)
    model = out / "model"
    if not (model / "eagle3" / "config.json").is_file():
        shape = ("--shape-only", "--out", str(model))
        if not tlt(out, 300, "real", "model", machine.model, *shape):
            sys.exit((out / "log.txt").read_text(encoding="utf-8")[-3000:])
    settings = settings_of(machine, out, model)
    if "calibrate" in stages:
        calibration = ("real", "calibrate", *sets_of(settings), "--out", str(out / "calibration.json"))
        tlt(out, machine.calibrate_s, *calibration)
    if "replay" in stages:
        replay(machine, out, settings)
    if "serve" in stages and settings.get("workers.tp", 1) == 1:
        rows = trace_of(machine).rows
        first = rows[rows["step"] == 0]
        serving = Serving(
            model=out / "model" / "model", device=asked.device, max_running=settings["engine.max_running"],
            max_context_tokens=settings["engine.max_context_tokens"], log=out / "server.log",
            memory_fraction=settings.get("engine.memory_fraction", 0.9), result=out / "served.json",
        )  # fmt: skip
        serve(serving, first["prompt_tokens"].tolist(), first["response_tokens"].tolist())
    if UNCACHED in stages:
        without = uncached(machine)
        prepare(without, out / UNCACHED)
        replay(without, out / UNCACHED, settings_of(without, out / UNCACHED, model))


if __name__ == "__main__":
    main()
