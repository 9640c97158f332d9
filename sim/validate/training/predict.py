"""Fits a measured training run on the first half of its steps, and simulates all of them.

The second half is what the prediction is judged by: same lengths, same schedulers and seeds, the step times
of a calibration times what the engines of the first half took over it, and everything else as the first half
had it. All steps are simulated, from the first on, so
that schedulers and drafter come to the second half by their own way.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.drift import DriftCurve
from tlt.sim.steptimes.calibration import Calibration, load
from tlt.sim.validate.measured_acceptance import Detail, Differences, acceptance_on, differences
from tlt.sim.validate.replay_measured import same_placement, simulate_into
from tlt.sim.validate.training.drift import FittedLaw, fit_drift
from tlt.sim.validate.training.fit import FittedPhases, drafter_config, engine_factor, fit_training
from tlt.sim.validate.training.run import TrainingRun
from tlt.traces.catalogue.gpus import same_device
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.common.intervals import Jackknife, few_words
from tlt.traces.common.manifest import sealed
from tlt.traces.results.predicted_training import (
    PREDICTED_TRAINING,
    Figure,
    PredictedPolicy,
    PredictedTraining,
    PredictionError,
    Quantity,
    StepPrediction,
    TrainingFit,
)
from tlt.traces.results.simulated_replay import SAMPLER_LEFT_OUT
from tlt.traces.runs.runfolder import RunFolder, read_struct, write_json
from tlt.traces.sources import open_run, open_runs
from tltsched.errors import InputError

ACCEPTANCE = "measured: rollouts of the first half of the steps"


class UpdateSettings(msgspec.Struct, frozen=True):
    """The part of a training run's settings that drift depends on."""

    learning_rate: float


class TrainSettings(msgspec.Struct, frozen=True):
    """The parts of a training run's resolved_config.json that are needed here."""

    update: UpdateSettings


def predict_training(
    measured: Path, calibration: str, out: Path, detail: Detail = "kind of prompt"
) -> PredictedTraining:
    """Fit and simulate every policy of the measured training comparison (or run) into the folder `out`.

    Writes the simulated run folders, comparison.json and predicted_training.json. `calibration` is a
    calibration.json or the name of a shipped one; `detail` says what is used of how requests differ in
    acceptance. Raises InputError for folders that hold no training run.
    """
    fitted = load(calibration)
    source = open_runs(measured)
    comparison = source.comparison()
    runs = [TrainingRun(folder) for folder in source.folders]
    out.mkdir(parents=True, exist_ok=True)
    policies = [
        _predict_training(run, fitted, detail, out / name)
        for name, run in zip(comparison.runs, runs, strict=True)
    ]
    prediction = PredictedTraining(
        calibration=fitted.describe(),
        step_time_error=fitted.residuals.held_out_mean,
        policies=tuple(policies),
        warnings=_warnings(fitted, runs),
    )
    with sealed(out):
        write_json(out / "comparison.json", comparison)
        write_json(out / PREDICTED_TRAINING, prediction)
    return prediction


