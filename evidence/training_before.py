"""What a training will take, before it is run: `python -m evidence.training_before OUT.json [FOLDER]`

Lengths, acceptance, how requests differ and the seconds of the phases are those of the run on two H200
(`policies`, and `moving` for a policy that moves). Step times are those of `--calibration`, made on the
machine that will be used (`evidence.training_runs cuda OUT --stages calibrate`), or the committed one. What
changes:

- with `--workers` what each worker does for its own responses, but for a part of every optimizer step that no
  number of tokens changes (`UpdateLaw`, fitted to both runs on two H200);
- lengths are drawn anew: each policy is simulated with those of every policy of that run;
- a rollout takes longer than the calibrated times of its engine steps: `Pace`, as it was on four H200, whose
  calibration was made on one of them while the others did nothing;
- a trained drafter accepts no less than the frozen one did under the same K.

The file says when and of which sources it was made. With FOLDER, which `evidence.training_runs cuda` left,
nothing is predicted: what the file says is held against what came. evidence.training_two_gpus has what the
run on two H200 itself was predicted by.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from scipy.optimize import brentq

from evidence import training_runs
from evidence.recording import PROJECT, RUNS
from evidence.training_claims import FROZEN, NATURAL, TRAINED_K, seconds
from evidence.training_runs import CALIBRATION, CUDA, MOVING, POLICIES, settings_of
from tlt.commands.output import step_times_of
from tlt.realrun.training.plan import plan_training
from tlt.realrun.training_config import TrainConfig
from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.drafter import DrafterConfig
from tlt.sim.model.phases import Phases
from tlt.sim.steptimes.calibration import Calibration, load
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.sim.validate.measured_acceptance import Differences, acceptance_on, differences
from tlt.sim.validate.replay_measured import costs_of, predicted_engine_steps, simulate_into
from tlt.sim.validate.training.fit import FittedPhases, drafter_config, fit_training
from tlt.sim.validate.training.run import TrainingRun
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.results.predicted_training import TrainingFit
from tlt.traces.runs.acceptance import acceptance_length_with_bonus
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.runfolder import RunFolder, read_struct, run_name, write_json
from tltsched.draft_config import OFF, chain

SHAPE, GPU, TP = "Qwen2.5-7B", "H200", 2
KS, BATCHES, CONTEXTS_TOKENS = (0, 2, 4), (1, 8, 32, 64), (512, 4096)
OWN = ("reward", "logprob", "policy_update")  # phases that a worker does for its own responses
ONLINE = "static:4/online"
PROCESSES = 8  # that learn from a policy each; as many as there are cores


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """Measured comparisons that a prediction takes all but step times from."""

    words: str
    policies: Path
    moving: Path | None
    workers: int


FOUR = Basis(words="the run on four H200", policies=NATURAL, moving=None, workers=4)
TWO = Basis(
    words="the run on two H200", policies=RUNS / "h200x2-smollm2-train" / "policies",
    moving=RUNS / "h200x2-smollm2-train" / "moving", workers=2,
)  # fmt: skip


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the steps of one policy."""

    policy: str
    steps: int
    rollout_s: float
    step_s: float
    acceptance_length: float | None  # with bonus
    engine_factor: float  # on the calibrated step times
    drift_per_step: float  # of the drafter's exponent
    rollout_range_s: tuple[float, float] | None = None  # by whose lengths are taken, least and most


