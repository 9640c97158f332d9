"""What to draft with at which batch size, and how far the error of the step times could change that.

The gain of a draft configuration at batch b is E[tokens per engine step] x plain step time / its step time,
at the context that requests have when b of them are left. The error of the step times is taken from the
calibration (1.48 times the median error on unseen points, the standard deviation of a normal with that
median), or assumed for a roofline; it is drawn on its own for the target's step, the KV term and the
drafter's passes, and once more for each draft configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tlt.sim.advise.best_draft import candidate_draft_configs, draw_ranking, is_extrapolated, rank
from tlt.sim.simulation import Simulation
from tlt.traces.common.arrays import Floats
from tlt.traces.lengths.schema import Trace
from tlt.traces.runs.runfolder import Advice, BatchAdvice, write_json
from tltsched.draft_config import DraftConfig
from tltsched.policies.base import WhenOff

TABLE_DRAWS = 400
MOST_LENGTHS = 64  # of more, so many quantiles stand for them
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


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
    error = simulation.cost_error()
    draws = draw_ranking(error, len(draft_configs), TABLE_DRAWS, rng)
    rows = []
    for batch, context in contexts.items():
        tokens = tokens_when_left(simulation, draft_configs, batch)
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
                runner_up_lost=ranked.regrets.instead[str(ranked.runner_up)].value,
                regret=ranked.regrets.regret.value,
                regret_high=ranked.regrets.highest,
                ties=ranked.regrets.group,
                near=ranked.regrets.near,
                extrapolated=is_extrapolated(simulation.calibration, batch, context),
            )
        )
    return Advice(cost_error=error.share, cost_error_source=error.source, rows=tuple(rows))


def tokens_when_left(simulation: Simulation, draft_configs: Sequence[DraftConfig], batch: int) -> Floats:
    """Return the tokens an engine step of a request, bonus included, when `batch` of a worker's are left.

    Those are its longest responses, which accept less or more as acceptance goes with the length; that slow
    requests are left for being slow is not counted. The mean is the harmonic one, as time adds up; [configs].
    """
    rows, workers = simulation.trace.rows, simulation.config.workers
    longest_first = np.sort(rows["response_tokens"].to_numpy(np.int64))[::-1]
    left = longest_first[: batch * workers * int(rows["step"].nunique())]
    if len(left) > MOST_LENGTHS:
        left = np.quantile(left, np.linspace(0.0, 1.0, MOST_LENGTHS)).astype(np.int64)
    acceptance, exponent = simulation.acceptance, simulation.config.drafter.initial_exponent
    tokens = [
        1.0 / float(acceptance.engine_steps_per_token(each, left, exponent).mean()) if each.depth else 1.0
        for each in draft_configs
    ]
    return np.array(tokens)


def write_advice(out: Path, advice: Advice) -> None:
    """Write advice.json beside a comparison."""
    write_json(out / "advice.json", advice)
