"""Intervals over units (RL steps, rollouts, prompt groups): how much a figure hangs on those it was made of.

A figure is made once of all units and once without each of them (the jackknife). What leaving a unit out
changes is its influence u on the figure, sum(u) = 0, and the error is sqrt(sum(u^2) / (n (n - 1))), with the
quantile of Student's law at n - 1 degrees of freedom (J. Tukey, 1958; B. Efron, The jackknife, the bootstrap
and other resampling plans, 1982). Any figure that is smooth in sums over units will do. Policies of one step
leave together, so they are paired. Percentiles of resamples, the other usual choice, are too narrow where
units are few; how often these intervals cover is measured (evidence, interval_coverage).

Skewness moves the ends of an interval. Ratios of seconds are therefore taken on the logarithm (`positive`).
Figures that may be negative have no such scale: theirs are corrected for the skewness of the influences
(P. Hall, On the removal of skewness by transformation, 1992), shrunk where few units show little of it.

Errors of the step-time coefficients are the same in every step, so steps never show them. Where every policy
was simulated again under drawn coefficients, times have shape (1 + draws, steps): row 0 is the fit and gives
the value, and the interval is that of the mixture of the laws of all other rows. Times of shape (steps,)
have no draws: value and interval come from the same row.

Steps have longer tails than the normal law, which few of them never show: intervals are LONG_TAILED times as
wide for that.

No interval knows of a kind of unit that is too rare to be among those seen. All take units as independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tlt.traces.common.arrays import Floats
from tltsched.errors import InputError

LEVEL = 0.95
TAIL = (1 - LEVEL) / 2  # to either side of an interval
LONG_TAILED = 1.05  # chosen on simulated steps, judged on others (evidence, interval_coverage)
FEW_STEPS = 10  # below this readers are told how few there are
FEW_DRAWS = 39  # n draws span (n - 1) / (n + 1) of their law in the mean: fewer than these less than 95 %
NOTHING = "nothing to measure"
SEED = 0  # the same runs give the same shares
DRAWS = 4_000  # of sums, where policies are ordered
DRAWS_PER_ROW = 400  # the same, and points of Student's law, for each of many rows
_LEAST_SKEW = 1e-6  # below it the correction is nothing and would divide by it


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its interval, or with the reason why it has none."""

    value: float
    interval: tuple[float, float] | None
    reason: str = ""

    def above(self, point: float) -> bool:
        """Return whether the whole interval lies above `point`; without an interval nothing is claimed."""
        return self.interval is not None and self.interval[0] > point

    def mapped(self, function: Callable[[float], float]) -> Estimate:
        """Return what an increasing function makes of value and interval."""
        ends = None if self.interval is None else (function(self.interval[0]), function(self.interval[1]))
        return Estimate(function(self.value), ends, self.reason)


def few_words(units: int, noun: str) -> str:
    """Return what must be read with intervals over few units; `noun` is that of one unit."""
    if units < 2:
        return f"of only {units} {noun} no interval can be told"
    return f"intervals over only {units} {noun}s know nothing of what comes less often than in one of {units}"


def interval_of(drawn: Floats) -> tuple[float, float]:
    """Return the ends between which LEVEL of the values lie, any shape; there must be one."""
    low, high = np.quantile(drawn, [TAIL, 1 - TAIL])
    return float(low), float(high)


def without_each(units: int) -> Floats:
    """Return how often each unit counts, [1 + units, units]: all once, then without the first, and so on.

    For figures that are fits with weights, where those of Jackknife are made of sums.
    """
    return np.concatenate([np.ones((1, units)), 1.0 - np.eye(units)])