class ExpectedStep(msgspec.Struct, frozen=True, kw_only=True):
    """An engine step over two GPUs."""

    k: int
    batch: int
    context_tokens: int
    seconds: float


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What rollouts take over the calibrated times of their engine steps."""

    submit_s: float  # for each request of a worker, before its first engine step
    first: float  # a rollout's first engine step, which prefills alone: times the calibrated one
    decode: float  # all others


class UpdateLaw(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of an optimizer step: a part whatever the tokens are, and one for each token of a worker."""

    fixed_s: float
    s_per_token: float

    def seconds(self, tokens: float, workers: int, minibatches: int) -> float:
        """Return the seconds of an update over `tokens` of all workers."""
        return minibatches * self.fixed_s + self.s_per_token * tokens / workers


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions, with what they rest on."""

    made: str
    revision: str
    rests_on: str
    changed: str
    policies: tuple[Expected, ...]
    moving: tuple[Expected, ...]
    moving_without_drift: tuple[Expected, ...] = ()
    two_gpus: tuple[ExpectedStep, ...] = ()
    workers: int = 2
    pace: Pace | None = None
    update: UpdateLaw | None = None


class Took(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the steps of one simulation."""

    steps: int
    rollout_s: float
    step_s: float
    acceptance_length: float | None


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What a prediction takes from a measured policy; its acceptance is that of all its steps."""

    run: TrainingRun
    fit: TrainingFit
    unlike: Differences
    acceptance: Acceptance | None

    @property
    def steps(self) -> np.ndarray:
        """The steps of the run, [n]."""
        return np.arange(len(self.run.steps))


def config_of(extra: dict[str, Any]) -> TrainConfig:
    """Return the settings of a training that is to be run."""
    return training_runs.config_of(settings_of(CUDA, "cuda", Path("out")) | extra)


def two_gpus() -> tuple[ExpectedStep, ...]:
    """Return the roofline's engine steps of the 7B shape, drafts of a head with stock constants."""
    law = roofline(model_shape(SHAPE), gpu_spec(GPU), Parallel(tp=TP), Assumptions(), trees=False)
    found = []
    for k, batch, context in product(KS, BATCHES, CONTEXTS_TOKENS):
        fixed_s = law.fixed_s(chain(k) if k else OFF, "k0", np.float64(batch))
        seconds = float(fixed_s) + law.kv_s_per_token * batch * context
        found.append(ExpectedStep(k=k, batch=batch, context_tokens=context, seconds=round(seconds, 6)))
    return tuple(found)


@cache
def survival_of(run: Path) -> tuple[float, ...]:
    """Return what share of the drafts of a measured policy survives up to each position, all its steps."""
    known = TrainingRun(run)
    return fit_training(known, np.arange(len(known.steps)), Differences()).survival_by_position


def exponent_of(frozen: Path, accepted: float | None) -> float:
    """Return the power of survival at which a K of static:4 accepts so many tokens, bonus counted.

    `frozen` is the run of the drafter that stayed as it was; 1 without a number.
    """
    if accepted is None:
        return 1.0
    survival = np.array(survival_of(frozen)[:TRAINED_K])
    return float(brentq(lambda power: 1.0 + (survival**power).sum() - accepted, 1e-3, 20.0))


def learned(folder: Path, words: str, floor: Sequence[float] = (), power: float = 1.0) -> Learned:
    """Fit a measured policy on all its steps; it accepts at each position at least what `floor` says.

    `power` is of survival, for another head.
    """
    run = TrainingRun(folder)
    steps = np.arange(len(run.steps))
    unlike = differences([run.policy.path], steps)
    fit, acceptance = fit_training(run, steps, unlike), None
    if fit.survival_by_position:
        survival = np.array(fit.survival_by_position)
        least = np.array(floor)[: len(survival)]
        survival[: len(least)] = np.maximum(survival[: len(least)], least)
        survival **= power
        law = PerPosition(tuple(survival.tolist()), f"measured: {words}")
        acceptance = acceptance_on(law, unlike, "kind of prompt", run.policy.path, steps)
    return Learned(run=run, fit=fit, unlike=unlike, acceptance=acceptance)


def simulated(
    of: Learned, name: str, config: TrainConfig, lengths: pd.DataFrame, planned: Path,
    calibration: Calibration, drafter: DrafterConfig, phases: Phases, folder: Path,
) -> Took:  # fmt: skip
    """Simulate a policy with the settings and `lengths` (responses.parquet) given, into `folder`.

    `planned` is the calibration that the policy itself goes by.
    """
    (plan,) = plan_training(config, [name], step_times_of(planned))
    policy = of.run.policy
    policy.setup = plan.setup
    policy.summary = msgspec.structs.replace(policy.summary, workers=config.workers.count)
    policy.responses = lengths[lengths["step"] < config.steps].reset_index(drop=True)
    simulate_into(folder, policy, calibration, of.acceptance, drafter, phases, of.unlike)
    took_s = seconds(folder)
    return Took(
        steps=len(took_s["step"]),
        rollout_s=float(took_s["rollout"].mean()),
        step_s=float(took_s["step"].mean()),
        acceptance_length=acceptance_length_with_bonus(RunFolder(folder).steps()) if policy.drafts else None,
    )


