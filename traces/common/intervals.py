"""Intervals by resampling: how much a figure varies with the units that it happens to rest on.

A resample draws units (RL steps, rollouts, prompt groups) with replacement, and every figure that is made
from the same `Resamples` uses the same draws: policies are paired unit by unit, and figures which are made
from each other (a rollout's share and its speedup) vary together as they should. Intervals are percentiles.

Errors of the step-time coefficients are the same in every step, so resampling steps never shows them. Where
every policy was simulated again under drawn coefficients, times have shape (1 + draws, steps): row 0 is the
fit and gives the value, and the interval pools equally many resamples of every other row. Policies are paired
by draw as well. Times of shape (steps,) have no draws: value and interval come from the same row.

Percentiles over n units are too narrow by about sqrt((n - p) / n) for a figure with p parameters, and take
the normal law where Student's is due. `expanded_interval` widens them (Hesterberg, What teachers should know
about the bootstrap, 2015): their ends lie where the normal law reaches Student's quantile, stretched by that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tlt.traces.common.arrays import Floats
from tltsched.errors import InputError

LEVEL = 0.95
TAIL = (1 - LEVEL) / 2  # to either side of an interval
RESAMPLES = 4_000  # ends of a 95 % interval then rest on 100 resamples each
RESAMPLES_PER_DRAW = 200  # at the least, so that each of many draws still shows its spread over steps
FEW_STEPS = 10  # below this a percentile interval is known to be too narrow, which readers are told
FEW_DRAWS = 39  # n draws span (n - 1) / (n + 1) of their law in the mean: fewer than these less than 95 %
NOTHING = "nothing to measure"
SEED = 0  # the same runs give the same intervals
_BLOCK = 4_000_000  # units drawn at once where draws are pooled: bounds the memory at 32 MB


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its interval, or with the reason why it has none."""

    value: float
    interval: tuple[float, float] | None
    reason: str = ""

    def above(self, point: float) -> bool:
        """Return whether the whole interval lies above `point`; without an interval nothing is claimed."""
        return self.interval is not None and self.interval[0] > point


def interval_of(drawn: Floats) -> tuple[float, float]:
    """Return the ends between which LEVEL of the values lie, any shape; there must be one."""
    low, high = np.quantile(drawn, [TAIL, 1 - TAIL])
    return float(low), float(high)


def expanded_interval(drawn: Floats, units: int, parameters: int = 1) -> tuple[float, float] | None:
    """Return the expanded percentile interval of resampled values; NaN is a resample that gave no figure.

    None if half of them gave none, or there are no more units than parameters.
    """
    from scipy import stats  # slow to import, and most commands need no such interval

    known = drawn[np.isfinite(drawn)]
    free = units - parameters
    if free < 1 or len(known) < len(drawn) / 2:
        return None
    reach = float(stats.t.ppf(1 - TAIL, free)) * np.sqrt(units / free)
    tail = float(stats.norm.sf(reach))
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)


def resample_counts(units: int, rng: np.random.Generator, resamples: int = 2_000) -> Floats:
    """Return how often each unit counts, [1 + resamples, units]; the first row is every unit once.

    For figures that are fits with weights, where those of Resamples are made of sums.
    """
    drawn = rng.multinomial(units, np.full(units, 1.0 / units), size=resamples)
    return np.concatenate([np.ones((1, units)), drawn])


class Resamples:
    """Draws of `count` units with replacement. Arrays of figures have the value first, then the resamples."""

    def __init__(
        self,
        count: int,
        noun: str = "steps",
        *,
        seed: int | np.random.Generator = SEED,
        resamples: int = RESAMPLES,
    ) -> None:
        self.count = count
        self._noun = noun
        self._drawn = np.random.default_rng(seed).integers(max(1, count), size=(resamples, count))

    def draws(self, values: Floats) -> tuple[Floats, Floats]:
        """Return values by unit, [..., count], as [..., 1, count], and drawn, [..., resamples, count]."""
        return values[..., np.newaxis, :], values[..., self._drawn]

    def sums(self, values: Floats) -> Floats:
        """Return the sum of [..., count] over the units and over each resample, [..., 1 + resamples]."""
        return np.concatenate([part.sum(axis=-1) for part in self.draws(values)], axis=-1)

    def means(self, values: Floats) -> Floats:
        """Return the mean over the units and over each resample, [..., 1 + resamples]."""
        return self.sums(values) / max(1, self.count)

    def ratio(self, above: Floats, below: Floats) -> Floats:
        """Return the ratio of sums, [..., 1 + resamples]; NaN where the lower sum is 0."""
        return divide(self.sums(above), self.sums(below))

    def slope(self, x: Floats, y: Floats) -> Floats:
        """Return the slope of the least-squares line through (x, y), NaN where all x are equal.

        x and y have shape [count], the slopes [1 + resamples].
        """
        slopes = []
        for xs, ys in zip(self.draws(x), self.draws(y), strict=True):
            off = xs - xs.sum(axis=-1, keepdims=True) / max(1, self.count)  # nothing may be known
            slopes.append(divide((off * ys).sum(axis=-1), (off**2).sum(axis=-1)))
        return np.concatenate(slopes)

    def estimate(self, figures: Floats) -> Estimate:
        """Return the first of [1 + resamples] figures, with the interval of the others where they exist."""
        value = float(figures[0]) if self.count else float("nan")
        if np.isnan(value):
            return Estimate(float("nan"), None, NOTHING)
        if self.count < 2:
            return Estimate(value, None, f"needs at least 2 {self._noun}")
        known = figures[1:][np.isfinite(figures[1:])]
        if len(known) < len(figures[1:]) / 2:
            return Estimate(value, None, f"too few {self._noun} have it")
        return Estimate(value, interval_of(known))

    def mean(self, values: Floats) -> Estimate:
        """Return the mean over the units, [count], with its interval."""
        return self.estimate(self.means(values))