class Jackknife:
    """Figures over `count` units. Arrays of figures have the value first, then the one without each unit.

    parameters: of a figure that a fit gives, such as 2 for the slope of a line.
    """

    def __init__(self, count: int, noun: str = "steps", *, parameters: int = 1) -> None:
        self.count = count
        self._noun = noun
        self._parameters = parameters

    def sums(self, values: Floats) -> Floats:
        """Return the sum of [..., count] over the units, and as many units' worth without each of them."""
        total = values.sum(axis=-1, keepdims=True)
        left = (total - values) * (self.count / (self.count - 1) if self.count > 1 else np.nan)
        return np.concatenate([total, left], axis=-1)

    def means(self, values: Floats) -> Floats:
        """Return the mean over the units and without each of them, [..., 1 + count]."""
        return self.sums(values) / max(1, self.count)

    def ratio(self, above: Floats, below: Floats) -> Floats:
        """Return the ratio of sums, [..., 1 + count]; NaN where the lower sum is 0."""
        return divide(self.sums(above), self.sums(below))

    def slope(self, x: Floats, y: Floats) -> Floats:
        """Return the slope of the least-squares line through (x, y), NaN where all x are equal.

        x and y have shape [count], the slopes [1 + count].
        """
        weight = without_each(self.count)
        counted = np.maximum(weight.sum(axis=1, keepdims=True), 1.0)
        off = x - weight @ x[:, np.newaxis] / counted
        return divide((weight * off * y).sum(axis=1), (weight * off**2).sum(axis=1))

    def estimate(self, figures: Floats, *, positive: bool = False) -> Estimate:
        """Return the first of [1 + count] figures, with its interval.

        positive: the figure cannot be 0 or less, so that its interval is one of its logarithm.
        """
        value = float(figures[0]) if self.count else float("nan")
        if np.isnan(value):
            return Estimate(float("nan"), None, NOTHING)
        if self.count <= self._parameters:
            return Estimate(value, None, f"needs at least {self._parameters + 1} {self._noun}")
        if not np.isfinite(figures).all():
            return Estimate(value, None, f"too few {self._noun} have it")
        return Estimate(value, self.mixture_interval(figures[np.newaxis], positive))

    def estimate_ratio(self, above: Floats, below: Floats, *, positive: bool = False) -> Estimate:
        """Return the ratio of sums, both [count], over the units in which `below` is not 0."""
        has = below != 0
        some = Jackknife(int(has.sum()), self._noun, parameters=self._parameters)
        return some.estimate(some.ratio(above[has], below[has]), positive=positive)

    def share(self, part: Floats, whole: Floats) -> Estimate:
        """Return the share of a whole, both [count], with its interval, which ends at 0 and 1."""
        return self.estimate_ratio(part, whole).mapped(lambda share: min(1.0, max(0.0, share)))

    def mean(self, values: Floats, *, positive: bool = False) -> Estimate:
        """Return the mean over the units, [count], with its interval."""
        return self.estimate(self.means(values), positive=positive)

    def drawn(self, figures: Floats, seed: int | np.random.Generator = SEED, draws: int = DRAWS) -> Floats:
        """Return draws of positive figures, [..., 1 + count], within their error, [..., draws].

        A draw weighs the units alike for all figures, so that they vary together. The law is the normal one,
        stretched to where Student's has its 95 %: what lies farther out would leave no figure a mean.
        """
        if self.count < 2:  # no error can be told
            return np.repeat(figures[..., :1], draws, axis=-1)
        from scipy import stats

        logs, rng = np.log(figures), np.random.default_rng(seed)
        student = stats.t.ppf(1 - TAIL, self.count - self._parameters)
        stretch = LONG_TAILED * student / stats.norm.ppf(1 - TAIL)
        weights = rng.standard_normal((draws, self.count)) * stretch / np.sqrt(self.count * (self.count - 1))
        return np.asarray(np.exp(logs[..., :1] + _influences(logs) @ weights.T), dtype=np.float64)

    def mixture_interval(self, figures: Floats, positive: bool) -> tuple[float, float]:
        """Return the interval of the mixture of rows that are equally likely, [rows, 1 + count]."""
        from scipy import stats  # slow to import, and most commands need no interval

        logarithmic = positive and bool((figures > 0).all())
        if logarithmic:
            figures = np.log(figures)
        influences = _influences(figures)
        rows = len(figures)
        levels = np.array([TAIL, 1 - TAIL])
        if rows > 1:
            levels = (np.arange(DRAWS_PER_ROW) + 0.5) / DRAWS_PER_ROW
        student = LONG_TAILED * stats.t.ppf(levels, self.count - self._parameters) / np.sqrt(self.count - 1)
        if not logarithmic:
            student = _skewed(student, influences)
        spread = np.sqrt((influences**2).mean(axis=1, keepdims=True))
        ends = figures[:, :1] - spread * student
        low, high = (float(ends.min()), float(ends.max())) if rows == 1 else interval_of(ends)
        return (float(np.exp(low)), float(np.exp(high))) if logarithmic else (low, high)


