"""What an answer rests on that nobody measured: acceptance, step times, responses that were cut."""

from __future__ import annotations

import numpy as np

from tlt.analysis.comparison.compare import Row
from tlt.analysis.load import Run, RunSet
from tlt.traces.results.answer import AcceptanceRange
from tlt.traces.results.what_if import WhatIf

Z = 1.96  # standard deviations of 95 %
DECIDES = (
    "the calibration is of ",
    "% of the responses are cut at ",
)  # warnings that belong into the headline


def acceptance_range(what_if: WhatIf | None, best: Row, baseline: Row) -> AcceptanceRange | None:
    """Return what acceptance does to the best policy's gain; None: it was measured, or nothing drafts."""
    if what_if is None or not what_if.exponent_error:
        return None
    rows = what_if.of(best.policy), what_if.of(baseline.policy)
    if rows[0] is None or rows[1] is None:
        return None
    pairs = zip(what_if.exponents, rows[0].by_acceptance, rows[1].by_acceptance, strict=True)
    known = [(np.log(power), np.log(base / own)) for power, own, base in pairs if own and base]
    logs, gains = np.array(known).T
    if np.ptp(gains) < 1e-9:  # neither drafts
        return None
    gains = gains + np.log(best.speedup.value)
    low, high = sorted(
        np.exp(np.interp([-Z * what_if.exponent_error, Z * what_if.exponent_error], logs, gains))
    )
    first = what_if.first_accepted[what_if.exponents.index(1.0)]
    return AcceptanceRange(float(low), float(high), first, _break_even(logs, gains, first))


def _break_even(logs: np.ndarray, gains: np.ndarray, first: float) -> float | None:
    """Return the chance of the first draft at which the gain, a logarithm, is 0 for the first time."""
    for at in range(len(gains) - 1):
        if gains[at] > 0.0 >= gains[at + 1]:
            share = gains[at] / (gains[at] - gains[at + 1])
            return float(first ** np.exp(logs[at] + share * (logs[at + 1] - logs[at])))
    return None


def acceptance_words(found: AcceptanceRange | None) -> str:
    """Return what stands in the headline of an assumed acceptance; empty: nothing."""
    if found is None:
        return ""
    even = (
        f"it breaks even at {found.break_even:.0%}"
        if found.break_even is not None
        else "it stays a gain down to the lowest that was simulated"
    )
    return (
        f"{found.low:.2f}x to {found.high:.2f}x over the acceptance that was assumed (first draft accepted "
        f"in {found.first_accepted:.0%}; {even})"
    )


def premises_sentence(runs: RunSet) -> str:
    """Say which figures under the answer are assumed, or of something else; empty: none."""
    found = [*_assumed(runs.runs), *_deciding(runs.runs)]
    return f"It rests on this: {'; '.join(found)}." if found else ""


def _assumed(runs: tuple[Run, ...]) -> list[str]:
    words = []
    if any(run.summary.cost_source.startswith("assumed") for run in runs):
        words.append("step times are assumed (a roofline)")
    if any(run.summary.acceptance_source.startswith("assumed") for run in runs):
        words.append("acceptance is assumed")
    return words


def _deciding(runs: tuple[Run, ...]) -> list[str]:
    told = (warning for run in runs for warning in run.summary.warnings)
    return list(dict.fromkeys(warning for warning in told if any(part in warning for part in DECIDES)))
