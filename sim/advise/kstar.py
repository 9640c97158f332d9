"""The best draft length (K*) of a calibration, over batch, context and acceptance, and where drafting pays.

On the acceptance axis each further draft of a chain is accepted with the same chance (geometric); one more
layer of the map is the configured law. A draft configuration breaks even where it emits as many tokens an
engine step, the bonus token included, as its step takes plain steps: length* = its step time / plain step
time. For a chain of K at rate a the length is 1 + a + ... + a^K, which rises with a, so the rate that reaches
length* is unique.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from tlt.sim.acceptance.laws import Geometric
from tlt.sim.advise.best_draft import (
    RankingDraws,
    candidate_draft_configs,
    draw_ranking,
    engine_step_s,
    is_extrapolated,
    rank,
)
from tlt.sim.config import Config
from tlt.sim.simulation import calibration_of, coefficients_of, drafts_trees, law_of
from tlt.sim.steptimes.calibration import Calibration
from tlt.sim.steptimes.errors import cost_error
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.roofline import drafter_words
from tlt.traces.common.arrays import Floats
from tlt.traces.common.seeds import BEST_DRAFT_MAP, generator
from tlt.traces.results.kstar import CONFIGURED, KStar, KStarMap
from tlt.version import VERSION
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError
from tltsched.written.draft_config import parse_draft_config

DRAWS = 400
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CONTEXTS = (512.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0)
RATES = tuple(round(0.05 * step, 2) for step in range(1, 20))


def drafting_configs(config: Config, names: Sequence[str]) -> tuple[DraftConfig, ...]:
    """Return what to draft with, in order of the names; none named: what the acceptance law covers.

    `off` may be named and is a candidate always. Raises InputError if nothing is left or one stands twice.
    """
    if not names:
        return candidate_draft_configs(config)
    named = [parse_draft_config(name) for name in names]
    draft_configs = tuple(sorted(draft_config for draft_config in named if draft_config.depth))
    if not draft_configs or len(set(named)) != len(named):
        raise InputError(
            "--draft-configs", ",".join(names), "one or more that draft, each once", "such as off,1,2,4"
        )
    return draft_configs


def kstar_map(
    config: Config,
    draft_configs: Sequence[DraftConfig],
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[float] = CONTEXTS,
    rates: Sequence[float] = RATES,
) -> KStarMap:
    """Return the map. `rates` is left out for trees, whose acceptance is not one rate. Raises InputError."""
    _check(batches, contexts, rates)
    calibration = calibration_of(config)
    coefficients = coefficients_of(config, calibration)
    law = law_of(config.acceptance)
    chains = all(draft_config.is_chain for draft_config in draft_configs)
    used_rates = tuple(sorted(rates)) if chains else ()
    exponent = config.drafter.initial_exponent
    layers = {CONFIGURED: _tokens([law.survival(draft_config) ** exponent for draft_config in draft_configs])}
    layers |= {
        rate: _tokens([Geometric(rate).survival(draft_config) for draft_config in draft_configs])
        for rate in used_rates
    }
    error = cost_error(calibration, config.cost.known.given)
    rng = generator(config.run.seed, BEST_DRAFT_MAP)
    draws = draw_ranking(error, len(draft_configs), DRAWS, rng)
    grid = [(batch, context) for context in sorted(contexts) for batch in sorted(batches)]
    best = [
        _cell(coefficients, calibration, draft_configs, tokens, batch, context, draws) | {"rate": rate}
        for rate, tokens in layers.items()
        for batch, context in grid
    ]
    even = [
        row
        for batch, context in grid
        for row in _breakeven(coefficients, calibration, draft_configs, batch, context)
    ]
    about = KStar(
        **_origin(config, calibration),
        acceptance=law.source if exponent == 1 else f"{law.source}, to the power {exponent:g}",
        cost_error=error.share,
        cost_error_source=error.source,
        draws=DRAWS,
        seed=config.run.seed,
        tool_version=VERSION,
        draft_configs=(str(OFF), *map(str, draft_configs)),
        batches=tuple(sorted(batches)),
        contexts=tuple(sorted(contexts)),
        rates=used_rates,
        batch_range=calibration.ranges.draft_batch if calibration else None,
        context_range=calibration.ranges.context_tokens if calibration else None,
    )
    return KStarMap(about, pd.DataFrame(best), pd.DataFrame(even))


def _check(batches: Sequence[int], contexts: Sequence[float], rates: Sequence[float]) -> None:
    for field, values, fits, allowed in (
        ("--batches", batches, all(batch >= 1 for batch in batches), "batch sizes of 1 or more"),
        ("--contexts", contexts, all(context >= 1 for context in contexts), "tokens, 1 or more"),
        ("--acceptance", rates, all(0 < rate < 1 for rate in rates), "rates between 0 and 1"),
    ):
        if not values or not fits or len(set(values)) != len(values):
            raise InputError(field, ",".join(map(str, values)), f"{allowed}, each once", "correct the list")


def _tokens(survivals: Sequence[Floats]) -> Floats:
    """Return the tokens emitted per engine step, bonus included, [draft configurations]."""
    return np.array([1.0 + float(survival.sum()) for survival in survivals])


def _outside(calibration: Calibration | None, draft_config: DraftConfig, batch: int, context: float) -> bool:
    if is_extrapolated(calibration, batch, context) or calibration is None:
        return True
    ranges = calibration.ranges
    if context < ranges.context_tokens[0] / 2:  # the term of the context is small there, but not nothing
        return True
    return draft_config.depth > ranges.depth[1] or (
        draft_config.depth > 0 and draft_config.verify_tokens > ranges.verify_tokens[1]
    )


def _cell(
    coefficients: Coefficients,
    calibration: Calibration | None,
    draft_configs: Sequence[DraftConfig],
    tokens: Floats,
    batch: int,
    context: float,
    draws: RankingDraws,
) -> dict[str, object]:
    ranked = rank(coefficients, draft_configs, tokens, batch, context, draws)
    emitted = dict(zip(draft_configs, tokens.tolist(), strict=True)) | {OFF: 1.0}
    return {
        "batch": batch,
        "context_tokens": context,
        "draft_config": str(ranked.draft_config),
        "gain": ranked.gain,
        "gain_low": ranked.gain_low,
        "gain_high": ranked.gain_high,
        "runner_up": str(ranked.runner_up),
        "runner_up_gain": ranked.runner_up_gain,
        "regret": ranked.regrets.regret.value,
        "regret_high": ranked.regrets.highest,
        "ties": " ".join(ranked.regrets.group),
        "near": " ".join(ranked.regrets.near),
        "extrapolated": _outside(calibration, ranked.draft_config, batch, context),
        "length_with_bonus": emitted[ranked.draft_config],
    }


def _breakeven(
    coefficients: Coefficients,
    calibration: Calibration | None,
    draft_configs: Sequence[DraftConfig],
    batch: int,
    context: float,
) -> list[dict[str, object]]:
    """Return a row a draft configuration; the smallest rate pays first (of two alike the shallower)."""
    plain_s = engine_step_s(coefficients, OFF, "not_configured", batch, context)
    lengths = [
        engine_step_s(coefficients, draft_config, "k0", batch, context) / plain_s
        for draft_config in draft_configs
    ]
    rates = [
        breakeven_rate(draft_config, length)
        for draft_config, length in zip(draft_configs, lengths, strict=True)
    ]
    reached = [rate for rate in rates if rate == rate]  # NaN is not
    first = rates.index(min(reached)) if reached else -1
    return [
        {
            "batch": batch,
            "context_tokens": context,
            "draft_config": str(draft_config),
            "length_with_bonus": length,
            "most_with_bonus": draft_config.depth + 1.0,
            "rate": rate,
            "pays_first": index == first,
            "extrapolated": _outside(calibration, draft_config, batch, context),
        }
        for index, (draft_config, length, rate) in enumerate(zip(draft_configs, lengths, rates, strict=True))
    ]


def breakeven_rate(draft_config: DraftConfig, length_with_bonus: float) -> float:
    """Return the rate at which a chain emits so many tokens per engine step; NaN: a tree, or no rate."""
    if not draft_config.is_chain or length_with_bonus >= draft_config.depth + 1:
        return nan
    if length_with_bonus <= 1.0:
        return 0.0
    powers = np.arange(draft_config.depth + 1)
    return float(brentq(lambda rate: float(np.sum(rate**powers)) - length_with_bonus, 0.0, 1.0, xtol=1e-12))


def _origin(config: Config, calibration: Calibration | None) -> dict[str, Any]:
    if calibration is None:
        return {
            "calibration": "roofline",
            "provenance": "assumed",
            "engine": "roofline of data sheets, " + drafter_words(config.cost.roofline, drafts_trees(config)),
            "engine_version": "",
            "device": config.hardware.gpu,
            "date": "",
            "model": config.hardware.model,
            "tp": config.hardware.tp,
        }
    return {
        field: getattr(calibration, "name" if field == "calibration" else field)
        for field in (
            "calibration", "provenance", "engine", "engine_version", "device", "date", "model", "tp",
        )
    }  # fmt: skip