def _influences(figures: Floats) -> Floats:
    """Return the influence of each unit on a figure, [..., units], from [..., 1 + units]."""
    left = figures[..., 1:]
    return np.asarray((left.shape[-1] - 1) * (left.mean(axis=-1, keepdims=True) - left), dtype=np.float64)


def _skewed(student: Floats, influences: Floats) -> Floats:
    """Return what Hall's cubic maps to points of Student's law over sqrt(n - 1), [rows, points].

    The law of w = (estimate - truth) / spread has a skewness g, which
    w + g w^2 / 3 + g^2 w^3 / 27 + g / (6 n) has not; this is its inverse. That of few units is mostly chance,
    and makes ends that no data bear unless it is shrunk. influences: [rows, n].
    """
    units = influences.shape[1]
    spread = np.sqrt((influences**2).mean(axis=1, keepdims=True))
    skew = divide((influences**3).mean(axis=1, keepdims=True), spread**3) * (units - 2) / (units + 1)
    skew = np.where(np.abs(skew) >= _LEAST_SKEW, skew, _LEAST_SKEW)  # no spread: NaN, and no matter
    cubed = np.cbrt(1.0 + skew * (student - skew / (6.0 * units)))
    return np.asarray(3.0 / skew * (cubed - 1.0), dtype=np.float64)


def divide(above: Floats, below: Floats) -> Floats:
    """Return above / below, NaN where `below` is 0, both of any one shape."""
    safe = np.where(below == 0, np.nan, below)
    return np.asarray(above / safe, dtype=np.float64)


# --- policies that rolled out the same lengths, over draws of the step times ------------------------------


def speedup(baseline_s: Floats, policy_s: Floats) -> Estimate:
    """Return sum(baseline_s) / sum(policy_s) over steps, of two policies' seconds with the same shape.

    Raises InputError if the shapes differ.
    """
    times_s = _rows([baseline_s, policy_s])
    base_s, fit_s = times_s[:, 0]
    if len(fit_s) == 0 or float(times_s.min()) <= 0:
        total_s = float(fit_s.sum())
        value = float(base_s.sum()) / total_s if total_s > 0 else float("nan")
        return Estimate(value, None, "needs steps that take time")
    return _pooled(times_s, divide, positive=True)


def mean_difference_s(first_s: Floats, second_s: Floats) -> Estimate:
    """Return mean(first_s - second_s) in seconds a step, of two policies' times with the same shape.

    Raises InputError if the shapes differ.
    """
    times_s = _rows([first_s, second_s])
    if times_s.shape[-1] == 0:
        return Estimate(float("nan"), None, "needs at least 2 steps")
    return _pooled(times_s / times_s.shape[-1], np.subtract, positive=False)


def drawn_sums(policies_s: Sequence[Floats]) -> Floats:
    """Return what each policy takes in all steps, drawn within the errors alike for all, [policies, draws].

    There must be a step. Raises InputError if the shapes differ.
    """
    times_s = _rows(policies_s)
    rows = times_s.shape[1]
    jackknife = Jackknife(times_s.shape[2])
    sums_s = jackknife.sums(times_s[:, 1:] if rows > 1 else times_s)
    drawn_s = jackknife.drawn(sums_s, draws=DRAWS if rows == 1 else DRAWS_PER_ROW)
    return drawn_s.reshape(len(drawn_s), -1)


def _pooled(times_s: Floats, figure: Callable[[Floats, Floats], Floats], positive: bool) -> Estimate:
    """Estimate a figure of two policies' sums, from (2, rows, steps); row 0 is the fit."""
    jackknife = Jackknife(times_s.shape[2])
    figures = figure(*jackknife.sums(times_s))
    estimate = jackknife.estimate(figures[0], positive=positive)
    if len(figures) == 1 or estimate.interval is None:
        return estimate
    return Estimate(estimate.value, jackknife.mixture_interval(figures[1:], positive))


def _rows(policies_s: Sequence[Floats]) -> Floats:
    """Return times of shape (policies, rows, steps); raises InputError unless all have the same shape."""
    shapes = list(dict.fromkeys(times.shape for times in policies_s))
    if len(shapes) != 1 or len(shapes[0]) not in (1, 2):
        raise InputError(
            "step times", " and ".join(map(str, shapes)), "policies with the same steps",
            "compare runs of the same lengths",
        )  # fmt: skip
    return np.stack([np.atleast_2d(times) for times in policies_s])