def row_of(name: str, took: Sequence[Took], factor: float, drafter: DrafterConfig) -> Expected:
    """Return the means over simulations of one policy."""
    rollouts_s = [each.rollout_s for each in took]
    accepted = [each.acceptance_length for each in took if each.acceptance_length is not None]
    length = None if not accepted else accepted[0] if len(accepted) == 1 else float(np.mean(accepted))
    return Expected(
        policy=name,
        steps=took[0].steps,
        rollout_s=round(float(np.mean(rollouts_s)), 4),
        step_s=round(float(np.mean([each.step_s for each in took])), 4),
        acceptance_length=length,
        engine_factor=round(factor, 4),
        drift_per_step=round(drafter.drift_per_update, 4),
        rollout_range_s=(round(min(rollouts_s), 4), round(max(rollouts_s), 4)) if len(took) > 1 else None,
    )


def runs_in(folder: Path) -> list[Path]:
    """Return the run folders of a comparison, in its order."""
    return [folder / run for run in msgspec.json.decode((folder / "comparison.json").read_bytes())["runs"]]


@cache
def pace_of(folder: Path, calibration: Path) -> Pace:
    """Return the pace of a measured comparison over a calibration, all its policies together.

    Decode counts from the last prompt of each worker's rollout on: an engine that plans ahead takes a part of
    each prefill in the engine steps around it.
    """
    fitted = load(str(calibration))
    table = pd.concat([_engine_steps(path, fitted) for path in runs_in(folder)], ignore_index=True)
    first, decode = table[table["place"] == 0], table[table["decodes"]]
    alone_s = sum(fitted.coefficients.chunk_s(tokens, 0.0) for tokens in first["prompt_tokens"].tolist())
    return Pace(
        submit_s=float(first["waited_s"].sum() / first["requests"].sum()),
        first=float(first["seconds"].sum() / alone_s),
        decode=float(decode["seconds"].sum() / decode["predicted_s"].sum()),
    )


def _engine_steps(path: Path, calibration: Calibration) -> pd.DataFrame:
    """Return the engine steps of a run by their place in the rollout of their worker, as they were predicted.

    `waited_s` is from the begin of the RL step, `requests` those of the worker in it.
    """
    run = TrainingRun(path)
    predicted = predicted_engine_steps(run.policy, costs_of(run.policy, calibration))
    prompts = read_engine_steps(path, "prompt_tokens")
    assert predicted is not None
    assert prompts is not None
    table = predicted.assign(prompt_tokens=prompts["prompt_tokens"].to_numpy())
    table = table.sort_values(["step", "worker", "t_s"], kind="stable", ignore_index=True)
    rollout = [table["step"], table["worker"]]
    place = table.groupby(rollout).cumcount()
    last = place.where(table["prompt_tokens"] > 0).groupby(rollout).transform("max")
    begun_s = run.steps.set_index("step")["start_s"].reindex(table["step"]).to_numpy()
    requests = run.policy.responses.groupby(["step", "worker"]).size()
    return table.assign(
        place=place,
        decodes=place > last,
        waited_s=table["t_s"] - begun_s,
        requests=requests.reindex(pd.MultiIndex.from_arrays(rollout)).to_numpy(),
    )


def late_s(pace: Pace, calibration: Calibration, responses: pd.DataFrame, config: TrainConfig) -> float:
    """Return what a rollout takes longer until its first batch decodes than it is simulated to take."""
    requests = len(responses) / responses["step"].nunique() / config.workers.count
    tokens = min(requests, config.engine.max_running) * float(responses["prompt_tokens"].mean())
    first_s = calibration.coefficients.chunk_s(min(tokens, calibration.chunk_tokens), 0.0)
    return pace.submit_s * requests + (pace.first - pace.decode) * first_s


