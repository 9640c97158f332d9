"""Paired percentile bootstrap over RL steps.

Two arms that rolled out the same lengths are paired step by step: a resample draws steps with replacement and
takes both arms' times of the drawn steps. The interval says how much the figure varies from step to step. It
says nothing about errors of the cost model, which are the same in every step.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from tltsched.errors import InputError

RESAMPLES = 4_000  # ends of a 95 % interval then rest on 100 resamples each
LEVEL = 0.95
FEW_STEPS = 10  # below this a percentile interval is known to be too narrow, which readers are told
_BLOCK = 4_000_000  # indices drawn at once: bounds the memory at 32 MB

Floats = npt.NDArray[np.float64]


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its interval, or with the reason why it has none."""

    value: float
    interval: tuple[float, float] | None
    reason: str = ""

    def includes(self, point: float) -> bool:
        """Return whether `point` cannot be ruled out; an estimate without an interval rules out nothing."""
        return self.interval is None or self.interval[0] <= point <= self.interval[1]


def speedup(baseline_s: Floats, arm_s: Floats, *, seed: int, resamples: int = RESAMPLES) -> Estimate:
    """Return sum(baseline_s) / sum(arm_s), where both have shape (steps,) in seconds and the same order.

    Raises InputError if the shapes differ.
    """
    _check_pairs(baseline_s, arm_s)
    if len(arm_s) == 0 or float(arm_s.min()) <= 0 or float(baseline_s.min()) <= 0:
        total_s = float(arm_s.sum())
        value = float(baseline_s.sum()) / total_s if total_s > 0 else float("nan")
        return Estimate(value, None, "needs steps that take time")
    return _bootstrap(baseline_s, arm_s, lambda base, arm: base / arm, seed, resamples)


def mean_difference_s(
    first_s: Floats, second_s: Floats, *, seed: int, resamples: int = RESAMPLES
) -> Estimate:
    """Return mean(first_s - second_s) in seconds a step; both have shape (steps,) in the same order.

    Raises InputError if the shapes differ.
    """
    _check_pairs(first_s, second_s)
    if len(first_s) == 0:
        return Estimate(float("nan"), None, "needs at least 2 steps")
    steps = len(first_s)
    return _bootstrap(first_s, second_s, lambda first, second: (first - second) / steps, seed, resamples)


def _bootstrap(
    first: Floats, second: Floats, figure: Callable[[Floats, Floats], Floats], seed: int, resamples: int
) -> Estimate:
    """Bootstrap a figure of the two sums; `figure` takes arrays of sums, one a resample."""
    value = float(figure(np.array([first.sum()]), np.array([second.sum()]))[0])
    steps = len(first)
    if steps < 2:
        return Estimate(value, None, "needs at least 2 steps")
    rng = np.random.default_rng(seed)
    figures = []
    block = max(1, _BLOCK // steps)
    for begin in range(0, resamples, block):
        drawn = rng.integers(steps, size=(min(block, resamples - begin), steps))
        figures.append(figure(first[drawn].sum(axis=1), second[drawn].sum(axis=1)))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(np.concatenate(figures), [tail, 1 - tail])
    return Estimate(value, (float(low), float(high)))


def _check_pairs(first: Floats, second: Floats) -> None:
    if first.shape != second.shape or first.ndim != 1:
        raise InputError(
            "step times",
            f"shapes {first.shape} and {second.shape}",
            "two arms with the same steps",
            "compare runs of the same lengths",
        )
