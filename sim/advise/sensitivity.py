"""How step times answer to the error of what they rest on: what is drawn, probed and written down.

The error of a calibration moves three factors: on the target's step, the KV term and the drafter's passes.
A step time is a sum of decision intervals, each linear in them, as long as no decision changes. What is
assumed of how requests differ in acceptance moves two more: the spread between them, and the slope along a
response. So for moves d T(d) = T (1 + sum_i r_i d_i), where the responses r of a policy come from one
simulation a part, moved by PROBE, on the first few RL steps: decisions react in it, and the critical worker
may change. Against full simulations of each draw the mean step is off by what tests/sim/test_response.py
states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from tlt.sim.advise.differences import DIFFERENCES, differences_error, differing, widest
from tlt.sim.parallel.executors import SERIAL, Executor
from tlt.sim.parallel.timing import simulate_all
from tlt.sim.policy_set import PolicySet
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.errors import FACTORS
from tlt.traces.common.arrays import Floats
from tlt.traces.common.seeds import COST_FACTORS, generator
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.cost_draws import COST_DRAWS, CostDraws
from tlt.traces.runs.runfolder import COST_DRAW_COLUMNS, RunFolder, run_name, write_json, write_table

PROBE = 0.1  # a share of a factor
PROBE_DIFFERENCES = 0.3, 0.1  # a share of the spread, an amount of the slope: about what they may be off
PROBED = 1.0 + PROBE
PROBE_STEPS = 3  # RL steps at most
PROBE_RESPONSES = 4096  # enough for an answer: a large step is probed alone
End = Literal["step_s", "rollout_s"]
READINGS = 2  # of given seconds of training where fewer GPUs train: they grow, or they do not


def first_steps(trace: Trace, steps: int) -> Trace:
    """Return the first `steps` RL steps of a trace."""
    kept = sorted(trace.rows["step"].unique().tolist())[:steps]
    return Trace(trace.rows[trace.rows["step"].isin(kept)], trace.origin)


def probe_of(trace: Trace) -> Trace:
    """Return the first RL steps on which answers are probed: as many as have PROBE_RESPONSES together."""
    sizes = trace.rows["step"].value_counts().sort_index().cumsum()
    return first_steps(trace, min(1 + int((sizes < PROBE_RESPONSES).sum()), PROBE_STEPS))


def seconds(simulation: Simulation, end: End = "step_s") -> Floats:
    """Simulate, and return the seconds of each RL step, or of its rollout, [steps]."""
    return _all_seconds([simulation], SERIAL, end)[0]


def _all_seconds(simulations: Sequence[Simulation], executor: Executor, end: End) -> list[Floats]:
    return [getattr(timing, end) for timing in simulate_all(simulations, executor)]


def probed(simulation: Simulation, part: str) -> Simulation:
    """Return a simulation with one of FACTORS or DIFFERENCES moved."""
    if part in DIFFERENCES:
        moves = zip(DIFFERENCES, PROBE_DIFFERENCES, strict=True)
        return differing(simulation, *(move if name == part else 0.0 for name, move in moves))
    target, kv, drafter = (PROBED if name == part else 1.0 for name in FACTORS)
    return simulation.with_coefficients(simulation.coefficients.scaled(target, kv, drafter))


def response(fit: float, moved: float, move: float = PROBED - 1.0) -> float:
    """Return by how much of itself a figure grows for a change of 1, from its value at a change of `move`."""
    return (moved / fit - 1.0) / move


def responses(simulation: Simulation, executor: Executor, end: End = "step_s") -> tuple[Floats, float]:
    """Return by how much of themselves the seconds of all steps grow with each of FACTORS and DIFFERENCES,
    [5], and these seconds.

    Simulates once for each that matters, and once as it is.
    """
    parts = (*FACTORS, *DIFFERENCES)
    moved_by = dict.fromkeys(FACTORS, PROBE) | dict(zip(DIFFERENCES, PROBE_DIFFERENCES, strict=True))
    answers = np.zeros(len(parts))
    matters = {"target", "kv"}
    if simulation.drafts or simulation.policy.when_off == "k0":
        matters.add("drafter")
    matters |= differences_error(simulation).parts()
    asked = [part for part in parts if part in matters]
    fit_s, *moved_s = (
        float(found.sum())
        for found in _all_seconds([simulation, *(probed(simulation, part) for part in asked)], executor, end)
    )
    for part, each_s in zip(asked, moved_s, strict=True):
        answers[parts.index(part)] = response(fit_s, each_s, moved_by[part])
    return answers, fit_s


def growth(terms: Iterable[tuple[Floats, Floats]], least: float) -> Floats:
    """Return what a time is multiplied by, [draws], and no less than `least`.

    terms: for each source of error its moves, [draws, parts], and the responses to them, [parts].
    """
    factor: Floats = np.ones(1)
    for moves, answers in terms:
        factor = factor + moves @ answers
    return np.maximum(factor, least)


def draw_table(run: str, steps: pd.DataFrame, times_s: Floats) -> pd.DataFrame:
    """Return COST_DRAW_COLUMNS of one run; times_s: seconds of its steps by draw, [draws, steps]."""
    draws, count = times_s.shape
    return pd.DataFrame(
        {
            "draw": np.repeat(np.arange(draws), count),
            "run": run,
            "step": np.tile(steps["step"].to_numpy(), draws),
            "step_s": times_s.ravel(),
        }
    ).astype(COST_DRAW_COLUMNS)


def step_seconds(steps: pd.DataFrame) -> Floats:
    """Return the seconds of each RL step of a run, [steps]."""
    return (steps["end_s"] - steps["start_s"]).to_numpy()


def write_cost_draws(
    policies: PolicySet, out: Path, draws: int, progress: Callable[[str], None], executor: Executor = SERIAL
) -> None:
    """Write the step times under drawn errors beside the comparison in `out`, by the linear responses.

    Draw 0 is the fit: the runs themselves. Of a policy with given seconds of training on fewer GPUs every
    other draw has them as given. Without `draws` those are the only ones, and without such a policy nothing
    is written.
    """
    unscaled = {name: each.unscaled() for name, each in policies.simulations.items()}
    open_ended = any(each is not None for each in unscaled.values())
    if not draws and not open_ended:
        return
    error, source = policies.baseline.cost_error(), policies.baseline.cost_error().source
    unlike = widest(policies.simulations.values())
    rng = generator(policies.baseline.config.run.seed, COST_FACTORS)
    moves = np.hstack([error.draw_with_fit(draws, rng) - 1.0, unlike.draw_with_fit(draws, rng)])
    if not draws:
        moves = np.zeros((1 + READINGS, moves.shape[1]))
    source += unlike.told()
    if open_ended:
        source += "; given seconds of training on fewer GPUs grow with 1 / share or not at all"
    probe = probe_of(policies.trace)
    frames = []
    for name, simulation in policies.simulations.items():
        answers, _ = responses(simulation.on(probe), executor)
        steps = RunFolder(out / run_name(name)).steps()
        fit_s = step_seconds(steps)
        times_s = growth([(moves, answers)], 0.0)[:, None] * fit_s[None, :]
        times_s[0] = fit_s
        other = unscaled[name]
        if other is not None:
            times_s[READINGS::READINGS] *= seconds(other) / fit_s
        frames.append(draw_table(run_name(name), steps, times_s))
        progress(name)
    write_draw_files(out, frames, error.share, source, probe)


def write_draw_files(out: Path, frames: list[pd.DataFrame], error: float, source: str, probe: Trace) -> None:
    """Write cost_draws.parquet, and cost_error.json with what the draws rest on."""
    table = pd.concat(frames, ignore_index=True).astype(COST_DRAW_COLUMNS)
    write_table(out / "cost_draws.parquet", table)
    probed_steps = int(probe.rows["step"].nunique())
    write_json(
        out / COST_DRAWS, CostDraws(cost_error=error, cost_error_source=source, probe_steps=probed_steps)
    )
