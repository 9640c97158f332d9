"""How requests differ in the drafts that they get accepted.

A request r in bin b of its response (tlt.traces.runs.request_acceptance has the bins: they double) has an
exponent e, and survival s becomes s ** e: a geometric law of rate p stays one, of rate p ** e. Its log is

    log e[r, b] = spread (rho q[r] + sqrt(1 - rho^2) (sqrt(g) u[group] + sqrt(1 - g) z[r]))
                  + position_spread w[r, b] + position_slope min(b, LAST_BIN) + start_excess (b = 0)

where u, z and w are standard normal, q is the normal score of the response's length among all of the run,
rho is `length_correlation` and g `group_correlation`. Above 0 (e > 1) fewer drafts are accepted. The unit,
e = 1, is the median request: q = u = z = w = 0, in bin 0 without the excess of the start.
"""

from __future__ import annotations

import math
from functools import cached_property

import msgspec
import numpy as np
from scipy.special import ndtri

from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import bins

# The slope was measured up to responses of 2,048 tokens; from this bin on (1,024 tokens) it is held.
LAST_BIN = 4
LISTED = 4  # tokens a response of the run: up to so many a score is worked out for every length


class Population(msgspec.Struct, frozen=True):
    """Parameters of the law above; the default is one law for all requests."""

    request_spread: float = 0.0
    length_correlation: float = 0.0
    group_correlation: float = 0.0
    position_spread: float = 0.0
    position_slope: float = 0.0
    start_excess: float = 0.0

    @property
    def is_uniform(self) -> bool:
        """Return whether all requests have one law throughout."""
        return not (self.request_spread or self.varies)

    @property
    def varies(self) -> bool:
        """Return whether the law changes inside a response."""
        return bool(self.position_spread or self.position_slope or self.start_excess)

    def bins(self, most_tokens: int) -> int:
        """Return how many bins tell all positions of such responses apart; 1 if the law does not vary."""
        return int(bins(np.array([max(most_tokens - 1, 0)]))[0]) + 1 if self.varies else 1

    def by_position(self, count: int) -> Floats:
        """Return the part of log e that depends on the bin alone, [count]."""
        numbers = np.arange(count)
        slope = self.position_slope * np.minimum(numbers, LAST_BIN)
        return np.asarray(slope + self.start_excess * (numbers == 0), np.float64)

    def by_length(self, scores: Floats) -> Floats:
        """Return the part of log e that follows from scores of lengths, of their shape."""
        return self.request_spread * self.length_correlation * scores

    @property
    def rest_spread(self) -> float:
        """Return the standard deviation of log e between requests of one length."""
        return self.request_spread * math.sqrt(1.0 - self.length_correlation**2)

    def draw(self, scores: Floats, group: Ints, count: int, rng: np.random.Generator) -> Floats:
        """Draw exponents for requests with these scores of their lengths and groups, [n] each; [n, count]."""
        n = len(scores)
        log = self.by_length(scores)
        if self.rest_spread:
            groups, of = np.unique(group, return_inverse=True)
            shared = rng.standard_normal(len(groups))[of]
            own = rng.standard_normal(n)
            weight = math.sqrt(self.group_correlation), math.sqrt(1.0 - self.group_correlation)
            log = log + self.rest_spread * (weight[0] * shared + weight[1] * own)
        by_bin = log[:, None] + self.by_position(count)[None, :]
        if self.position_spread:
            by_bin = by_bin + self.position_spread * rng.standard_normal((n, count))
        return np.exp(by_bin)


ALIKE = Population()


class LengthScores:
    """Normal scores of response lengths: their mid-rank among all of a run, through the normal quantile."""

    def __init__(self, response_tokens: Ints) -> None:
        """Take the lengths of all responses of a run, [n]; none at all scores everything 0."""
        self.sorted = np.sort(response_tokens)

    def of(self, response_tokens: Ints | Floats) -> Floats:
        """Return the scores of lengths, [m]; ties share one."""
        if not len(self.sorted):
            return np.zeros(len(response_tokens))
        longest = int(self.sorted[-1])
        if response_tokens.dtype.kind == "i" and longest <= LISTED * len(self.sorted):
            return np.asarray(self._by_length[response_tokens.clip(0, longest + 1)], np.float64)
        return self._scores(response_tokens)

    @cached_property
    def _by_length(self) -> Floats:
        """The scores of all whole lengths, the last for all beyond the longest: each step asks for some."""
        return self._scores(np.arange(int(self.sorted[-1]) + 2))

    def _scores(self, lengths: Ints | Floats) -> Floats:
        n = len(self.sorted)
        below = self.sorted.searchsorted(lengths, side="left")
        upto = self.sorted.searchsorted(lengths, side="right")
        return np.asarray(ndtri(((below + upto) / 2.0).clip(0.5, n - 0.5) / n), np.float64)
