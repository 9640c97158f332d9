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

from tlt.sim.advise.differences import DIFFERENCES, widest
from tlt.sim.advise.sensitivity import (
    PROBED,
    READINGS,
    End,
    draw_table,
    growth,
    probe_of,
    response,
    responses,
    seconds,
    step_seconds,
    write_draw_files,
)
from tlt.sim.counterfactual.fitted import Fitted, repeated
from tlt.sim.counterfactual.readings import Reading
from tlt.sim.parallel.executors import SERIAL
from tlt.sim.policy_set import PolicySet
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.errors import FACTORS
from tlt.traces.common.arrays import Floats
from tlt.traces.common.seeds import COST_FACTORS, generator
from tlt.traces.runs.runfolder import RunFolder, run_name

LEAST_PINNED = 0.1  # of the observed rollouts: a line that errors take below 0


def write_draws(
    policies: PolicySet, out: Path, draws: int, fitted: Fitted | None, progress: Callable[[str], None]
) -> None:
    """Write the step times under drawn errors beside the comparison in `out`; the first policy is observed.

    `fitted` is None where no log pins them. Draw 0 is the fit. The others take the readings of the log in
    turn, and given seconds of training on fewer GPUs as growing or not. Without `draws` they differ in these
    alone, and where there is one reading nothing is written.
    """
    first = policies.baseline
    unscaled = {name: each.unscaled() for name, each in policies.simulations.items()}
    open_ended = any(each is not None for each in unscaled.values())
    readings = () if fitted is None else fitted.readings.all
    turns = max(len(readings), 1) * (READINGS if open_ended else 1)
    if not draws and turns == 1:
        return
    error, source = first.cost_error(), first.cost_error().source
    rng = generator(first.config.run.seed, COST_FACTORS)
    rows = max(draws, turns)
    unlike = widest(policies.simulations.values())
    moves = np.zeros((1 + rows, len(FACTORS) + len(DIFFERENCES)))
    if draws:
        moves = np.hstack([error.draw_with_fit(rows, rng) - 1.0, unlike.draw_with_fit(rows, rng)])
        source += unlike.told()
    scales = np.ones(1 + rows)
    if fitted is not None:
        if draws:
            scales[1:] = fitted.scale.draw(rows, error.share, rng)
        source += _pinned(fitted)
    probe = probe_of(policies.trace)
    frames = []
    pinned = np.zeros(moves.shape[1])
    for name, simulation in policies.simulations.items():
        answers, share = rollout_responses(simulation.on(probe))
        if simulation is first and fitted is not None:
            pinned = answers
        steps = RunFolder(out / run_name(name)).steps()
        fit_s = np.tile(step_seconds(steps), (1 + rows, 1))
        other = unscaled[name]
        if other is not None:
            turn = np.arange(rows) // max(len(readings), 1) % READINGS == 1
            fit_s[1:][turn] = seconds(other)
        rollout_s = (steps["rollout_end_s"] - steps["start_s"]).to_numpy() if share is None else share * fit_s
        grown = scales / growth([(moves, pinned)], LEAST_PINNED) * growth([(moves, answers)], 0.0)
        factors, fixed_s = _in_readings(readings, rows, len(steps), simulation is first)
        times_s = fit_s + ((grown * factors)[:, None] - 1.0) * rollout_s + fixed_s
        times_s[0] = fit_s[0]
        frames.append(draw_table(run_name(name), steps, np.maximum(times_s, 0.0)))
        progress(name)
    write_draw_files(out, frames, error.share, source, probe)


def _pinned(fitted: Fitted) -> str:
    words = "rollouts" if fitted.scale.steps else "mean rollout"
    steps = f" on {fitted.scale.steps} steps" if fitted.scale.steps else ""
    others = len(fitted.readings.all) - 1
    return f"; {words} pinned by the log{steps}" + (f", in {others + 1} readings of it" if others else "")


def _in_readings(
    readings: tuple[Reading, ...], rows: int, steps: int, observed: bool
) -> tuple[Floats, Floats]:
    """Return, over the fit, the factor on rollouts, [1 + rows], and the fixed seconds, [1 + rows, steps]."""
    factors, fixed_s = np.ones(1 + rows), np.zeros((1 + rows, steps))
    if readings:
        fit = readings[0]
        for row in range(rows):
            reading = readings[row % len(readings)]
            factors[1 + row] = (reading.factor if observed else reading.others) / fit.factor
            fixed_s[1 + row] = repeated(reading.fixed_s - fit.fixed_s, steps)
    return factors, fixed_s


def rollout_responses(simulation: Simulation) -> tuple[Floats, float | None]:
    """Return by how much of itself R grows with each of FACTORS and DIFFERENCES, [5], and its share of a
    step.

    The share is None where a step is its rollout and then its phases: it differs from step to step. Under a
    schedule whose rollouts go on meanwhile it is what of the step grows with all step times.
    """
    overlaps = simulation.config.cluster.schedule_spec().overlaps
    end: End = "step_s" if overlaps else "rollout_s"
    answers, fit_s = responses(simulation, SERIAL, end)
    if not overlaps:
        return answers, None
    slower = simulation.with_coefficients(simulation.coefficients.times(PROBED))
    share = min(max(response(fit_s, float(seconds(slower, end).sum())), 1e-6), 1.0)
    return answers / share, share
