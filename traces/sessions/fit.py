"""Laws fitted to sessions: one a quantity, the named one that fits best, else the recorded quantiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from tlt.traces.common.arrays import Bools, Floats, Ints
from tlt.traces.lengths.fit import KS_LIMIT, LAWS, SUBSAMPLE_ROWS
from tlt.traces.sessions.laws import AnyLaw, Constant, Gamma, Lognormal, Quantity, Recorded, Weibull
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sessions.session_laws import SessionLaws
from tlt.traces.sessions.turns import LENGTH, TURN_LIMIT
from tltsched.errors import InputError

QUANTILES = 1_001  # of a recorded law: every thousandth
LEAST_VALUES = 8  # fewer tell no law
MOST_CORRELATION = 0.95
LILLIEFORS = 0.886  # over root n: what 5 % of fits to n values of the law itself exceed (asymptotic, normal)

# scipy's shape and scale, location 0, as the parameters that are written
NAMED: dict[str, Callable[[float, float], AnyLaw]] = {
    "lognormal": lambda shape, scale: Lognormal(median=scale, sigma=shape),
    "gamma": lambda shape, scale: Gamma(mean=shape * scale, shape=shape),
    "weibull": lambda shape, scale: Weibull(scale=scale, shape=shape),
}


class Sample(NamedTuple):
    """Values of one quantity [n], which of them were cut [n], and what holds some together [n], numbered."""

    values: Floats
    cut: Bools
    group: Ints


def fit_sessions(sessions: Sessions, seed: int = 0) -> SessionLaws:
    """Return the laws of `sessions`. Above 20,000 values a seeded subsample gives the parameters.

    A response that a cap cut is censored, as is the number of turns of a session that might have had more.
    Waits that are not known are left out; if none is known there is no law of them. Of few values the
    quantiles are kept. Raises InputError for fewer than 8 sessions.
    """
    if len(sessions) < LEAST_VALUES:
        fix = "write the laws by hand, or record more sessions"
        raise InputError("sessions to fit", len(sessions), f"{LEAST_VALUES} or more", fix)
    of, first, last = sessions.session_of, sessions.first, sessions.last
    cut = sessions.end == LENGTH
    groups = _numbered(np.stack([sessions.step, sessions.prompt_id], axis=1))
    stopped = np.isin(sessions.end[last], (LENGTH, TURN_LIMIT))
    waits = ~last & np.isfinite(sessions.wait_s)
    of_group = np.unique(groups, return_index=True)[1]  # a prompt of each group
    prompts = sessions.input_tokens[sessions.turn_offsets[:-1]][of_group].astype(float)
    samples = {
        "turns": Sample(sessions.turns.astype(float), stopped, groups),
        "prompt_tokens": Sample(prompts, np.zeros(len(prompts), bool), groups[of_group]),
        "last_response_tokens": _turns(sessions.response_tokens, last, cut, of),
    }
    if not last.all():
        never = np.zeros(len(last), bool)
        samples["response_tokens"] = _turns(sessions.response_tokens, ~last, cut, of)
        samples["input_tokens"] = _turns(sessions.input_tokens, ~first, never, of)
        if waits.any():
            samples["wait_s"] = _turns(sessions.wait_s, waits, never, of)
    return SessionLaws(
        origin=sessions.origin,
        limits=sessions.limits,
        waits_known=int(waits.sum()),
        waits=int((~last).sum()),
        **{field: _fit(sample, seed) for field, sample in samples.items()},
    )


def _turns(values: npt.NDArray[Any], which: Bools, cut: Bools, session_of: Ints) -> Sample:
    return Sample(values[which].astype(float), cut[which], session_of[which])


def _numbered(keys: npt.NDArray[Any]) -> Ints:
    return np.unique(keys, axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def _fit(sample: Sample, seed: int) -> Quantity:
    count = len(sample.values)
    positive = sample.values > 0
    values, cut = sample.values[positive], sample.cut[positive]
    zero_share = 1 - len(values) / count
    law, ks = _best(values, cut, seed) if len(values) else (Constant(value=0.0), 0.0)
    return Quantity(
        law=law,
        zero_share=zero_share,
        correlation=_correlation(sample),
        values=count,
        cut=int(sample.cut.sum()),
        ks=ks,
    )


def _best(values: Floats, cut: Bools, seed: int) -> tuple[AnyLaw, float | None]:
    """Return the law that fits best and its distance; the recorded quantiles if none is near enough."""
    if np.ptp(values) == 0:
        return Constant(value=float(values[0])), 0.0
    used = np.arange(len(values))
    if len(used) > SUBSAMPLE_ROWS:
        used = np.random.default_rng(seed).choice(used, SUBSAMPLE_ROWS, replace=False)
    exact, censored = values[used][~cut[used]], values[used][cut[used]]
    found: list[tuple[float, AnyLaw]] = []
    if len(np.unique(exact)) >= LEAST_VALUES:
        for name, law in LAWS.items():
            shape, _, scale = law.fit(stats.CensoredData(uncensored=exact, right=censored), floc=0)
            ks = _distance(values, cut, law(shape, scale=scale).cdf)
            try:
                found.append((ks, NAMED[name](float(shape), float(scale))))
            except InputError:
                continue  # parameters beyond what any such quantity has
    if found:
        ks, best = min(found, key=lambda pair: pair[0])
        if ks <= max(KS_LIMIT, LILLIEFORS / np.sqrt(len(values))):
            return best, ks
    shares = np.linspace(0, 1, min(QUANTILES, len(values)))
    return Recorded(quantiles=tuple(np.quantile(values, shares).tolist())), None


def _distance(values: Floats, cut: Bools, cdf: Callable[[Floats], Floats]) -> float:
    """Return the largest distance of `cdf` to both sides of the recorded steps, below the first cut."""
    steps, counts = np.unique(values, return_counts=True)
    after = np.cumsum(counts) / len(values)
    before = np.concatenate([[0.0], after[:-1]])
    known = steps < (values[cut].min() if cut.any() else np.inf)
    if not known.any():
        return 1.0
    fitted = cdf(steps)[known]
    return float(np.max(np.maximum(np.abs(fitted - after[known]), np.abs(fitted - before[known]))))


def _correlation(sample: Sample) -> float:
    """Return how alike values of one group are: the intraclass correlation of their normal scores.

    One-way analysis of variance with groups of any size; below 0 counts as 0.
    """
    _, group, sizes = np.unique(sample.group, return_inverse=True, return_counts=True)
    count, groups = len(group), len(sizes)
    if groups < 2 or groups == count:
        return 0.0
    scores = stats.norm.ppf((stats.rankdata(sample.values) - 0.5) / count)
    means = np.bincount(group, scores) / sizes
    within = float(np.sum((scores - means[group]) ** 2)) / (count - groups)
    between = float(np.sum(sizes * (means - scores.mean()) ** 2)) / (groups - 1)
    size = (count - float(np.sum(sizes**2)) / count) / (groups - 1)
    total = between + (size - 1) * within
    return float(np.clip((between - within) / total, 0.0, MOST_CORRELATION)) if total > 0 else 0.0
