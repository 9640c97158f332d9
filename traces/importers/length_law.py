"""A law of response lengths from what metrics say of a step: mean, longest, shortest, share at the cap.

The law is lognormal, cut at the longest. With z(q) the standard normal quantile:

    some responses at the cap:  ln(longest) = mu + sigma z(1 - share at the cap)
    none:                       ln(longest) = mu + sigma z(0.5^(1/n)), the median of the longest of n
    a median is stated:         mu = ln(median) in place of both
    always:                     E[min(X, longest)] = mean
"""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec
import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from tlt.traces.common.arrays import Bools, Ints

SIGMA_RANGE = (1e-3, 6.0)


class Aggregate(msgspec.Struct, frozen=True):
    """What metrics say of the responses of a step. truncated_share: at the cap, which is then the longest.

    median_tokens: None where it is not stated.
    """

    mean_tokens: float
    max_tokens: int
    min_tokens: int
    truncated_share: float
    responses: int
    median_tokens: float | None = None


class Drawn(msgspec.Struct, frozen=True):
    """Generated lengths (tokens, shape [n]) and which of them are at the cap."""

    tokens: Ints
    truncated: Bools


def draw(aggregate: Aggregate, rng: np.random.Generator) -> Drawn | None:
    """Return lengths with that longest, that share at the cap and nearly that mean, in random order.

    Lengths are quantiles of the law at evenly spaced shares, one random offset for all, so that their mean is
    that of the law and not of a lucky draw. None if no lognormal law agrees with the aggregate.
    """
    count, longest = aggregate.responses, aggregate.max_tokens
    law = _law(aggregate)
    if law is None:
        return None
    mu, sigma = law
    shares = (np.arange(count) + rng.uniform(0.25, 0.75)) / count
    tokens = np.exp(np.minimum(mu + sigma * ndtri(shares), math.log(longest)))
    tokens = np.clip(np.rint(tokens), max(aggregate.min_tokens, 1), longest).astype(np.int64)
    at_cap = round(aggregate.truncated_share * count)
    truncated = np.arange(count) >= count - at_cap
    tokens[truncated] = longest
    tokens[-1] = longest
    order = rng.permutation(count)
    return Drawn(tokens[order], truncated[order])


@lru_cache(maxsize=256)
def _law(aggregate: Aggregate) -> tuple[float, float] | None:
    """Return (mu, sigma), or None if no sigma gives the mean."""
    longest, mean = float(aggregate.max_tokens), aggregate.mean_tokens
    if aggregate.median_tokens is not None:
        found = _law_of_median(aggregate.median_tokens, mean, longest)
        if found is not None:
            return found
    share = aggregate.truncated_share or 1.0 - 0.5 ** (1.0 / aggregate.responses)
    top = float(ndtri(1.0 - share))
    if not math.isfinite(top):
        return (math.log(longest), 0.0) if mean >= longest * (1 - 1e-9) else None

    def excess(sigma: float) -> float:
        mu = math.log(longest) - sigma * top
        return _mean_below(mu, sigma, longest) - mean

    low, high = SIGMA_RANGE
    if excess(low) * excess(high) > 0:
        return (math.log(longest), 0.0) if abs(excess(low)) <= 0.01 * longest else None
    sigma = float(brentq(excess, low, high))
    return math.log(longest) - sigma * top, sigma


def _law_of_median(median: float, mean: float, longest: float) -> tuple[float, float] | None:
    """Return (mu, sigma) of that median and mean, or None if there is none."""
    mu = math.log(median)

    def excess(sigma: float) -> float:
        return _mean_below(mu, sigma, longest) - mean

    low, high = SIGMA_RANGE
    if excess(low) * excess(high) > 0:
        return None
    return mu, float(brentq(excess, low, high))


def _mean_below(mu: float, sigma: float, longest: float) -> float:
    """Return E[min(X, longest)] of a lognormal X."""
    z = (math.log(longest) - mu) / sigma
    below = (
        math.exp(mu + sigma * sigma / 2) * float(ndtr(z - sigma))
        if mu + sigma * sigma / 2 < 700
        else math.inf
    )
    return below + longest * float(ndtr(-z))
