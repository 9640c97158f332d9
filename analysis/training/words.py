"""Estimates of a training comparison in words."""

from __future__ import annotations

from tlt.analysis.comparison.tables import number
from tlt.traces.common.intervals import Estimate

_SAME = 5e-4  # a ratio this close to 1 would read as 0.0 % of a change
_SHOWN = 5e-3  # the least difference that two decimals show


def outside(estimate: Estimate | None, point: float) -> bool:
    """Return whether the interval of an estimate leaves `point` out; without one nothing is claimed."""
    return (
        estimate is not None
        and estimate.interval is not None
        and not estimate.interval[0] <= point <= estimate.interval[1]
    )


def change(ratio: Estimate, less: str, more: str) -> str:
    """Return `2.1 % shorter (95 % interval 5.0 % shorter to 0.9 % longer)`."""

    def word(value: float) -> str:
        if abs(value - 1) < _SAME:
            return "the same"
        return f"{abs(value - 1):.1%} {less if value < 1 else more}"

    if ratio.interval is None:
        return f"{word(ratio.value)} (no interval: {ratio.reason})"
    low, high = ratio.interval
    return f"{word(ratio.value)} (95 % interval {word(low)} to {word(high)})"


def more_tokens(difference: Estimate) -> str:
    """Return `0.31 tokens an engine step more (95 % interval 0.12 to 0.49)`; negative bounds mean fewer."""
    sign = -1 if difference.value < 0 else 1
    words = f"{_tokens(abs(difference.value))} tokens an engine step {'fewer' if sign < 0 else 'more'}"
    if difference.interval is None:
        return f"{words} (no interval: {difference.reason})"
    low, high = sorted(sign * bound for bound in difference.interval)
    return f"{words} (95 % interval {_tokens(low)} to {_tokens(high)})"


def _tokens(value: float) -> str:
    """Return two decimals, or more where two would round what is there to nothing."""
    return f"{value:.2f}" if value == 0 or abs(value) >= _SHOWN else number(value)
