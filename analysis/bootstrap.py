"""Paired percentile bootstrap over RL steps, pooled over draws of the step-time coefficients.

Policies that rolled out the same lengths are paired step by step: a resample draws steps with replacement and
takes every policy's times of the drawn steps. The interval says how much the figure varies from step to step.

Errors of the step-time coefficients are the same in every step, so resampling steps never shows them. Where
every policy was simulated again under drawn coefficients, times have shape (1 + draws, steps): row 0 is the
fit and gives the value, and the interval pools equally many resamples of every other row. Policies are paired
by draw as well. Times of shape (steps,) have no draws: value and interval come from the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tlt.traces.common.arrays import Floats
from tltsched.errors import InputError

RESAMPLES = 4_000  # ends of a 95 % interval then rest on 100 resamples each
RESAMPLES_PER_DRAW = 200  # at the least, so that each of many draws still shows its spread over steps
LEVEL = 0.95
FEW_STEPS = 10  # below this a percentile interval is known to be too narrow, which readers are told
FEW_DRAWS = 39  # n draws span (n - 1) / (n + 1) of their law in the mean: fewer than these less than 95 %
_BLOCK = 4_000_000  # indices drawn at once: bounds the memory at 32 MB


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its interval, or with the reason why it has none."""

    value: float
    interval: tuple[float, float] | None
    reason: str = ""

    def above(self, point: float) -> bool:
        """Return whether the whole interval lies above `point`; without an interval nothing is claimed."""
        return self.interval is not None and self.interval[0] > point


def speedup(baseline_s: Floats, policy_s: Floats, *, seed: int, resamples: int = RESAMPLES) -> Estimate:
    """Return sum(baseline_s) / sum(policy_s) over steps, of two policies' seconds with the same shape.

    Raises InputError if the shapes differ.
    """
    times_s = _rows([baseline_s, policy_s])
    base_s, fit_s = times_s[0][0], times_s[1][0]
    if len(fit_s) == 0 or min(float(rows.min()) for rows in times_s) <= 0:
        total_s = float(fit_s.sum())
        value = float(base_s.sum()) / total_s if total_s > 0 else float("nan")
        return Estimate(value, None, "needs steps that take time")
    return _bootstrap(times_s, lambda base, policy: base / policy, seed, resamples)


def mean_difference_s(
    first_s: Floats, second_s: Floats, *, seed: int, resamples: int = RESAMPLES
) -> Estimate:
    """Return mean(first_s - second_s) in seconds a step, of two policies' times with the same shape.

    Raises InputError if the shapes differ.
    """
    times_s = _rows([first_s, second_s])
    steps = times_s[0].shape[1]
    if steps == 0:
        return Estimate(float("nan"), None, "needs at least 2 steps")
    return _bootstrap(times_s, lambda first, second: (first - second) / steps, seed, resamples)


def fastest_shares(policies_s: Sequence[Floats], *, seed: int, resamples: int = RESAMPLES) -> Floats:
    """Return the share of resamples in which each policy takes the least time, shape (policies,).

    There must be a step. A tie goes to the earlier policy. Raises InputError if the shapes differ.
    """
    sums_s = _resampled_sums(_rows(policies_s), seed, resamples)
    wins = np.bincount(np.argmin(sums_s, axis=0), minlength=len(policies_s))
    return np.asarray(wins / sums_s.shape[1], dtype=np.float64)


def _bootstrap(
    times_s: list[Floats], figure: Callable[[Floats, Floats], Floats], seed: int, resamples: int
) -> Estimate:
    """Bootstrap a figure of two policies' sums; `figure` takes arrays of sums, one a resample."""
    value = float(figure(times_s[0][:1].sum(axis=1), times_s[1][:1].sum(axis=1))[0])
    if times_s[0].shape[1] < 2:
        return Estimate(value, None, "needs at least 2 steps")
    first, second = _resampled_sums(times_s, seed, resamples)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(figure(first, second), [tail, 1 - tail])
    return Estimate(value, (float(low), float(high)))


def _resampled_sums(times_s: list[Floats], seed: int, resamples: int) -> Floats:
    """Return sums over resampled steps, shape (policies, samples), pooled over draws.

    The same seed draws the same steps for any policies, so that all figures of a report rest on one
    resampling.
    """
    rows, steps = times_s[0].shape
    pooled = range(1, rows) if rows > 1 else range(1)
    per_row = max(RESAMPLES_PER_DRAW, -(-resamples // len(pooled)))
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // max(1, steps))
    sums = []
    for row in pooled:
        for begin in range(0, per_row, block):
            drawn = rng.integers(steps, size=(min(block, per_row - begin), steps))
            sums.append(np.stack([times[row][drawn].sum(axis=1) for times in times_s]))
    return np.concatenate(sums, axis=1)


def _rows(policies_s: Sequence[Floats]) -> list[Floats]:
    """Return the times with shape (rows, steps); raises InputError unless every policy has the same shape."""
    shapes = list(dict.fromkeys(times.shape for times in policies_s))
    if len(shapes) != 1 or len(shapes[0]) not in (1, 2):
        raise InputError(
            "step times",
            f"shapes {' and '.join(map(str, shapes))}",
            "policies with the same steps",
            "compare runs of the same lengths",
        )
    return [np.atleast_2d(times) for times in policies_s]
