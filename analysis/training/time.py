"""Where the time of an RL step went: by phase for the step, by cause for the GPUs."""

from __future__ import annotations

import numpy as np

from tlt.analysis.training.run import TrainRun
from tlt.traces.common.arrays import Floats
from tlt.traces.runs.runfolder import CAUSES
from tlt.traces.runs.timeline import booked_seconds

IDLE = tuple(cause for cause, (category, _) in CAUSES.items() if category == "idle")
# What otherwise idle workers do in a rollout: train the drafter, and log-probabilities that are due anyway.
USEFUL_IN_TAIL = (*(cause for cause, (category, _) in CAUSES.items() if category == "drafter"), "logprob")

# phase -> what a reader reads; `other` is what no phase after the hand-over has booked
PHASES: dict[str, str] = {
    "rollout": "rollout",
    "handover": "hand-over: last response to first phase",
    "reward": "rewards",
    "logprob": "log-probabilities",
    "policy_update": "policy update",
    "drafter_publish": "publishing the drafter",
    "weight_sync": "weight sync",
    "other": "other waiting",
}
_ROUNDING = 1e-9  # of a step: what is left of floating-point sums, not time


def gpu_seconds(run: TrainRun, from_s: Floats, to_s: Floats) -> dict[str, Floats]:
    """Return GPU-seconds of every cause inside the window [from_s, to_s] of each step, shape (steps,).

    The windows are seconds since the run began, one a step, in order of step.
    """
    booked = booked_seconds(run.run.intervals, run.run.steps, from_s, to_s)
    return {cause: seconds * run.run.summary.gpus_per_worker for cause, seconds in booked.items()}


def phase_seconds(run: TrainRun) -> dict[str, Floats]:
    """Return the seconds of each phase in each step, shape (steps,); over all phases they sum to the step.

    After the hand-over all workers are in the same phase, but for the moment in which they enter it: a phase
    is the mean over workers of what they booked to it.
    """
    rollout_end_s = run.run.steps["rollout_end_s"].to_numpy(np.float64)
    end_s = run.run.steps["end_s"].to_numpy(np.float64)
    handover_end_s = np.clip(rollout_end_s + run.updates["handover_s"].to_numpy(np.float64), 0.0, end_s)
    after = gpu_seconds(run, handover_end_s, end_s)
    parts = {"rollout": run.rollout_s(), "handover": handover_end_s - rollout_end_s}
    for phase in PHASES:
        if phase in CAUSES:
            parts[phase] = after[phase] / run.run.summary.gpus
    left = run.step_s() - sum(parts.values())
    parts["other"] = np.where(np.abs(left) > _ROUNDING * run.step_s(), left, 0.0)
    return parts


def rollout_gpu_seconds(run: TrainRun) -> dict[str, Floats]:
    """Return GPU-seconds of every cause inside the rollout of each step, shape (steps,)."""
    steps = run.run.steps
    return gpu_seconds(
        run, steps["start_s"].to_numpy(np.float64), steps["rollout_end_s"].to_numpy(np.float64)
    )


def step_gpu_seconds(run: TrainRun) -> dict[str, Floats]:
    """Return GPU-seconds of every cause in each whole step, shape (steps,)."""
    steps = run.run.steps
    return gpu_seconds(run, steps["start_s"].to_numpy(np.float64), steps["end_s"].to_numpy(np.float64))
