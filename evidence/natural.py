"""Policies in turn on natural responses of one engine: `python -m evidence.natural DEVICE OUT`

Five stages into the folder OUT, each left out where its result is there:

    model       SmolLM2-135M, and a head of random weights
    warm-up     supervised training on worked solutions (cuda; on a CPU it takes hours)
    head        an EAGLE-3 head trained on the model's own responses
    calibrate   step times of the engine
    replay      `tlt real replay` with problems: no speculation, static K, goodput and the rule before it

`--model FOLDER` takes model/ and eagle3/ of another run in place of the first three. A stage that runs out of
its time keeps what it has; a replay goes on with the rollouts that are missing. The records are made by
`python -m evidence.natural_claims OUT`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from evidence.recording import PROJECT
from evidence.regimes import sets_of, tlt

CONFIG = PROJECT / "examples" / "rl_smollm2" / "train-h100.toml"
PROBLEMS = "examples/rl_smollm2/problems.py"
WARM_UP = "examples.rl_smollm2.warm_up"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What is run where, and the seconds that each stage may take."""

    ks: tuple[int, ...]
    policies: tuple[str, ...]
    engine: dict[str, Any]
    requests: int
    rollouts: int
    max_response_tokens: int
    difficulty: int
    warm_up_tokens: int
    head_tokens: int
    head_responses: int
    calibration_s: float
    replay_s: float


CUDA = Machine(
    ks=(0, 2, 4, 8),
    policies=("none", "static:2", "static:4", "static:8", "goodput:off+2+4+8", "goodput_mean:off+2+4+8"),
    engine={"max_running": 64, "max_context_tokens": 2560, "memory_fraction": 0.3},
    requests=512, rollouts=4, max_response_tokens=2048, difficulty=200, warm_up_tokens=2_000_000,
    head_tokens=500_000, head_responses=384, calibration_s=60, replay_s=620,
)  # fmt: skip
CPU = Machine(
    ks=(0, 2, 4),
    policies=("none", "static:2", "static:4", "goodput:off+2+4"),
    engine={"max_running": 16, "max_context_tokens": 768, "kv_gigabytes": 0.5, "threads": 1},
    requests=32, rollouts=4, max_response_tokens=256, difficulty=40, warm_up_tokens=1, head_tokens=50_000,
    head_responses=128, calibration_s=420, replay_s=1500,
)  # fmt: skip
MACHINES = {"cuda": CUDA, "cpu": CPU}


def shared(machine: Machine, device: str, model: Path, head: Path) -> dict[str, Any]:
    """Return the settings that calibrating, training the head and replaying have in common."""
    return {
        "model.folder": str(model), "model.name": "SmolLM2-135M", "drafter.folder": str(head),
        "drafter.ks": list(machine.ks), "workers.count": 1, "engine.device": device,
        **{f"engine.{name}": value for name, value in machine.engine.items()},
    }  # fmt: skip


def prepare(machine: Machine, device: str, out: Path) -> None:
    """Make the model, warm it up and train its head, as far as they are not there."""
    if not (out / "smollm2" / "model").is_dir():
        done = tlt(out, 300, "real", "model", "SmolLM2-135M", "--out", str(out / "smollm2"))
        _need(done, out)
    tasks = {"tasks.settings.difficulty_largest": machine.difficulty}
    if not (out / "model" / "config.json").is_file():
        if device == "cpu":
            shutil.copytree(out / "smollm2" / "model", out / "model")
        else:
            _need(warm_up(machine.warm_up_tokens, device, out, tasks), out)
    if not (out / "eagle3" / "config.json").is_file():
        training = shared(machine, device, out / "model", out / "eagle3") | tasks
        training |= {"rollout.max_response_tokens": machine.max_response_tokens}
        arguments = ("--config", str(CONFIG), *sets_of(training), "--tokens", str(machine.head_tokens),
                     "--responses", str(machine.head_responses), "--out", str(out / "eagle3"))  # fmt: skip
        _need(tlt(out, 1500, "real", "drafter", "warm-up", *arguments), out)


def warm_up(tokens: int, device: str, out: Path, tasks: dict[str, Any]) -> bool:
    """Train OUT/smollm2 on `tokens` of worked solutions into OUT/model; returns whether it ended well."""
    command = [
        sys.executable, "-m", WARM_UP, str(out / "smollm2" / "model"), "--out", str(out / "model"),
        "--tokens", str(tokens), "--device", device, "--config", str(CONFIG), *sets_of(tasks),
    ]  # fmt: skip
    with (out / "log.txt").open("ab") as log:
        return subprocess.run(command, cwd=PROJECT, stdout=log, stderr=log, check=False).returncode == 0


def _need(done: bool, out: Path) -> None:
    if not done:
        sys.exit((out / "log.txt").read_text(encoding="utf-8", errors="replace")[-3000:])


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("device", choices=MACHINES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, help="folder with model/ and eagle3/")
    parser.add_argument("--rollouts", type=int, default=0)
    asked = parser.parse_args()
    machine, out = MACHINES[asked.device], asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if asked.model is None:
        prepare(machine, asked.device, out)
    made = (asked.model or out).resolve()
    settings = shared(machine, asked.device, made / "model", made / "eagle3")
    if not (out / "calibration.json").is_file():
        swept = settings | {"calibration.neighbours": 0, "calibration.time_limit_s": machine.calibration_s}
        _need(
            tlt(out, 600, "real", "calibrate", *sets_of(swept), "--out", str(out / "calibration.json")), out
        )
    replayed = settings | {
        "name": "natural", "tasks.module": PROBLEMS, "tasks.settings.difficulty_largest": machine.difficulty,
        "workload.requests": machine.requests, "workload.samples_per_prompt": 4,
        "workload.rollouts": asked.rollouts or machine.rollouts,
        "workload.max_response_tokens": machine.max_response_tokens,
    }  # fmt: skip
    tlt(
        out, machine.replay_s, "real", "replay", *sets_of(replayed), "--policies", ",".join(machine.policies),
        "--calibration", str(out / "calibration.json"), "--no-report", "--out", str(out / "replay"),
    )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
