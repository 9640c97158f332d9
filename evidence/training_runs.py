"""RL training under five policies, and a policy that moves: `python -m evidence.training_runs DEVICE OUT`

Stages into the folder OUT, each left out where its result is there (`--stages` chooses some):

    calibrate  step times of one engine as the training sets it up, of untrained weights; needs no `prepare`,
               and may run beside it on another GPU (CUDA_VISIBLE_DEVICES)
    prepare    SmolLM2-135M warmed up on worked solutions, and an EAGLE-3 head that learned from it
    accepted   what the head of `prepare` accepts of held-out problems under K = 4, for the prediction
    policies   the five policies of the first measurement, from the same weights, problems and seeds
    moving     a frozen drafter against one trained on idle workers, at five times the learning rate
    served     the head and the policy that `moving` ends with, served beside the head of before, held-out
               problems; both heads draft for the trained policy, each on a GPU of its own if there are two

DEVICE is `cuda` (a worker a GPU; about 20 minutes on two H200) or `cpu`, a rehearsal: nothing is warmed up,
and figures mean nothing. `--workers` says how many, two unless told. A stage that runs out of its time goes
on where it was when called again. Where `calibrate` ran, policies that choose K by step times go by what it
measured. `python -m evidence.training_before` predicts it, between the first three stages and the others, and
holds what came against that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from evidence.natural import CONFIG, warm_up
from evidence.recording import PROJECT, RUNS
from evidence.regimes import sets_of, tlt
from evidence.training_claims import TRAINED_K
from tlt.realrun.training_config import TrainConfig
from tlt.traces.common.settings import convert, merge
from tlt.traces.common.settings import settings_of as sets_in

STAGES = ("calibrate", "prepare", "accepted", "policies", "moving", "served")
SHAPE = "SmolLM2-135M"
POLICIES = ("none", "goodput:off+2+3+4+6/online", "static:4/frozen", "static:4/online", "tlt_chains/online")
MOVING = ("static:4/frozen", "static:4/online")
ONLINE = "static-4-online"  # the folder of the last
CALIBRATION = RUNS / "h200-smollm2-train" / "calibration.json"
CALIBRATED = "calibration.json"  # of `calibrate`, in OUT


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What is run where. All settings are those of the measured example but for those given here."""

    settings: dict[str, Any]
    moving: dict[str, Any]  # beside them; `--set` comes first
    calibration: dict[str, Any]
    warm_up_tokens: int  # 0: none
    head_tokens: int
    head_responses: int
    asked: tuple[str, ...]  # of `accepted`
    served: tuple[str, ...]
    limit_s: float  # of each training stage


CUDA = Machine(
    settings={"steps": 16, "checkpoint_every": 16},
    moving={"steps": 18, "checkpoint_every": 18, "update.learning_rate": 5e-5, "update.minibatches": 4},
    calibration={
        "calibration.contexts_tokens": [256, 1024, 2048], "calibration.engine_steps_per_repeat": 16,
        "calibration.time_limit_s": 90,
    },
    warm_up_tokens=4_000_000,
    head_tokens=3_000_000,
    head_responses=2_048,
    asked=("--batches", "64", "--prompts", "64", "--repeats", "1"),
    served=("--batches", "32,8,1", "--prompts", "8", "--repeats", "3"),  # quickest first
    limit_s=900,
)  # fmt: skip
CPU = Machine(
    settings={
        "steps": 4, "checkpoint_every": 4, "rollout.prompts": 4, "rollout.samples": 4,
        "rollout.max_response_tokens": 48, "tasks.settings.difficulty_largest": 10,
        "engine.kv_gigabytes": 0.2, "engine.max_running": 8, "engine.max_context_tokens": 256,
        "update.token_budget": 1024,
        "head.batch_tokens": 256, "head.unroll_steps": 2, "engine.threads": 1,
    },
    moving={"update.learning_rate": 5e-5, "update.minibatches": 4},
    calibration={
        "calibration.batches": [1, 4, 8], "calibration.contexts_tokens": [32, 128],
        "calibration.repeats": 2, "calibration.visits": 1, "calibration.time_limit_s": 240,
    },
    warm_up_tokens=0,
    head_tokens=5_000,
    head_responses=24,
    asked=("--batches", "2", "--prompts", "2", "--repeats", "1"),
    served=("--batches", "1,2", "--prompts", "2", "--repeats", "2"),
    limit_s=1500,
)  # fmt: skip
MACHINES = {"cuda": CUDA, "cpu": CPU}


def settings_of(machine: Machine, device: str, out: Path) -> dict[str, Any]:
    """Return the settings of every training and of the head's warm-up."""
    return {
        "model.folder": str(out / "model"), "drafter.folder": str(out / "eagle3"), "workers.count": 2,
        "engine.device": device, **machine.settings,
    }  # fmt: skip


def config_of(settings: dict[str, Any]) -> TrainConfig:
    """Return the whole configuration of a training with these settings."""
    sets = tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())
    return convert(merge({}, sets_in(CONFIG, sets)), TrainConfig, "tlt real train-fields")


