"""Figures and their intervals as text: in tables, in sentences, in titles of pictures."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tlt.traces.common.intervals import Estimate

_SAME = 5e-4  # a ratio this close to 1 would read as 0.0 % of a change
_SHOWN = 5e-3  # the least difference that two decimals show


def number(value: float | None) -> str:
    """Return four significant digits with thousands separators; `-` if there is no figure."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    value = (
        float(f"{value:.4g}") if abs(value) < 1000 else value
    )  # rounded first: 0.99996 has the decimals of 1
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def percent(value: float) -> str:
    """Return a share with one decimal, or two if it is small."""
    return f"{value:.1%}" if value == 0 or abs(value) >= 0.01 else f"{value:.2%}"


def times(value: float) -> str:
    """Return a speedup."""
    return f"{value:.2f}x"


def signed(value: float) -> str:
    """Return a difference with three decimals and its sign."""
    return f"{value:+.3f}"


def estimate_text(estimate: Estimate | None, form: Callable[[float], str] = number) -> str:
    """Return `2.31 [2.20, 2.41]`, the bare value without an interval, or `-`."""
    if estimate is None or np.isnan(estimate.value):
        return "-"
    if estimate.interval is None or estimate.reason:
        return form(estimate.value)
    low, high = estimate.interval
    return f"{form(estimate.value)} [{form(low)}, {form(high)}]"


def speedup_text(estimate: Estimate) -> str:
    """Return `2.31x [2.20, 2.41]`, `1x` for the baseline, or the bare value where there is no interval."""
    if math.isnan(estimate.value):
        return "-"
    if estimate.interval is None:
        return f"{estimate.value:.2f}x [n/a]"
    if estimate.reason:
        return "1x"
    low, high = estimate.interval
    return f"{estimate.value:.2f}x [{low:.2f}, {high:.2f}]"


def error_text(estimate: Estimate) -> str:
    """Return `+3.2% [+1.0, +5.1]`, or the bare value where there is no interval."""
    return f"{estimate.value:+.1%}{bracket(estimate)}"


def bracket(estimate: Estimate) -> str:
    """Return ` [+1.0, +5.1]`, the interval in percent; nothing where there is none."""
    if estimate.interval is None:
        return ""
    low, high = estimate.interval
    return f" [{100 * low:+.1f}, {100 * high:+.1f}]"


def interval_words(estimate: Estimate, unit: str = "x") -> str:
    """Return `2.310x (95 % interval 2.204 to 2.412)`, or the value and why it has no interval."""
    if np.isnan(estimate.value):
        return f"n/a ({estimate.reason})"
    if estimate.interval is None:
        return f"{number(estimate.value)}{unit} (no interval: {estimate.reason})"
    low, high = estimate.interval
    return f"{number(estimate.value)}{unit} (95 % interval {number(low)} to {number(high)})"


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
