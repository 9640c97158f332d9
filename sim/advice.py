"""Which arm to draft with at which batch size, and how far the error of the step times could change that.

The gain of an arm at batch b is E[tokens per cycle] x plain cycle / its cycle, at the context that requests
have when b of them are left. The error of the step times is taken from the calibration (1.48 times the median
error on unseen points, the standard deviation of a normal with that median), or assumed for a roofline; it is
drawn on its own for the target's step, the KV term and the drafter's passes, and once more for each arm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from sim.coefficients import Coefficients, Floats
from sim.comparison import resolve_arms
from sim.config import Config
from sim.simulation import Simulation
from tltsched.arms import OFF, Arm, chain
from tltsched.speculation.base import OffState
from traces.runfolder import COST_DRAW_COLUMNS, Advice, BatchAdvice, run_name, write_json
from traces.schema import Trace

ROOFLINE_ERROR = 0.2  # assumed; the two measured 7B calibrations lie within it
NORMAL_PER_MEDIAN = 1.4826
TABLE_DRAWS = 400
TREES = tuple(Arm(depth, 8, width) for depth in (4, 6, 8, 10, 12) for width in (16, 32, 48, 64))
CHAINS = tuple(chain(k) for k in range(1, 9))
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def cost_error(simulation: Simulation) -> tuple[float, str]:
    """Return the standard deviation of the step times as a share, and what it rests on."""
    if simulation.calibration is None:
        return ROOFLINE_ERROR, "assumed: no calibration"
    residuals = simulation.calibration.residuals
    return (
        NORMAL_PER_MEDIAN * residuals.held_out_median,
        f"{residuals.validation}: {simulation.calibration.name}",
    )


def draw_coefficients(fitted: Coefficients, error: float, rng: np.random.Generator) -> Coefficients:
    """Return coefficients scaled by log-normal factors: target, KV and drafter each by its own."""
    target, kv, drafter = np.exp(error * rng.standard_normal(3)).tolist()
    return msgspec.structs.replace(
        fitted,
        floor_s=fitted.floor_s * target,
        slopes_s_per_token=tuple(slope * target for slope in fitted.slopes_s_per_token),
        eager_s=fitted.eager_s * target,
        kv_s_per_token=fitted.kv_s_per_token * kv,
        off_s=fitted.off_s * drafter,
        off_s_per_request=fitted.off_s_per_request * drafter,
        draft_s=fitted.draft_s * drafter,
        draft_pass_s=fitted.draft_pass_s * drafter,
        draft_pass_s_per_request=fitted.draft_pass_s_per_request * drafter,
        draft_s_per_token=fitted.draft_s_per_token * drafter,
        kv_s_per_verified_token=fitted.kv_s_per_verified_token * kv,
    )


def candidate_arms(config: Config) -> tuple[Arm, ...]:
    """Return the drafting arms that the acceptance law covers."""
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


def _parts_s(coefficients: Coefficients, arm: Arm, off_state: OffState, batch: int, context: float) -> Floats:
    """Return what a cycle spends on the target, on the KV cache and on the drafter, [3]."""
    fixed_s = float(coefficients.fixed_s(arm, off_state, batch))
    kv_s = coefficients.context_s_per_token(arm, off_state) * context * batch
    per_pass_s = coefficients.draft_pass_s + coefficients.draft_pass_s_per_request * batch * arm.topk
    drafter_s = coefficients.draft_s + arm.depth * per_pass_s if arm.depth else 0.0
    return np.array([fixed_s - drafter_s, kv_s, drafter_s])


def _gains(plain_s: Floats, cycles_s: Floats, tokens: Floats, factors: Floats) -> Floats:
    """Return tokens per second over plain decode, [draws, arms], from parts [3] and [arms, 3]."""
    return np.asarray(tokens * (factors @ plain_s)[:, None] / (factors @ cycles_s.T), np.float64)


def advise(simulation: Simulation, rng: np.random.Generator) -> Advice:
    """Return the best arm for each batch size that the workload reaches; `off` where no arm gains."""
    config = simulation.config
    arms = candidate_arms(config)
    survivals = [simulation.law.survival(arm) ** config.drafter.initial_exponent for arm in arms]
    tokens = np.array([1.0 + float(survival.sum()) for survival in survivals])
    error, source = cost_error(simulation)
    factors = np.exp(error * rng.standard_normal((TABLE_DRAWS, 3)))
    own = np.exp(error * rng.standard_normal((TABLE_DRAWS, len(arms))))
    rows = []
    for batch, context in contexts_by_batch(simulation.trace, config.workers).items():
        plain_s = _parts_s(simulation.coefficients, OFF, "plain", batch, context)
        cycles_s = np.array(
            [_parts_s(simulation.coefficients, arm, "in_step", batch, context) for arm in arms]
        )
        gains = np.append(_gains(plain_s, cycles_s, tokens, np.ones((1, 3)))[0], 1.0)
        drawn = np.ones((TABLE_DRAWS, len(arms) + 1))
        drawn[:, :-1] = _gains(plain_s, cycles_s, tokens, factors) * own
        best, second = (int(index) for index in np.argsort(-gains, kind="stable")[:2])
        low, high = np.percentile(drawn[:, best], [2.5, 97.5])
        names = [*map(str, arms), str(OFF)]
        rows.append(
            BatchAdvice(
                requests=batch,
                context_tokens=context,
                arm=names[best],
                gain=float(gains[best]),
                gain_low=float(low),
                gain_high=float(high),
                runner_up=names[second],
                may_flip=bool(np.mean(drawn[:, second] > drawn[:, best]) > 0.025),
                extrapolated=_is_extrapolated(simulation, batch, context),
            )
        )
    return Advice(cost_error=error, cost_error_source=source, rows=tuple(rows))


def _is_extrapolated(simulation: Simulation, batch: int, context: float) -> bool:
    """Return whether drafting at this batch and context lies outside the calibrated points."""
    if simulation.calibration is None:
        return True
    ranges = simulation.calibration.ranges
    return batch > ranges.draft_batch[1] or context > ranges.context_tokens[1]


def draw_costs(
    settings: dict[str, Any], arms: Sequence[str], trace: Trace, draws: int, progress: Callable[[int], None]
) -> pd.DataFrame:
    """Simulate every arm again under drawn coefficients; returns COST_DRAW_COLUMNS. Draw 0 is the fit."""
    configs = resolve_arms(settings, arms)
    first = Simulation(next(iter(configs.values())), trace)
    error, _ = cost_error(first)
    rng = np.random.default_rng(np.random.SeedSequence(first.config.run.seed, spawn_key=(2,)))
    frames = []
    for draw in range(draws + 1):
        coefficients = draw_coefficients(first.coefficients, error, rng) if draw else first.coefficients
        for arm, config in configs.items():
            steps = Simulation(config, trace, coefficients).run().step_rows
            frames.append(
                pd.DataFrame(
                    {
                        "draw": draw,
                        "run": run_name(arm),
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