def calibrate(machine: Machine, device: str, out: Path) -> bool:
    """Time the engine steps of one worker; weights of their own, so that `prepare` may run meanwhile."""
    shape, made = out / "shape", out / CALIBRATED
    if made.is_file():
        return True
    if not (shape / "eagle3" / "config.json").is_file() and not tlt(
        out, 300, "real", "model", SHAPE, "--out", str(shape)
    ):
        return False
    engine = config_of(settings_of(machine, device, out)).engine_settings()
    sets = {
        f"{section}.{field}": value
        for section in ("model", "drafter", "engine")
        for field, value in msgspec.to_builtins(getattr(engine, section)).items()
    }
    sets |= {
        "model.folder": str(shape / "model"),
        "drafter.folder": str(shape / "eagle3"),
        **machine.calibration,
    }
    return tlt(out, 580, "real", "calibrate", *sets_of(sets), "--out", str(made))


def calibration_of(out: Path) -> Path:
    """Return the step times that policies go by: those of this machine where they were measured."""
    return out / CALIBRATED if (out / CALIBRATED).is_file() else CALIBRATION


def prepare(machine: Machine, device: str, out: Path) -> bool:
    """Make the model, warm it up and train its head, as far as they are not there."""
    settings = settings_of(machine, device, out)
    if not (out / "smollm2" / "model").is_dir() and not tlt(
        out, 300, "real", "model", SHAPE, "--out", str(out / "smollm2")
    ):
        return False
    if not (out / "model" / "config.json").is_file():
        if not machine.warm_up_tokens:
            shutil.copytree(out / "smollm2" / "model", out / "model")
        elif not warm_up(machine.warm_up_tokens, device, out, {}):
            return False
    if (out / "eagle3" / "config.json").is_file():
        return True
    learning = ("--responses", str(machine.head_responses), "--tokens", str(machine.head_tokens))
    arguments = ("--config", str(CONFIG), *sets_of(settings), *learning, "--out", str(out / "eagle3"))
    return tlt(out, 900, "real", "drafter", "warm-up", *arguments)


def accept(machine: Machine, device: str, out: Path) -> bool:
    """Measure what the head accepts of held-out problems under static:4."""
    made = out / "accepted.json"
    sets = sets_of(settings_of(machine, device, out) | {"drafter.ks": [TRAINED_K]})
    command = ("real", "drafter", "measure", "--config", str(CONFIG), *sets, *machine.asked)
    if not made.is_file() and not tlt(out, 300, *command, "--out", str(made)):
        return False
    print(made.read_text(encoding="utf-8"), flush=True)
    return True


def train(
    machine: Machine, out: Path, name: str, policies: tuple[str, ...], settings: dict[str, Any]
) -> bool:
    """Train under some policies into OUT/NAME; goes on where it was."""
    return tlt(
        out, machine.limit_s, "real", "train", "--config", str(CONFIG), *sets_of(settings | {"name": name}),
        "--policies", ",".join(policies), "--calibration", str(calibration_of(out)), "--out", str(out / name),
    )  # fmt: skip


def serve(machine: Machine, device: str, out: Path) -> bool:
    """Measure both heads on the policy that `moving` trained, at once where there are two devices."""
    run = out / "moving" / ONLINE
    trained, model = out / "trained-head", out / "trained-policy"
    newest = max((run / "heads").glob("head-*.safetensors"))
    done = (model / "config.json").is_file() or tlt(
        out, 120, "real", "export-policy", str(run), "--out", str(model)
    )
    done = done and (
        (trained / "config.json").is_file()
        or tlt(
            out, 120, "real", "drafter", "export", str(newest), "--model", str(model), "--out", str(trained)
        )
    )
    if not done:
        return False
    heads = {"before": out / "eagle3", "after": trained}
    waiting = []
    for place, (name, head) in enumerate(heads.items()):
        settings = settings_of(machine, device, out)
        settings |= {"model.folder": str(model), "drafter.folder": str(head), "drafter.ks": [2, 4, 6]}
        command = [
            sys.executable, "-m", "tlt", "real", "drafter", "measure", "--config", str(CONFIG),
            *sets_of(settings), *machine.served, "--out", str(out / f"served-{name}.json"),
        ]  # fmt: skip
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": str(place)} if device == "cuda" else {})
        log = (out / f"served-{name}.log").open("ab")
        started = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log, env=environment)
        if device == "cpu":
            started.wait()
        waiting.append(started)
    return all(started.wait() == 0 for started in waiting)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("device", choices=MACHINES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policies", default=",".join(POLICIES), help="of the stage of that name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="of all trainings")
    asked = parser.parse_args()
    machine, out = MACHINES[asked.device], asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    given = dict(each.split("=", 1) for each in asked.set)
    extra = {key: json.loads(value) for key, value in given.items()}
    settings = machine.settings | {"workers.count": asked.workers} | extra
    machine = msgspec.structs.replace(machine, settings=settings)
    settings = settings_of(machine, asked.device, out)
    stages = {
        "calibrate": lambda: calibrate(machine, asked.device, out),
        "prepare": lambda: prepare(machine, asked.device, out),
        "accepted": lambda: accept(machine, asked.device, out),
        "policies": lambda: train(machine, out, "policies", tuple(asked.policies.split(",")), settings),
        "moving": lambda: train(machine, out, "moving", MOVING, settings | machine.moving | extra),
        "served": lambda: serve(machine, asked.device, out),
    }
    for stage in asked.stages.split(","):
        if not stages[stage]():
            sys.exit(f"{stage} did not end well; see {out / 'log.txt'}")
        print(f"{stage}: done", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
