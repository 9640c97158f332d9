"""What to draft with at which batch size, and how far the error of the step times could change that.

The gain of a draft configuration at batch b is E[tokens per engine step] x plain step time / its step time,
at the context that requests have when b of them are left. The error of the step times is taken from the
calibration (1.48 times the median error on unseen points, the standard deviation of a normal with that
median), or assumed for a roofline; it is drawn on its own for the target's step, the KV term and the
drafter's passes, and once more for each draft configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tlt.sim.advise.best_draft import draw_factors as draw_draft_config_factors
from tlt.sim.advise.best_draft import is_extrapolated, rank
from tlt.sim.comparison import resolve_policies
from tlt.sim.config import Config
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.calibration import Calibration
from tlt.sim.steptimes.law import Coefficients
from tlt.traces.common.seeds import COST_FACTORS, generator
from tlt.traces.lengths.schema import Trace
from tlt.traces.runs.runfolder import COST_DRAW_COLUMNS, Advice, BatchAdvice, run_name, write_json
from tltsched.draft_config import DraftConfig, chain
from tltsched.policies.base import WhenOff

ROOFLINE_ERROR = 0.2  # assumed; the two measured 7B calibrations lie within it
NORMAL_PER_MEDIAN = 1.4826
TABLE_DRAWS = 400
TREES = tuple(DraftConfig(depth, 8, width) for depth in (4, 6, 8, 10, 12) for width in (16, 32, 48, 64))
CHAINS = tuple(chain(k) for k in range(1, 9))
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def cost_error(calibration: Calibration | None) -> tuple[float, str]:
    """Return the standard deviation of the step times as a share, and what it rests on."""
    if calibration is None:
        return ROOFLINE_ERROR, "assumed: no calibration"
    residuals = calibration.residuals
    return NORMAL_PER_MEDIAN * residuals.held_out_median, f"{residuals.validation}: {calibration.name}"


def draw_coefficients(fitted: Coefficients, error: float, rng: np.random.Generator) -> Coefficients:
    """Return coefficients scaled by log-normal factors: target, KV and drafter each by its own."""
    target, kv, drafter = draw_factors(error, rng)
    return fitted.scaled(target, kv, drafter)


def draw_factors(error: float, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return log-normal factors on the target's step, the KV term and the drafter's passes."""
    target, kv, drafter = np.exp(error * rng.standard_normal(3)).tolist()
    return target, kv, drafter


def candidate_draft_configs(config: Config) -> tuple[DraftConfig, ...]:
    """Return the draft configurations that draft and that the acceptance law covers."""
    return TREES if config.acceptance.kind == "published_tree" else CHAINS


def contexts_by_batch(trace: Trace, workers: int) -> dict[int, float]:
    """Return the context of a request when b of a worker's requests are left: batch -> tokens.

    Without speculation all run in step, so it is the prompt and the (b + 1)-th longest response of the worker
    (in expectation over an even split; the median over steps).
    """
    contexts: dict[int, list[float]] = {}
    prompt = float(trace.rows["prompt_tokens"].mean())
    for _, rows in trace.rows.groupby("step", sort=True):
        longest = np.sort(rows["response_tokens"].to_numpy())[::-1]
        for batch in BATCHES:
            if (rank := batch * workers) <= len(longest):
                contexts.setdefault(batch, []).append(prompt + float(longest[min(rank, len(longest) - 1)]))
    return {batch: float(np.median(values)) for batch, values in contexts.items()}


def advise(simulation: Simulation, rng: np.random.Generator) -> Advice:
    """Return the best draft configuration for each batch that the workload reaches; off where none gains."""
    contexts = contexts_by_batch(simulation.trace, simulation.config.workers)
    return advise_at(simulation, contexts, candidate_draft_configs(simulation.config), "not_configured", rng)


def advise_at(
    simulation: Simulation,
    contexts: dict[int, float],
    draft_configs: Sequence[DraftConfig],
    when_off: WhenOff,
    rng: np.random.Generator,
) -> Advice:
    """Return the best of `draft_configs` (which all draft) and off at each batch of `contexts`.

    contexts: batch -> tokens.
    """
    exponent = simulation.config.drafter.initial_exponent
    tokens = np.array(
        [
            1.0 + float((simulation.law.survival(draft_config) ** exponent).sum())
            for draft_config in draft_configs
        ]
    )
    error, source = cost_error(simulation.calibration)
    draws = draw_draft_config_factors(error, len(draft_configs), TABLE_DRAWS, rng)
    rows = []
    for batch, context in contexts.items():
        ranked = rank(simulation.coefficients, draft_configs, tokens, batch, context, draws, when_off)
        rows.append(
            BatchAdvice(
                requests=batch,
                context_tokens=context,
                draft_config=str(ranked.draft_config),
                gain=ranked.gain,
                gain_low=ranked.gain_low,
                gain_high=ranked.gain_high,
                runner_up=str(ranked.runner_up),
                may_flip=ranked.may_flip,
                extrapolated=is_extrapolated(simulation.calibration, batch, context),
            )
        )
    return Advice(cost_error=error, cost_error_source=source, rows=tuple(rows))


def draw_costs(
    settings: dict[str, Any],
    policies: Sequence[str],
    trace: Trace,
    draws: int,
    progress: Callable[[int], None],
) -> pd.DataFrame:
    """Simulate every policy again under drawn coefficients; returns COST_DRAW_COLUMNS. Draw 0 is the fit."""
    configs = resolve_policies(settings, policies)
    first = Simulation(next(iter(configs.values())), trace)
    error, _ = cost_error(first.calibration)
    rng = generator(first.config.run.seed, COST_FACTORS)
    frames = []
    for draw in range(draws + 1):
        coefficients = draw_coefficients(first.coefficients, error, rng) if draw else first.coefficients
        for policy, config in configs.items():
            steps = Simulation(config, trace, coefficients).run().log.step_rows
            frames.append(
                pd.DataFrame(
                    {
                        "draw": draw,
                        "run": run_name(policy),
                        "step": [row["step"] for row in steps],
                        "step_s": [row["end_s"] - row["start_s"] for row in steps],
                    }
                )
            )
        progress(draw)
    return pd.concat(frames, ignore_index=True).astype(COST_DRAW_COLUMNS)


def write_advice(out: Path, advice: Advice, draws: pd.DataFrame) -> None:
    """Write advice.json and cost_draws.parquet beside a comparison."""
    write_json(out / "advice.json", advice)
    draws.to_parquet(out / "cost_draws.parquet", index=False)
