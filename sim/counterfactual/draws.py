"""Step times of every policy under drawn errors, where a log pins how long the observed rollouts took.

A policy's step is R + P: what follows from the engine's step times, and phases that the log gives. With
factors f on the target's step, the KV term and the drafter's passes (sim.advise.sensitivity) and a factor q
on all of them, it takes R q (1 + sum rho_i (f_i - 1)) + P. Without a log q is 1. With one, q = s / (1 + sum
g_i (f_i - 1)), where g are the responses of the observed policy and s is drawn within the error of the fitted
factor: whatever the coefficients are, the observed rollouts took as long as they did.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tlt.sim.advise.sensitivity import (
    FACTORS,
    PROBE_STEPS,
    PROBED,
    cost_error,
    draw_factors,
    draw_table,
    first_steps,
    growth,
    response,
    responses,
    seconds,
    step_seconds,
    write_draw_files,
)
from tlt.sim.counterfactual.fit_to_log import Scale
from tlt.sim.policy_set import PolicySet
from tlt.sim.simulation import Simulation
from tlt.traces.common.arrays import Floats
from tlt.traces.common.seeds import COST_FACTORS, generator
from tlt.traces.runs.runfolder import RunFolder, run_name

LEAST_PINNED = 0.1  # of the observed rollouts: a line that errors take below 0


def write_draws(
    policies: PolicySet, out: Path, draws: int, scale: Scale | None, progress: Callable[[str], None]
) -> None:
    """Write the step times under drawn errors beside the comparison in `out`; the first policy is observed.

    `scale` is None where no log pins it. Draw 0 is the fit.
    """
    first = policies.baseline
    error, source = cost_error(first.calibration)
    rng = generator(first.config.run.seed, COST_FACTORS)
    moves = draw_factors(error, draws, rng) - 1.0
    scales = np.ones(1 + draws)
    if scale is not None:
        scales[1:] = scale.draw(draws, error, rng)
        source += (
            f"; rollouts pinned by the log on {scale.steps} steps"
            if scale.steps
            else "; mean rollout pinned by the log"
        )
    probe = first_steps(policies.trace, PROBE_STEPS)
    frames = []
    pinned = np.zeros(len(FACTORS))
    for name, simulation in policies.simulations.items():
        answers, share = rollout_responses(simulation.on(probe))
        if simulation is first and scale is not None:
            pinned = answers
        steps = RunFolder(out / run_name(name)).steps()
        fit_s = step_seconds(steps)
        rollout_s = (steps["rollout_end_s"] - steps["start_s"]).to_numpy() if share is None else share * fit_s
        grown = scales / growth([(moves, pinned)], LEAST_PINNED) * growth([(moves, answers)], 0.0)
        times_s = fit_s[None, :] + (grown - 1.0)[:, None] * rollout_s[None, :]
        times_s[0] = fit_s
        frames.append(draw_table(run_name(name), steps, times_s))
        progress(name)
    write_draw_files(out, frames, error, source, probe)


def rollout_responses(simulation: Simulation) -> tuple[Floats, float | None]:
    """Return by how much of itself R grows with each of FACTORS, [3], and its share of a step.

    The share is None where a step is its rollout and then its phases: it differs from step to step. Under a
    schedule whose rollouts go on meanwhile it is what of the step grows with all step times.
    """
    overlaps = simulation.config.cluster.schedule_spec().overlaps
    end = "end_s" if overlaps else "rollout_end_s"
    fit_s = float(seconds(simulation, end).sum())
    answers = responses(simulation, fit_s, end)
    if not overlaps:
        return answers, None
    slower = simulation.with_coefficients(simulation.coefficients.times(PROBED))
    share = min(max(response(fit_s, float(seconds(slower, end).sum())), 1e-6), 1.0)
    return answers / share, share
