"""How step times answer to errors of the step-time coefficients, without simulating each draw again.

A step time is a sum of decision intervals, each linear in the coefficients, as long as no decision changes.
So T(f) = T (1 + sum_i r_i (f_i - 1)) for factors f on the target's step, the KV term and the drafter's
passes. The responses r of a policy come from one simulation a factor, at PROBE times its fit, on the first
few RL steps: decisions react in it, and the critical worker may change. Against full simulations of each draw
the mean step is off by what tests/sim/test_response.py states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tlt.sim.advise.advice import cost_error, draw_factors
from tlt.sim.comparison import resolve_policies
from tlt.sim.config import Config
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.law import Coefficients
from tlt.traces.common.arrays import Floats
from tlt.traces.common.seeds import COST_FACTORS, generator
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.cost_draws import COST_DRAWS, CostDraws
from tlt.traces.runs.runfolder import COST_DRAW_COLUMNS, RunFolder, run_name, write_json

PROBE = 1.1
PROBE_STEPS = 3
DRAWS = 99
FACTORS = ("target", "kv", "drafter")


def first_steps(trace: Trace, steps: int) -> Trace:
    """Return the first `steps` RL steps of a trace."""
    kept = sorted(trace.rows["step"].unique().tolist())[:steps]
    return Trace(trace.rows[trace.rows["step"].isin(kept)], trace.origin)


def step_seconds(config: Config, trace: Trace, coefficients: Coefficients | None = None) -> Floats:
    """Simulate a configuration and return the seconds of each RL step, [steps]."""
    rows = Simulation(config, trace, coefficients).run().log.step_rows
    return np.array([row["end_s"] - row["start_s"] for row in rows])


def responses(config: Config, trace: Trace) -> Floats:
    """Return by how much of itself the time of the steps grows with each of FACTORS, [3].

    Simulates the steps of `trace` once, and once more for each factor that matters.
    """
    simulation = Simulation(config, trace)
    fitted = simulation.coefficients
    drafts = (
        any(policy.depth for policy in simulation.policy.draft_configs) or simulation.policy.when_off == "k0"
    )
    base_s = step_seconds(config, trace).sum()
    found = np.zeros(len(FACTORS))
    for index in range(len(FACTORS) if drafts else len(FACTORS) - 1):
        factors = [1.0] * len(FACTORS)
        factors[index] = PROBE
        probed_s = step_seconds(config, trace, fitted.scaled(*factors)).sum()
        found[index] = (probed_s / base_s - 1.0) / (PROBE - 1.0)
    return found


def write_cost_draws(
    settings: dict[str, Any],
    policies: Sequence[str],
    trace: Trace,
    out: Path,
    draws: int,
    progress: Callable[[str], None],
) -> None:
    """Write cost_error.json and cost_draws.parquet beside the comparison of `policies` in `out`.

    Draw 0 is the fit: the runs themselves. The factors of the others are those of
    sim.advise.advice.draw_costs.
    """
    configs = resolve_policies(settings, policies)
    first = Simulation(next(iter(configs.values())), trace)
    error, source = cost_error(first.calibration)
    rng = generator(first.config.run.seed, COST_FACTORS)
    factors = np.array([(1.0, 1.0, 1.0), *(draw_factors(error, rng) for _ in range(draws))])
    probe = first_steps(trace, PROBE_STEPS)
    frames = []
    for policy, config in configs.items():
        name = run_name(policy)
        frames.append(_drawn(name, RunFolder(out / name).steps(), factors, responses(config, probe)))
        progress(policy)
    table = pd.concat(frames, ignore_index=True).astype(COST_DRAW_COLUMNS)
    table.to_parquet(out / "cost_draws.parquet", index=False)
    probed = int(probe.rows["step"].nunique())
    write_json(out / COST_DRAWS, CostDraws(cost_error=error, cost_error_source=source, probe_steps=probed))


def _drawn(name: str, steps: pd.DataFrame, factors: Floats, response: Floats) -> pd.DataFrame:
    """Return COST_DRAW_COLUMNS of one run under `factors`, [1 + draws, 3]; the first row is the fit."""
    fit_s = (steps["end_s"] - steps["start_s"]).to_numpy()
    scale = np.maximum(1.0 + (factors - 1.0) @ response, 0.0)
    times_s = scale[:, None] * fit_s[None, :]
    times_s[0] = fit_s
    return pd.DataFrame(
        {
            "draw": np.repeat(np.arange(len(factors)), len(fit_s)),
            "run": name,
            "step": np.tile(steps["step"].to_numpy(), len(factors)),
            "step_s": times_s.ravel(),
        }
    )