def divide(above: Floats, below: Floats) -> Floats:
    """Return above / below, NaN where `below` is 0, both of any one shape."""
    safe = np.where(below == 0, np.nan, below)
    return np.asarray(above / safe, dtype=np.float64)


# --- policies that rolled out the same lengths, pooled over draws of the step times -----------------------


def speedup(
    baseline_s: Floats, policy_s: Floats, *, seed: int = SEED, resamples: int = RESAMPLES
) -> Estimate:
    """Return sum(baseline_s) / sum(policy_s) over steps, of two policies' seconds with the same shape.

    Raises InputError if the shapes differ.
    """
    times_s = _rows([baseline_s, policy_s])
    base_s, fit_s = times_s[:, 0]
    if len(fit_s) == 0 or float(times_s.min()) <= 0:
        total_s = float(fit_s.sum())
        value = float(base_s.sum()) / total_s if total_s > 0 else float("nan")
        return Estimate(value, None, "needs steps that take time")
    return _pooled(times_s, lambda base, policy: base / policy, seed, resamples)


def mean_difference_s(
    first_s: Floats, second_s: Floats, *, seed: int = SEED, resamples: int = RESAMPLES
) -> Estimate:
    """Return mean(first_s - second_s) in seconds a step, of two policies' times with the same shape.

    Raises InputError if the shapes differ.
    """
    times_s = _rows([first_s, second_s])
    steps = times_s.shape[-1]
    if steps == 0:
        return Estimate(float("nan"), None, "needs at least 2 steps")
    return _pooled(times_s, lambda first, second: (first - second) / steps, seed, resamples)


def fastest_shares(policies_s: Sequence[Floats], *, seed: int = SEED, resamples: int = RESAMPLES) -> Floats:
    """Return the share of resamples in which each policy takes the least time, shape (policies,).

    There must be a step. A tie goes to the earlier policy. Raises InputError if the shapes differ.
    """
    sums_s = _pooled_sums(_rows(policies_s), seed, resamples)
    wins = np.bincount(np.argmin(sums_s, axis=0), minlength=len(policies_s))
    return np.asarray(wins / sums_s.shape[1], dtype=np.float64)


def _pooled(
    times_s: Floats, figure: Callable[[Floats, Floats], Floats], seed: int, resamples: int
) -> Estimate:
    """Estimate a figure of two policies' sums; `figure` takes arrays of sums, one a resample."""
    first, second = times_s[:, :1].sum(axis=-1)
    value = float(figure(first, second)[0])
    if times_s.shape[-1] < 2:
        return Estimate(value, None, "needs at least 2 steps")
    return Estimate(value, interval_of(figure(*_pooled_sums(times_s, seed, resamples))))


def _pooled_sums(times_s: Floats, seed: int, resamples: int) -> Floats:
    """Return sums over resampled steps of (policies, rows, steps), shape (policies, samples).

    The same seed draws the same steps for any policies, so that all figures of a report rest on one
    resampling. Where there are draws, row 0 is the fit and no part of it.
    """
    rows, steps = times_s.shape[1:]
    pooled = range(1, rows) if rows > 1 else range(1)
    per_row = max(RESAMPLES_PER_DRAW, -(-resamples // len(pooled)))
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // max(1, steps))
    sums = []
    for row in pooled:
        for begin in range(0, per_row, block):
            some = Resamples(steps, seed=rng, resamples=min(block, per_row - begin))
            sums.append(np.stack([some.sums(times[row])[1:] for times in times_s]))
    return np.concatenate(sums, axis=1)


def _rows(policies_s: Sequence[Floats]) -> Floats:
    """Return times of shape (policies, rows, steps); raises InputError unless all have the same shape."""
    shapes = list(dict.fromkeys(times.shape for times in policies_s))
    if len(shapes) != 1 or len(shapes[0]) not in (1, 2):
        raise InputError(
            "step times", " and ".join(map(str, shapes)), "policies with the same steps",
            "compare runs of the same lengths",
        )  # fmt: skip
    return np.stack([np.atleast_2d(times) for times in policies_s])
