"""What two workers will take, before they are run: `python -m evidence.training_before OUT.json [FOLDER]`

Everything comes from the committed run on four H200: lengths, acceptance and how requests differ in it,
seconds of the phases a token, step times of the calibration and what the engines of that run took over them.
What is changed is what will be changed: two workers instead of four (so that a phase that each does for its
own responses takes twice as long), update passes of 32,768 tokens (`passes.json`), and for the policy
that moves its learning rate and optimizer steps a step, which the drift of the drafter is taken to grow with.

Since that run, heads are no longer probed while all wait, hidden states reach the host without a wait, and
a hand-over waits for less training: for policies that train, log-probabilities are taken to last
as long as with a frozen drafter, and a stop HAND_OVER_S. Step times over two GPUs (TP 2) are the roofline's.

The file says when and of which sources it was made. With FOLDER, which `evidence.training_runs cuda` left,
nothing is predicted: what the file says is held against what came.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from evidence.natural import CONFIG
from evidence.recording import PROJECT
from evidence.training_claims import DATA, FROZEN, NATURAL, seconds
from evidence.training_runs import CALIBRATION, CUDA, MOVING, POLICIES, settings_of
from tlt.commands.output import step_times_of
from tlt.realrun.training.plan import plan_training
from tlt.realrun.training_config import TrainConfig
from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.steptimes.calibration import load
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.sim.validate.measured_acceptance import Differences, acceptance_on, differences
from tlt.sim.validate.replay_measured import simulate_into
from tlt.sim.validate.training.fit import FittedPhases, drafter_config, engine_factor, fit_training
from tlt.sim.validate.training.run import TrainingRun
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.common.settings import convert, merge
from tlt.traces.common.settings import settings_of as settings_in
from tlt.traces.results.predicted_training import TrainingFit
from tlt.traces.runs.acceptance import acceptance_length_with_bonus
from tlt.traces.runs.runfolder import RunFolder, read_struct, run_name, write_json
from tltsched.draft_config import OFF, chain

WORKERS_BEFORE, WORKERS = 4, 2
OWN = ("reward", "logprob", "policy_update")  # phases that a worker does for its own responses
RATE_BEFORE, MINIBATCHES_BEFORE = 1e-5, 2
HAND_OVER_S = 0.04  # about half of a round of 2,048 tokens
SHAPE, GPU, TP = "Qwen2.5-7B", "H200", 2
KS, BATCHES, CONTEXTS_TOKENS = (0, 2, 4), (1, 8, 32, 64), (512, 4096)


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the steps of one policy."""

    policy: str
    steps: int
    rollout_s: float
    step_s: float
    acceptance_length: float | None  # with bonus
    engine_factor: float  # on the calibrated step times
    drift_per_step: float  # of the drafter's exponent


class ExpectedStep(msgspec.Struct, frozen=True, kw_only=True):
    """An engine step over two GPUs."""

    k: int
    batch: int
    context_tokens: int
    seconds: float


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions, with what they rest on."""

    made: str
    revision: str
    rests_on: str
    changed: str
    policies: tuple[Expected, ...]
    moving: tuple[Expected, ...]
    moving_without_drift: tuple[Expected, ...]
    two_gpus: tuple[ExpectedStep, ...]


def config_of(extra: dict[str, Any]) -> TrainConfig:
    """Return the settings of a training that is to be run."""
    given = settings_of(CUDA, "cuda", Path("out")) | extra
    sets = tuple(f"{key}={msgspec.json.encode(value).decode()}" for key, value in given.items())
    return convert(merge({}, settings_in(CONFIG, sets)), TrainConfig, "tlt real train-fields")


def two_gpus() -> tuple[ExpectedStep, ...]:
    """Return the roofline's engine steps of the 7B shape, drafts of a head with stock constants."""
    law = roofline(model_shape(SHAPE), gpu_spec(GPU), Parallel(tp=TP), Assumptions(), trees=False)
    found = []
    for k, batch, context in product(KS, BATCHES, CONTEXTS_TOKENS):
        fixed_s = law.fixed_s(chain(k) if k else OFF, "k0", np.float64(batch))
        seconds = float(fixed_s) + law.kv_s_per_token * batch * context
        found.append(ExpectedStep(k=k, batch=batch, context_tokens=context, seconds=round(seconds, 6)))
    return tuple(found)


def phases_of(fit: TrainingFit) -> FittedPhases:
    """Return the phases as two workers with larger passes will have them."""
    passes = msgspec.json.decode((DATA / "passes.json").read_bytes())
    larger = {
        phase: passes[key]["varlen, token budget 32768"] / passes[key]["varlen, token budget 8192"]
        for phase, key in (("logprob", "log_probabilities_s"), ("policy_update", "forward_and_backward_s"))
    }
    medians = tuple(
        msgspec.structs.replace(
            each,
            value=each.value
            * larger.get(each.name, 1.0)
            * (WORKERS_BEFORE / WORKERS if each.name in OWN else 1.0),
        )
        for each in fit.medians
    )
    return FittedPhases(msgspec.structs.replace(fit, medians=medians))


