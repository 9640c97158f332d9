"""Which draft configuration emits most tokens per second at one batch size and context, and how sure that is.

The gain of a draft configuration is E[tokens per engine step] x plain step time / its step time. "Plain" is
an engine without speculation configured. The error of the step times is drawn on its own for the target's
step, the KV term and the drafter's passes, and once more for each draft configuration; the same draws serve
every batch and context, so that a map of them is smooth.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from tlt.sim.config import Config
from tlt.sim.steptimes.calibration import Calibration
from tlt.sim.steptimes.errors import CostError
from tlt.sim.steptimes.law import Coefficients, padded
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import interval_of
from tlt.traces.common.regret import Regrets, weigh
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.policies.base import WhenOff

TREES = tuple(DraftConfig(depth, 8, width) for depth in (4, 6, 8, 10, 12) for width in (16, 32, 48, 64))
CHAINS = tuple(chain(k) for k in range(1, 9))


def candidate_draft_configs(config: Config) -> tuple[DraftConfig, ...]:
    """Return the draft configurations that draft and that the acceptance law covers."""
    return TREES if config.acceptance.kind == "published_tree" else CHAINS


class RankingDraws(msgspec.Struct, frozen=True):
    """Factors on the step times.

    factors: [draws, 3], target, KV and drafter; own: [draws, draft configurations], one each.
    """

    factors: Floats
    own: Floats


class Ranked(msgspec.Struct, frozen=True):
    """What is best at one batch and context; gains are tokens per second over plain decode."""

    draft_config: DraftConfig
    gain: float
    gain_low: float  # 95 % interval over the error of the step times
    gain_high: float
    runner_up: DraftConfig
    runner_up_gain: float
    regrets: Regrets  # of the best, over the draws of the step times, by the names of draft configurations


def draw_ranking(error: CostError, draft_configs: int, draws: int, rng: np.random.Generator) -> RankingDraws:
    """Return factors within the error of the step times, and one more a draft configuration."""
    factors = error.draw(draws, rng)
    return RankingDraws(factors, np.exp(error.share * rng.standard_normal((draws, draft_configs))))


def parts_s(
    coefficients: Coefficients, draft_config: DraftConfig, when_off: WhenOff, batch: int, context: float
) -> Floats:
    """Return what an engine step spends on the target, on the KV cache and on the drafter, seconds, [3]."""
    target_s, drafter_s = _without_context_s(coefficients, draft_config, when_off, batch)
    kv_s = coefficients.context_s_per_token(draft_config, when_off) * context * batch
    return np.array([target_s, kv_s, drafter_s])


@lru_cache(maxsize=1 << 12)  # a map asks for the same at every context and rate
def _without_context_s(
    coefficients: Coefficients, draft_config: DraftConfig, when_off: WhenOff, batch: int
) -> tuple[float, float]:
    """Return what an engine step spends on the target and on the drafter, whatever the contexts."""
    x = float(padded(batch, coefficients.graph_batches)) * draft_config.verify_tokens
    target_s = float(coefficients.target_s(x) + coefficients.eager_part_s(x))
    return target_s, float(coefficients.fixed_s(draft_config, when_off, batch)) - target_s


def engine_step_s(
    coefficients: Coefficients, draft_config: DraftConfig, when_off: WhenOff, batch: int, context: float
) -> float:
    """Return the seconds of one engine step."""
    return float(parts_s(coefficients, draft_config, when_off, batch, context).sum())


def gains_of(
    coefficients: Coefficients,
    draft_configs: Sequence[DraftConfig],
    tokens: Floats,
    batch: int,
    context: float,
    draws: RankingDraws,
    when_off: WhenOff = "not_configured",
) -> Floats:
    """Return tokens/s over those of plain decode, [draws, draft configurations + 1]; the last one is off."""
    plain_s = parts_s(coefficients, OFF, "not_configured", batch, context)
    engine_steps_s = np.array(
        [parts_s(coefficients, draft_config, "k0", batch, context) for draft_config in draft_configs]
    )
    gains = _gains(plain_s, engine_steps_s, tokens, draws.factors) * draws.own
    off = np.ones((len(gains), 1))
    if when_off == "k0":
        off_s = parts_s(coefficients, OFF, "k0", batch, context)[None]
        off = _gains(plain_s, off_s, np.ones(1), draws.factors)
    return np.hstack([gains, off])


def rank(
    coefficients: Coefficients,
    draft_configs: Sequence[DraftConfig],
    tokens: Floats,
    batch: int,
    context: float,
    draws: RankingDraws,
    when_off: WhenOff = "not_configured",
) -> Ranked:
    """Return the best of `draft_configs` (which all draft) and off.

    tokens: emitted per engine step, bonus included, [draft configurations].

    Off is plain decode with a gain of 1, or K = 0 kept in step, which costs something, by `when_off`.
    """
    fit = RankingDraws(np.ones((1, 3)), np.ones((1, len(draft_configs))))
    gains = gains_of(coefficients, draft_configs, tokens, batch, context, fit, when_off)[0]
    drawn = gains_of(coefficients, draft_configs, tokens, batch, context, draws, when_off)
    best, second = (int(index) for index in np.argsort(-gains, kind="stable")[:2])
    low, high = interval_of(drawn[:, best])
    named = (*draft_configs, OFF)
    names = [str(each) for each in named]
    return Ranked(
        draft_config=named[best],
        gain=float(gains[best]),
        gain_low=low,
        gain_high=high,
        runner_up=named[second],
        runner_up_gain=float(gains[second]),
        regrets=weigh(names, 1.0 / gains, 1.0 / drawn.T, names[best]),
    )


def _gains(plain_s: Floats, engine_steps_s: Floats, tokens: Floats, factors: Floats) -> Floats:
    """Return tokens/s over those of plain decode, [draws, draft configurations].

    From the parts of a plain engine step, [3], and of others, [draft configurations, 3].
    """
    return np.asarray(tokens * (factors @ plain_s)[:, None] / (factors @ engine_steps_s.T), np.float64)


def is_extrapolated(calibration: Calibration | None, batch: int, context: float) -> bool:
    """Return whether drafting at this batch and context lies above the calibrated points.

    Below them the law interpolates towards batch 1 and an empty cache, which calibrations hold or are near.
    """
    if calibration is None:
        return True
    ranges = calibration.ranges
    return batch > ranges.draft_batch[1] or context > ranges.context_tokens[1]
