"""Sessions on live engines against their simulation: `python -m evidence.live_sessions DEVICE OUT`

Sessions of 3 to 8 turns with tools that sleep as long as a law says, under two policies; on `cpu` two workers
of one thread with SmolLM2-135M, under three routing rules. First step times are calibrated, then each rule is
replayed into a folder of its own: every turn's prompt is the whole context so far, so that the prefix cache
is used. `cuda` is one GPU with the 7B shape of random weights and 64 running requests: nothing to route.

`--limit-s` bounds the measuring of step times, `--rollouts` the steps, `--model FOLDER` takes a prepared one.
A call that was stopped goes on. `python -m evidence.live_sessions_claims DEVICE OUT` makes the record.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from evidence.regimes import sets_of, tlt
from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.build import from_structs
from tlt.traces.sessions.files import write_sessions
from tlt.traces.sessions.turns import Session, Turn


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What is run where. Responses are log-normal, waits exponential, numbers of turns even."""

    model: str
    policies: str
    rules: tuple[str, ...]
    sessions: int  # of a rollout; two share a prompt
    prompt_tokens: tuple[int, int]
    observed_tokens: tuple[int, int]
    median_tokens: int
    longest_tokens: int
    wait_s: float  # mean
    settings: dict[str, Any]


CPU = Machine(
    model="SmolLM2-135M", policies="none,static:2", rules=("sticky", "least_loaded", "round_robin"),
    sessions=20, prompt_tokens=(96, 160), observed_tokens=(16, 48), median_tokens=20, longest_tokens=60,
    wait_s=1.0,
    settings={
        "engine.device": "cpu", "engine.max_running": 8, "engine.max_context_tokens": 1024,
        "engine.kv_tokens": 16_384, "engine.eager": True,  # blocks of 32 tokens, where 128 are the default
        "workers.count": 2, "calibration.neighbours": 1, "calibration.batches": [1, 2, 4, 8],
        "calibration.contexts_tokens": [64, 256, 512], "calibration.repeats": 3, "calibration.visits": 3,
    },
)  # fmt: skip
CUDA = Machine(
    model="Qwen2.5-7B", policies="none,static:4", rules=("sticky",), sessions=192, prompt_tokens=(400, 700),
    observed_tokens=(50, 250), median_tokens=90, longest_tokens=400, wait_s=1.0,
    settings={
        "engine.device": "cuda", "engine.max_running": 64, "engine.max_context_tokens": 8192,
        "engine.memory_fraction": 0.42, "engine.graph_batches": [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64],
        "workers.count": 1, "model.random_weights": True, "calibration.batches": [1, 8, 24, 64],
        "calibration.contexts_tokens": [512, 2048], "calibration.most_tokens": 140_000,
        "calibration.repeats": 3, "calibration.visits": 1,
    },
)  # fmt: skip
MACHINES = {"cpu": CPU, "cuda": CUDA}


def sessions_of(machine: Machine, rollouts: int) -> list[Session]:
    """Return the sessions of all rollouts."""
    rng = np.random.default_rng(17)
    found = []
    for step in range(rollouts):
        for number in range(machine.sessions):
            count = int(rng.integers(3, 9))
            lengths = machine.median_tokens * np.exp(0.6 * rng.standard_normal(count))
            tokens = np.clip(np.rint(lengths), 2, machine.longest_tokens).astype(int).tolist()
            shared = np.random.default_rng([step, number // 2])
            inputs = [int(shared.integers(*machine.prompt_tokens))]
            inputs += rng.integers(*machine.observed_tokens, count - 1).tolist()
            waits = [*rng.exponential(machine.wait_s, count - 1).tolist(), 0.0]
            turns = tuple(
                Turn(
                    input_tokens=given,
                    response_tokens=length,
                    wait_s=wait_s,
                    end="tool" if wait_s else "stop",
                )
                for given, length, wait_s in zip(inputs, tokens, waits, strict=True)
            )
            found.append(Session(step=step, prompt_id=number // 2, sample=number % 2, turns=turns))
    return found


def settings_of(machine: Machine, out: Path, model: Path, rollouts: int) -> dict[str, Any]:
    """Return the settings of calibration and replays, but for the rule."""
    return {
        "name": "sessions", "model.folder": str(model / "model"), "model.name": machine.model,
        "drafter.folder": str(model / "eagle3"), "drafter.ks": [0, 2] if machine is CPU else [0, 4],
        "drafter.synthetic_survival": [0.7, 0.5] if machine is CPU else [0.7, 0.5, 0.35, 0.25],
        "engine.prefix_caching": True, "workload.requests": machine.sessions,
        "workload.rollouts": rollouts, "sessions.file": str(out / "sessions.parquet"), **machine.settings,
    }  # fmt: skip


def main() -> None:
    """Calibrate, then replay under each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("device", choices=MACHINES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit-s", type=float, default=0.0)
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--model", type=Path)
    asked = parser.parse_args()
    machine, out = MACHINES[asked.device], asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    model = (asked.model or out / "model").resolve()
    shape = ("--shape-only",) if machine is CUDA else ()
    if not (model / "model").is_dir() and not tlt(
        out, 600, "real", "model", machine.model, *shape, "--out", str(model)
    ):
        sys.exit((out / "log.txt").read_text(encoding="utf-8")[-3000:])
    if not (out / "sessions.parquet").is_file():
        origin = Origin(
            source="evidence.live_sessions", kind="generated", model=machine.model, licence="Apache-2.0"
        )
        write_sessions(from_structs(sessions_of(machine, asked.rollouts), origin), out / "sessions.parquet")
    settings = settings_of(machine, out, model, asked.rollouts)
    limit_s = asked.limit_s or (60.0 if machine is CUDA else 300.0)
    limited = sets_of(settings | {"calibration.time_limit_s": limit_s})
    tlt(out, 2 * limit_s + 400, "real", "calibrate", *limited, "--out", str(out / "calibration.json"))
    for rule in machine.rules:
        options = ("--policies", machine.policies, "--no-report", "--out", str(out / rule))
        if not tlt(out, 1800, "real", "replay", *sets_of(settings | {"sessions.routing": rule}), *options):
            sys.exit((out / "log.txt").read_text(encoding="utf-8")[-3000:])


if __name__ == "__main__":
    main()
