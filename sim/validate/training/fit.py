"""Everything that the simulator takes from some steps of a measured training policy."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from tlt.sim.model.drafter import DrafterConfig
from tlt.sim.model.phases import PHASES, Phases
from tlt.sim.steptimes.calibration import Calibration
from tlt.sim.validate.measured_acceptance import Differences
from tlt.sim.validate.replay_measured import costs_of, predicted_engine_steps
from tlt.sim.validate.training.drift import FittedLaw, fit_drift
from tlt.sim.validate.training.run import TrainingRun
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.results.predicted_training import Median, TrainingFit
from tlt.traces.runs.acceptance_counts import NOTHING
from tlt.traces.runs.engine_steps import read_engine_steps

Unit = Literal["s", "s/response", "s/token", "tokens/s"]

# What the time of a phase grows with; tokens are those of all prompts and responses of the step.
PHASE_UNITS: dict[str, Unit] = {
    "reward": "s/response", "logprob": "s/token", "policy_update": "s/token", "weight_sync": "s",
    "other": "s",
}  # fmt: skip
ACTIVATION, STOP, PUBLISH, SPEED = "activation", "stop", "publish", "drafter training"
NO_RECOVERY_TOKENS = 1e18  # no training brings anything back


class FittedPhases(Phases):
    """How long phases take: medians of the measured ones (tlt.sim.model.phases.Phases)."""

    def __init__(self, fit: TrainingFit) -> None:
        self._medians = {median.name: median for median in fit.medians}

    def seconds(self, phase: str, responses: int, tokens: int, share: float = 1.0) -> float:
        """Return the seconds of `phase` for a step of `responses` with `tokens` in all, prompts included."""
        del share
        median = self._medians.get(phase)
        if median is None:
            return 0.0
        return median.value * {"s/response": responses, "s/token": tokens}.get(median.unit, 1)


def fit_training(run: TrainingRun, fitted: Ints, unlike: Differences) -> TrainingFit:
    """Fit acceptance, drift and times to the steps `fitted`, [n], which are from 0 on.

    `unlike` is how requests differ in them.
    """
    law = fit_drift(run, fitted, unlike.levels)
    if isinstance(law, FittedLaw):
        survival, drift, reason = law.survival, law.drift, ""
    else:
        survival, drift, reason = sum((run.counts[step] for step in fitted), NOTHING).survival(), None, law
    return TrainingFit(
        steps=tuple(fitted.tolist()),
        survival_by_position=tuple(survival.tolist()),
        drift=drift,
        no_drift_because=reason,
        medians=_medians(run, fitted),
        acceptance_parameters=unlike.figures(),
        alike_because=unlike.unknown_because,
    )


def engine_factor(run: TrainingRun, steps: Ints, calibration: Calibration) -> float:
    """Return the seconds of some rollouts, [n], over those of their engine steps by the calibration.

    A worker's rollout lasts from the step's begin to its last engine step. 1 where no engine steps are kept.
    """
    coefficients = calibration.coefficients
    rows = predicted_engine_steps(run.policy, costs_of(run.policy, calibration))
    prompts = read_engine_steps(run.policy.path, "prompt_tokens")
    if rows is None or prompts is None:
        return 1.0
    prefill_s = coefficients.prefill_chunk_s + prompts["prompt_tokens"] * coefficients.prefill_s_per_token
    rows["predicted_s"] = rows["predicted_s"].where(prompts["prompt_tokens"] == 0, prefill_s)
    rows = rows[rows["step"].isin(steps)]
    ends_s = (rows["t_s"] + rows["seconds"]).groupby([rows["step"], rows["worker"]]).max()
    begun_s = run.steps.set_index("step")["start_s"].reindex(ends_s.index.get_level_values(0))
    return float((ends_s - begun_s.to_numpy()).sum() / rows["predicted_s"].sum())


def drafter_config(run: TrainingRun, fit: TrainingFit) -> DrafterConfig:
    """Return the simulated drafter of the policy; what never happened in the fitted steps takes no time."""
    medians = {median.name: median.value for median in fit.medians}
    drift = fit.drift
    recovery = drift.recovery_tokens if drift else None
    return DrafterConfig(
        exists=run.policy.drafts,
        initial_exponent=drift.initial_exponent.value if drift else 1.0,
        drift_per_update=drift.simulated_per_update() if drift else 0.0,
        recovery_tokens=recovery.value if recovery else NO_RECOVERY_TOKENS,
        training_tokens_per_s=medians.get(SPEED, DrafterConfig().training_tokens_per_s),
        activation_s=medians.get(ACTIVATION, 0.0),
        stop_s=medians.get(STOP, 0.0),
        publish_s=medians.get(PUBLISH, 0.0),
    )


def _medians(run: TrainingRun, fitted: Ints) -> tuple[Median, ...]:
    publish_s = run.updates.set_index("step")["publish_s"].reindex(run.steps["step"]).fillna(0.0).to_numpy()
    divisors = {"s/token": run.tokens(), "s/response": run.responses(), "s": np.ones(len(run.steps))}
    medians = []
    for phase in PHASES:
        seconds = np.array([step.phases_s.get(phase, np.nan) for step in run.times])
        if phase == "weight_sync":  # the drafter is published as it begins
            seconds = seconds - publish_s
        unit = PHASE_UNITS[phase]
        medians.append(_median(phase, unit, (seconds / divisors[unit])[fitted]))
    stops = np.array([np.nan if step.stop_s is None else step.stop_s for step in run.times])
    activation_s, speed = _training(run)
    medians += [
        _median(ACTIVATION, "s", activation_s[fitted]),
        _median(SPEED, "tokens/s", speed[fitted]),
        _median(STOP, "s", stops[fitted]),
        _median(PUBLISH, "s", np.where(publish_s > 0, publish_s, np.nan)[fitted]),
    ]
    return tuple(median for median in medians if median is not None)


def _median(name: str, unit: Unit, values: Floats) -> Median | None:
    """Return the median over the steps in which it happened, or None."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, value, high = np.quantile(known, [0.25, 0.5, 0.75]).tolist()
    return Median(name=name, unit=unit, value=value, low=low, high=high, steps=len(known))


def _training(run: TrainingRun) -> tuple[Floats, Floats]:
    """Return by step, [steps], the seconds until the head is trained and the tokens a second and worker.

    Until the head is trained: loading, and log-probabilities that are due anyway. Medians over workers; NaN:
    nobody trained.
    """
    rows = run.intervals[run.intervals["cause"] == "drafter_training"]
    spans = rows.assign(seconds=rows["end_s"] - rows["start_s"]).groupby(["step", "worker"])
    table = spans.agg(begun_s=("start_s", "min"), seconds=("seconds", "sum"))
    table["tokens"] = run.heads.groupby(["step", "worker"])["tokens"].sum()
    table["told_s"] = pd.Series(
        {
            (int(step), worker): told_s
            for step, times in zip(run.steps["step"], run.times, strict=True)
            for worker, told_s in times.start_s.items()
        },
        dtype=np.float64,
    ).reindex(table.index)
    activation_s = (table["begun_s"] - table["told_s"]).clip(lower=0.0)
    speed = table["tokens"] / table["seconds"]
    by_step = pd.DataFrame({"activation_s": activation_s, "speed": speed}).groupby("step").median()
    by_step = by_step.reindex(run.steps["step"])
    return by_step["activation_s"].to_numpy(np.float64), by_step["speed"].to_numpy(np.float64)
