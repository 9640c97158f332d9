"""Step times of every policy under drawn errors, where a log pins how long the observed rollouts took.

A policy's step is R + P: what follows from the engine's step times, and phases that the log gives. With
factors f on the target's step, the KV term and the drafter's passes (sim.advise.sensitivity) and a factor q
on all of them, it takes R q (1 + sum rho_i (f_i - 1)) + P. Without a log q is 1. With one, q = s / (1 + sum
g_i (f_i - 1)), where g are the responses of the observed policy and s is drawn within the error of the fitted
factor: whatever the coefficients are, the observed rollouts took as long as they did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tlt.sim.advise.advice import cost_error, draw_factors
from tlt.sim.advise.sensitivity import FACTORS, PROBE, PROBE_STEPS, first_steps
from tlt.sim.comparison import resolve_policies
from tlt.sim.config import Config
from tlt.sim.counterfactual.fit_to_log import Scale
from tlt.sim.simulation import Simulation
from tlt.traces.common.arrays import Floats
from tlt.traces.common.seeds import COST_FACTORS, generator
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.cost_draws import COST_DRAWS, CostDraws
from tlt.traces.runs.runfolder import COST_DRAW_COLUMNS, RunFolder, run_name, write_json


def write_draws(
    settings: dict[str, Any],
    policies: Sequence[str],
    trace: Trace,
    out: Path,
    draws: int,
    scale: Scale | None,
    progress: Callable[[str], None],
) -> None:
    """Write cost_error.json and cost_draws.parquet beside the comparison; the first policy is observed.

    `scale` is None where no log pins it. Draw 0 is the fit.
    """
    configs = resolve_policies(settings, policies)
    first = Simulation(next(iter(configs.values())), trace)
    error, source = cost_error(first.calibration)
    rng = generator(first.config.run.seed, COST_FACTORS)
    factors = np.array([(1.0, 1.0, 1.0), *(draw_factors(error, rng) for _ in range(draws))])
    scales = np.ones(1 + draws)
    if scale is not None:
        scales[1:] = scale.draw(draws, error, rng)
        source += (
            f"; rollouts pinned by the log on {scale.steps} steps"
            if scale.steps
            else "; mean rollout pinned by the log"
        )
    probe = first_steps(trace, PROBE_STEPS)
    frames = []
    pinned = np.zeros(len(FACTORS))
    for index, (policy, config) in enumerate(configs.items()):
        responses, share = rollout_responses(config, probe)
        if index == 0 and scale is not None:
            pinned = responses
        steps = RunFolder(out / run_name(policy)).steps()
        quotient = scales / np.maximum(1.0 + (factors - 1.0) @ pinned, 0.1)
        grown = quotient * np.maximum(1.0 + (factors - 1.0) @ responses, 0.0)
        frames.append(_drawn(run_name(policy), steps, grown, share))
        progress(policy)
    table = pd.concat(frames, ignore_index=True).astype(COST_DRAW_COLUMNS)
    table.to_parquet(out / "cost_draws.parquet", index=False)
    probed = int(probe.rows["step"].nunique())
    write_json(out / COST_DRAWS, CostDraws(cost_error=error, cost_error_source=source, probe_steps=probed))


def rollout_responses(config: Config, trace: Trace) -> tuple[Floats, float | None]:
    """Return by how much of itself R grows with each of FACTORS, [3], and its share of a step.

    The share is None where a step is its rollout and then its phases: it differs from step to step. Under a
    schedule whose rollouts go on meanwhile it is what of the step grows with all step times.
    """
    simulation = Simulation(config, trace)
    fitted = simulation.coefficients
    overlaps = config.cluster.schedule_spec().overlaps
    drafts = (
        any(policy.depth for policy in simulation.policy.draft_configs) or simulation.policy.when_off == "k0"
    )
    base_s = _seconds(simulation, overlaps)
    share = None
    if overlaps:
        slower_s = _seconds(Simulation(config, trace, fitted.times(PROBE)), overlaps)
        share = min(max((slower_s / base_s - 1.0) / (PROBE - 1.0), 1e-6), 1.0)
    found = np.zeros(len(FACTORS))
    for index in range(len(FACTORS) if drafts else len(FACTORS) - 1):
        factors = [1.0] * len(FACTORS)
        factors[index] = PROBE
        probed_s = _seconds(Simulation(config, trace, fitted.scaled(*factors)), overlaps)
        found[index] = (probed_s / base_s - 1.0) / (PROBE - 1.0)
    return found / (share or 1.0), share


def _seconds(simulation: Simulation, overlaps: bool) -> float:
    """Return the seconds of all rollouts; of all steps, if rollouts go on meanwhile."""
    end = "end_s" if overlaps else "rollout_end_s"
    return float(sum(row[end] - row["start_s"] for row in simulation.run().log.step_rows))


def _drawn(name: str, steps: pd.DataFrame, grown: Floats, share: float | None) -> pd.DataFrame:
    """Return COST_DRAW_COLUMNS of one run whose R is `grown` times as long, [1 + draws]."""
    fit_s = (steps["end_s"] - steps["start_s"]).to_numpy()
    rollout_s = (steps["rollout_end_s"] - steps["start_s"]).to_numpy() if share is None else share * fit_s
    times_s = fit_s[None, :] + (grown - 1.0)[:, None] * rollout_s[None, :]
    times_s[0] = fit_s
    return pd.DataFrame(
        {
            "draw": np.repeat(np.arange(len(grown)), len(fit_s)),
            "run": name,
            "step": np.tile(steps["step"].to_numpy(), len(grown)),
            "step_s": times_s.ravel(),
        }
    )