def mended(fit: TrainingFit) -> TrainingFit:
    """Return a fit of a policy that trains with what its training has cost since the run was made."""
    frozen = TrainingRun(NATURAL / FROZEN)
    of_frozen = fit_training(frozen, np.arange(len(frozen.steps)), Differences())
    (logprob,) = (each for each in of_frozen.medians if each.name == "logprob")
    known = {"logprob": logprob.value, "stop": HAND_OVER_S}
    medians = (msgspec.structs.replace(each, value=known.get(each.name, each.value)) for each in fit.medians)
    return msgspec.structs.replace(fit, medians=tuple(medians))


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What of a run is put in place of what was predicted, to see which of it the prediction missed."""

    lengths: pd.DataFrame  # responses.parquet
    engine_factor: float | None = None  # None: that of the run the prediction rests on


def expected(
    name: str, config: TrainConfig, drift: float, folder: Path, known: Known | None = None
) -> Expected:
    """Simulate one policy; `drift` multiplies that of the first measurement, point estimate."""
    run = TrainingRun(NATURAL / run_name(name))
    steps = np.arange(len(run.steps))
    unlike = differences([run.policy.path], steps)
    fit, factor = fit_training(run, steps, unlike), engine_factor(run, steps, load(str(CALIBRATION)))
    acceptance = None
    if fit.survival_by_position:
        law = PerPosition(fit.survival_by_position, "measured: the run on four H200")
        acceptance = acceptance_on(law, unlike, "kind of prompt", run.policy.path, steps)
    (plan,) = plan_training(config, [name], step_times_of(CALIBRATION))
    policy = run.policy
    policy.setup = plan.setup
    policy.summary = msgspec.structs.replace(policy.summary, workers=WORKERS)
    lengths = policy.responses if known is None else known.lengths
    policy.responses = lengths[lengths["step"] < config.steps].reset_index(drop=True)
    if known is not None and known.engine_factor is not None:
        factor = known.engine_factor
    if name.endswith("/online"):
        fit = mended(fit)
    drafter = drafter_config(run, fit)
    per_step = fit.drift.per_update.value * drift if fit.drift else 0.0
    if drift:
        drafter = msgspec.structs.replace(drafter, drift_per_update=per_step)
    simulate_into(
        folder, policy, load(str(CALIBRATION)).times(factor), acceptance, drafter, phases_of(fit), unlike
    )  # fmt: skip
    took_s = seconds(folder)
    return Expected(
        policy=name,
        steps=len(took_s["step"]),
        rollout_s=round(float(took_s["rollout"].mean()), 4),
        step_s=round(float(took_s["step"].mean()), 4),
        acceptance_length=acceptance_length_with_bonus(RunFolder(folder).steps()) if policy.drafts else None,
        engine_factor=round(factor, 4),
        drift_per_step=round(per_step, 4) if drift else round(drafter.drift_per_update, 4),
    )


def errors(row: Expected, comparison: Path) -> tuple[float, float]:
    """Return by what share of the measured ones predicted rollout and step seconds were off."""
    took_s = seconds(comparison / run_name(row.policy))
    return (
        round(row.rollout_s / float(took_s["rollout"].mean()) - 1, 3),
        round(row.step_s / float(took_s["step"].mean()) - 1, 3),
    )


def against(expected_rows: Sequence[Expected], comparison: Path) -> list[str]:
    """Return a line a policy: seconds measured, as predicted, and the error; last the order by step seconds.

    Raises InputError for a folder without these policies.
    """
    lines, measured = [], {}
    for row in expected_rows:
        took_s = {
            what: float(each.mean()) for what, each in seconds(comparison / run_name(row.policy)).items()
        }
        measured[row.policy] = took_s["step"]
        rollout, step = errors(row, comparison)
        lines.append(
            f"{row.policy}: rollout {took_s['rollout']:.2f} s, predicted {row.rollout_s:.2f} "
            f"({rollout:+.1%}); step {took_s['step']:.2f} s, predicted {row.step_s:.2f} ({step:+.1%})"
        )
    wanted = [row.policy for row in sorted(expected_rows, key=lambda row: row.step_s)]
    came = sorted(measured, key=lambda policy: measured[policy])
    lines.append(f"order, fastest first: predicted {', '.join(wanted)}; came {', '.join(came)}")
    return lines


def compare(path: Path, folder: Path) -> None:
    """Print both comparisons."""
    before = read_struct(path, Before)
    for name, rows in (("policies", before.policies), ("moving", before.moving)):
        print(f"{name}, predicted {before.made}")
        print("\n".join(against(rows, folder / name)))


def main() -> None:
    """Predict, and write the file; or compare."""
    if len(sys.argv) == 3:
        compare(Path(sys.argv[1]), Path(sys.argv[2]))
        return
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    same, moved = config_of({}), config_of(CUDA.moving)
    faster = moved.update.learning_rate / RATE_BEFORE * moved.update.minibatches / MINIBATCHES_BEFORE
    with tempfile.TemporaryDirectory() as root:
        place = Path(root)
        found = [
            tuple(expected(name, config, drift, place / label / run_name(name)) for name in names)
            for label, names, config, drift in (
                ("same", POLICIES, same, 0.0),
                ("moving", MOVING, moved, faster),
                ("still", MOVING, moved, 0.0),
            )
        ]
    revision = ["git", "rev-parse", "--short", "HEAD"]
    before = Before(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        revision=subprocess.run(
            revision, cwd=PROJECT, check=True, capture_output=True, text=True
        ).stdout.strip(),
        rests_on="evidence/runs/h200-smollm2-train (four H200, 20 steps, 2026-11-28) and its calibration",
        changed="two workers; update passes of 32,768 tokens; 16 steps; moving: learning rate 5e-5 and 4 "
        f"optimizer steps a step, drift {faster:.0f} times that of the first run, point estimate; assumed: a "
        f"hand-over of {HAND_OVER_S} s and log-probabilities as long as with a frozen drafter, for policies "
        "that train",
        policies=found[0],
        moving=found[1],
        moving_without_drift=found[2],
        two_gpus=two_gpus(),
    )
    write_json(Path(sys.argv[1]), before)
    for title, rows in (("policies", found[0]), ("moving", found[1]), ("moving, no drift", found[2])):
        for row in rows:
            print(title, msgspec.json.encode(row).decode())


if __name__ == "__main__":
    main()