def first_half(run: TrainingRun) -> Ints:
    """Return the steps that are fitted, [n]."""
    return np.arange(len(run.steps) // 2)


def _predict_training(
    run: TrainingRun, calibration: Calibration, detail: Detail, folder: Path
) -> PredictedPolicy:
    steps = first_half(run)
    unlike = differences([run.policy.path], steps, detail) if run.policy.drafts else Differences()
    fit, factor = fit_training(run, steps, unlike), engine_factor(run, steps, calibration)
    acceptance = None
    if fit.survival_by_position:
        law = PerPosition(fit.survival_by_position, ACCEPTANCE)
        acceptance = acceptance_on(law, unlike, detail, run.policy.path, steps)
    _, responses = simulate_into(
        folder, run.policy, calibration.times(factor), acceptance, drafter_config(run, fit),
        FittedPhases(fit), unlike,
    )  # fmt: skip
    predictions = _predictions(run, fit, folder)
    return PredictedPolicy(
        run=folder.name,
        policy=run.policy.summary.policy,
        fit=fit,
        engine_factor=factor,
        steps=predictions,
        errors=prediction_errors(predictions),
        same_placement=same_placement(run.policy, responses),
    )


def _predictions(run: TrainingRun, fit: TrainingFit, folder: Path) -> tuple[StepPrediction, ...]:
    simulated = RunFolder(folder).steps().sort_values("step", ignore_index=True)
    columns = []
    for steps in (run.steps, simulated):
        engine_steps = steps["request_steps"].to_numpy(np.float64)
        accepted = steps["accepted_tokens"].to_numpy(np.float64)
        lengths = 1.0 + np.divide(
            accepted, engine_steps, out=np.full(len(steps), np.nan), where=engine_steps > 0
        )
        columns += [
            (steps["rollout_end_s"] - steps["start_s"]).tolist(),
            (steps["end_s"] - steps["start_s"]).tolist(),
            [None if np.isnan(length) else length for length in lengths.tolist()],
        ]
    rows = zip(run.steps["step"].tolist(), *columns, strict=True)
    return tuple(
        StepPrediction(
            step=step,
            judged=step not in fit.steps,
            measured_rollout_s=rollout_s,
            simulated_rollout_s=simulated_rollout_s,
            measured_step_s=step_s,
            simulated_step_s=simulated_step_s,
            measured_length=length,
            simulated_length=simulated_length,
        )
        for (
            step, rollout_s, step_s, length, simulated_rollout_s, simulated_step_s, simulated_length
        ) in rows
    )  # fmt: skip


def prediction_errors(steps: tuple[StepPrediction, ...]) -> tuple[PredictionError, ...]:
    """Return the errors over the judged steps; that of acceptance only where both sides drafted in some."""
    judged = [step for step in steps if step.judged]
    lengths = [
        (step.measured_length, step.simulated_length)
        for step in judged
        if step.measured_length is not None and step.simulated_length is not None
    ]
    pairs: dict[Quantity, list[tuple[float, float]]] = {
        "rollout seconds": [(step.measured_rollout_s, step.simulated_rollout_s) for step in judged],
        "step seconds": [(step.measured_step_s, step.simulated_step_s) for step in judged],
        "acceptance length": lengths,
    }
    return tuple(prediction_error(quantity, np.array(pair)) for quantity, pair in pairs.items() if pair)


def prediction_error(quantity: Quantity, pairs: Floats) -> PredictionError:
    """Return the error of the sums over steps; pairs are (measured, simulated), [steps, 2]."""
    measured, simulated = pairs.mean(axis=0).tolist()
    over = Jackknife(len(pairs)).estimate_ratio(pairs[:, 1], pairs[:, 0], positive=True)
    error = over.mapped(lambda ratio: ratio - 1.0)
    return PredictionError(
        quantity=quantity,
        measured=measured,
        simulated=simulated,
        error=Figure(value=error.value, interval=error.interval),
    )


def _warnings(calibration: Calibration, runs: list[TrainingRun]) -> tuple[str, ...]:
    warnings = []
    summary = runs[0].policy.summary
    if calibration.model != summary.model:
        warnings.append(f"the calibration is of {calibration.model}, the run trained {summary.model}")
    if not same_device(summary.gpu, calibration.device):
        warnings.append(f"the calibration is of {calibration.device}, the run was on {summary.gpu}")
    if calibration.leaves_sampler_out and any(run.policy.compares for run in runs):
        warnings.append(SAMPLER_LEFT_OUT)
    judged = len(runs[0].steps) - len(first_half(runs[0]))
    if judged < 5:
        warnings.append(few_words(judged, "judged step"))
    return tuple(warnings)


def drift_curve(measured: Path, name: str) -> DriftCurve:
    """Return the drift of the run folder `measured`, fitted on all its steps.

    Raises InputError for a comparison, or where there is no fit.
    """
    run = TrainingRun(open_run(measured, "--save-drift").path)
    steps = np.arange(len(run.steps))
    law = fit_drift(run, steps, differences([run.policy.path], steps).levels)
    if not isinstance(law, FittedLaw):
        raise InputError("--save-drift", str(measured), "a run whose drift can be fitted", law)
    summary = run.policy.summary
    workers = f"; {summary.workers} workers" if summary.workers > 1 else ""
    return DriftCurve(
        name=name,
        provenance=summary.cost_source + workers,
        model=summary.model,
        policy=summary.policy,
        learning_rate=read_struct(measured / "resolved_config.json", TrainSettings).update.learning_rate,
        updates=len(steps) - 1,
        fit=law.drift,
    )


def judged(curve: DriftCurve, prediction: PredictedTraining) -> DriftCurve:
    """Return the curve with how the first half of its run predicted the acceptance of the second."""
    errors = [error for error in prediction.policies[0].errors if error.quantity == "acceptance length"]
    return msgspec.structs.replace(curve, held_out=errors[0] if errors else None)
