"""Percentile bootstrap of figures that are made from sums over RL steps, or over prompt groups.

All figures of one `Resamples` rest on the same draws, so that figures which are made from each other (a
rollout's share and speedup, and what Amdahl's law makes of them) vary together as they should. Draws over
steps are those of tlt.analysis.bootstrap: both reports give a speedup the same interval.
"""

from __future__ import annotations

import numpy as np

from tlt.analysis.bootstrap import LEVEL, RESAMPLES, Estimate
from tlt.analysis.comparison.compare import SEED
from tlt.traces.common.arrays import Floats

NOTHING = "nothing to measure"


class Resamples:
    """Draws of `count` units with replacement. Arrays of figures have the value first, then the resamples."""

    def __init__(self, count: int, noun: str = "steps", resamples: int = RESAMPLES) -> None:
        self.count = count
        self._noun = noun
        rng = np.random.default_rng(SEED)
        self._drawn = rng.integers(max(1, count), size=(resamples if count > 1 else 0, count))

    def draws(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the values of the units, shape (1, count), and of every resample, (resamples, count)."""
        return values[np.newaxis], values[self._drawn]

    def sums(self, values: Floats) -> Floats:
        """Return the sum over the units and over each resample, shape (1 + resamples,)."""
        return np.concatenate([part.sum(axis=1) for part in self.draws(values)])

    def means(self, values: Floats) -> Floats:
        """Return the mean over the units and over each resample."""
        return self.sums(values) / max(1, self.count)

    def ratio(self, above: Floats, below: Floats) -> Floats:
        """Return the ratio of sums, NaN where the lower sum is 0."""
        return divide(self.sums(above), self.sums(below))

    def slope(self, x: Floats, y: Floats) -> Floats:
        """Return the slope of the least-squares line through (x, y), NaN where all x are equal."""
        slopes = []
        for xs, ys in zip(self.draws(x), self.draws(y), strict=True):
            off = xs - xs.sum(axis=1, keepdims=True) / max(1, xs.shape[1])  # nothing may be known
            slopes.append(divide((off * ys).sum(axis=1), (off**2).sum(axis=1)))
        return np.concatenate(slopes)

    def estimate(self, figures: Floats) -> Estimate:
        """Return the value with its 95 % interval over the resamples in which the figure exists."""
        value = float(figures[0]) if self.count else float("nan")
        if np.isnan(value):
            return Estimate(float("nan"), None, NOTHING)
        if self.count < 2:
            return Estimate(value, None, f"needs at least 2 {self._noun}")
        known = figures[1:][np.isfinite(figures[1:])]
        if len(known) < len(figures[1:]) / 2:
            return Estimate(value, None, f"too few {self._noun} have it")
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(known, [tail, 1 - tail])
        return Estimate(value, (float(low), float(high)))

    def mean(self, values: Floats) -> Estimate:
        """Return the mean over the units with its interval."""
        return self.estimate(self.means(values))


def divide(above: Floats, below: Floats) -> Floats:
    """Return above / below, NaN where `below` is 0."""
    safe = np.where(below == 0, np.nan, below)
    return np.asarray(above / safe, dtype=np.float64)


def amdahl(share: Floats, speedup: Floats) -> Floats:
    """Return the speedup of a whole of which `share` became `speedup` times as fast: 1 / ((1 - r) + r / s).

    G. Amdahl, Validity of the single processor approach to achieving large scale computing capabilities,
    AFIPS 1967.
    """
    return np.asarray(1.0 / ((1.0 - share) + share / speedup), dtype=np.float64)
