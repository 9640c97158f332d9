"""Full simulations of each draw, which the linear response of step times is held against."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.sim.advise.differences import differing, widest
from tlt.sim.advise.sensitivity import READINGS, draw_table, step_seconds
from tlt.sim.policy_set import PolicySet
from tlt.traces.common.seeds import COST_FACTORS, generator
from tlt.traces.runs.runfolder import COST_DRAW_COLUMNS, run_name


def simulate_draws(policies: PolicySet, draws: int) -> pd.DataFrame:
    """Simulate every policy again under what write_cost_draws draws; returns COST_DRAW_COLUMNS."""
    first = policies.baseline
    rng = generator(first.config.run.seed, COST_FACTORS)
    factors = first.cost_error().draw_with_fit(draws, rng)
    moves = widest(policies.simulations.values()).draw_with_fit(draws, rng)
    frames = []
    for draw, (factor, move) in enumerate(zip(factors.tolist(), moves.tolist(), strict=True)):
        for name, simulation in policies.simulations.items():
            if draw and draw % READINGS == 0:
                simulation = simulation.unscaled() or simulation
            if simulation.drafts and np.any(move):
                simulation = differing(simulation, *move)
            changed = simulation.with_coefficients(simulation.coefficients.scaled(*factor))
            rows = pd.DataFrame(changed.run().log.step_rows)
            frames.append(draw_table(run_name(name), rows, step_seconds(rows)[None, :]).assign(draw=draw))
    return pd.concat(frames, ignore_index=True).astype(COST_DRAW_COLUMNS)