def update_law(folders: Iterable[Path], workers: int) -> UpdateLaw:
    """Fit the seconds of an optimizer step to the medians of measured policies."""
    tokens, medians_s = [], []
    for path in folders:
        run = TrainingRun(path)
        minibatches = read_struct(path / "resolved_config.json", dict[str, Any])["update"]["minibatches"]
        took_s = np.median([step.phases_s["policy_update"] for step in run.times])
        tokens.append(run.tokens().mean() / workers / minibatches)
        medians_s.append(took_s / minibatches)
    slope, fixed_s = np.polyfit(tokens, medians_s, 1)
    assert min(slope, fixed_s) >= 0.0, "the update of these runs is not a part and a part a token"
    return UpdateLaw(fixed_s=float(fixed_s), s_per_token=float(slope))


class OtherWorkers(FittedPhases):
    """The phases of a measured policy as another number of workers has them."""

    def __init__(self, fit: TrainingFit, before: int, config: TrainConfig, update: UpdateLaw) -> None:
        super().__init__(fit)
        self._before, self._workers = before, config.workers.count
        self._minibatches, self._update = config.update.minibatches, update

    def seconds(self, phase: str, responses: int, tokens: int, share: float = 1.0) -> float:
        """Return the seconds of `phase` (tlt.sim.model.phases.Phases)."""
        if phase == "policy_update":
            return self._update.seconds(tokens, self._workers, self._minibatches)
        longer = self._before / self._workers if phase in OWN else 1.0
        return super().seconds(phase, responses, tokens, share) * longer


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A policy to predict, and all that it rests on."""

    policy: str
    moves: bool
    workers: int
    calibration: Path
    pace: Pace
    update: UpdateLaw
    basis: Basis
    accepted: float | None = None  # tokens with bonus of the frozen head under static:4, held-out problems
    lengths_of: Path | None = None  # a run that is simulated with its own lengths; None: all of `comparison`

    @property
    def comparison(self) -> Path:
        """The measured comparison that has the policy."""
        if not self.moves:
            return self.basis.policies
        assert self.basis.moving is not None, "no policy moved in that run"
        return self.basis.moving


def answer(question: Question) -> Expected:
    """Simulate a policy with the lengths of every policy of the run it rests on, or those that are given."""
    name, comparison = question.policy, question.comparison
    config = config_of({"workers.count": question.workers} | (CUDA.moving if question.moves else {}))
    floor = survival_of(comparison / FROZEN) if name == ONLINE else ()
    power = exponent_of(question.basis.policies / FROZEN, question.accepted)
    of = learned(comparison / run_name(name), question.basis.words, floor, power)
    calibration, drafter = load(str(question.calibration)), drafter_config(of.run, of.fit)
    phases = OtherWorkers(of.fit, question.basis.workers, config, question.update)
    took = []
    for path in [question.lengths_of] if question.lengths_of else runs_in(comparison):
        lengths = TrainingRun(path).policy.responses
        with tempfile.TemporaryDirectory() as folder:
            alone = simulated(
                of, name, config, lengths, question.calibration, calibration.times(question.pace.decode),
                drafter, phases, Path(folder) / "run",
            )  # fmt: skip
        more_s = late_s(question.pace, calibration, lengths, config)
        took.append(
            msgspec.structs.replace(alone, rollout_s=alone.rollout_s + more_s, step_s=alone.step_s + more_s)
        )
    return row_of(name, took, question.pace.decode, drafter)


def answers(questions: Sequence[Question]) -> list[Expected]:
    """Answer all, in processes of their own."""
    processes = min(PROCESSES, len(os.sched_getaffinity(0)), len(questions))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return list(pool.map(answer, questions))


def predict(
    workers: int, moving_workers: int, calibration: Path, accepted: float | None = None, basis: Basis = TWO
) -> Before:
    """Predict the five policies, and the policy that moves."""
    measured = [*runs_in(basis.policies), *(runs_in(basis.moving) if basis.moving else ())]
    pace, update = pace_of(FOUR.policies, CALIBRATION), update_law(measured, basis.workers)
    asked = [
        Question(policy=name, moves=moves, workers=count, calibration=calibration, pace=pace, update=update,
                 basis=basis, accepted=accepted)
        for moves, names, count in ((False, POLICIES, workers), (True, MOVING, moving_workers))
        for name in names
    ]  # fmt: skip
    found = answers(asked)
    revision = ["git", "rev-parse", "--short", "HEAD"]
    said = subprocess.run(revision, cwd=PROJECT, check=False, capture_output=True, text=True).stdout.strip()
    taught = f" (static:4 with the new head {accepted:.3f} tokens on held-out problems)" if accepted else ""
    return Before(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        revision=said or "not known",
        rests_on=f"{basis.words} (lengths, acceptance, phases); step times "
        f"{load(str(calibration)).describe()}",
        changed=f"{workers} workers, moving {moving_workers}, instead of {basis.workers}; pace over the "
        "calibration as on four H200; assumed: lengths and acceptance of the same model warmed up anew are "
        f"those of that run{taught}, {ONLINE} accepts no less than the frozen drafter, and what else "
        "training heads costs is as it was",
        policies=tuple(found[: len(POLICIES)]),
        moving=tuple(found[len(POLICIES) :]),
        workers=workers,
        pace=pace,
        update=update,
    )


def taken(row: Expected, comparison: Path) -> dict[str, float]:
    """Return the measured seconds of a step and of a rollout, means over as many steps as were predicted."""
    took_s = seconds(comparison / run_name(row.policy))
    return {what: float(each[: row.steps].mean()) for what, each in took_s.items()}


def errors(row: Expected, comparison: Path) -> tuple[float, float]:
    """Return by what share of the measured ones predicted rollout and step seconds were off."""
    took_s = taken(row, comparison)
    return round(row.rollout_s / took_s["rollout"] - 1, 3), round(row.step_s / took_s["step"] - 1, 3)


def against(expected_rows: Sequence[Expected], comparison: Path) -> list[str]:
    """Return a line a policy: seconds measured, as predicted, and the error; last the order by step seconds.

    Raises InputError for a folder without these policies.
    """
    lines, measured = [], {}
    for row in expected_rows:
        took_s = taken(row, comparison)
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
    """Print the comparisons that FOLDER has."""
    before = read_struct(path, Before)
    for name, rows in (("policies", before.policies), ("moving", before.moving)):
        if (folder / name).is_dir():
            print(f"{name}, predicted {before.made}")
            print("\n".join(against(rows, folder / name)))


def table_of(before: Before) -> str:
    """Return a line a policy."""
    lines = [f"{'policy':34} {'rollout (s)':>12} {'by lengths':>13} {'step (s)':>9} {'acceptance':>11}"]
    for title, rows in (("", before.policies), (", moving", before.moving)):
        for row in rows:
            least, most = row.rollout_range_s or (row.rollout_s, row.rollout_s)
            length = "-" if row.acceptance_length is None else f"{row.acceptance_length:.2f}"
            lines.append(
                f"{row.policy + title:34} {row.rollout_s:12.3f} {least:6.2f}-{most:<6.2f} {row.step_s:9.3f} "
                f"{length:>11}"
            )
    return "\n".join(lines)


def main() -> None:
    """Predict, and write the file; or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--moving-workers", type=int, help="of the policy that moves; unless given, --workers"
    )
    parser.add_argument("--calibration", type=Path, default=CALIBRATION)
    parser.add_argument(
        "--accepted", type=float, help="of `tlt real drafter measure` with K = 4; else as the run's head had"
    )
    asked = parser.parse_args()
    if asked.folder is not None:
        compare(asked.out, asked.folder)
        return
    before = predict(asked.workers, asked.moving_workers or asked.workers, asked.calibration, asked.accepted)
    write_json(asked.out, before)
    print(table_of(before))


if __name__ == "__main__":
    main()
