"""Exponents of a head's acceptance by RL step, all on one law over positions.

The law s[j] and the exponents x[t] are those under which each step accepts as many drafts as were counted,
and each position over all steps as well: survival of step t is s ** x[t]. The geometric mean of x is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from scipy.optimize import brentq

from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.results.predicted_training import DriftPoint
from tlt.traces.runs.acceptance_counts import NOTHING, PositionCounts

Head = Literal["serving", "initial"]
Source = Literal["rollout", "probe"]
EXPONENTS = (1e-3, 1e3)
ROUNDS = 8  # law and exponents in turn; the error falls tenfold and more in each


class HeadSeries(msgspec.Struct, frozen=True):
    """Exponents of one head by step, where there is one; shapes [n]."""

    head: Head
    source: Source
    steps: Ints
    exponents: Floats
    lengths: Floats  # mean accepted drafts and 1

    def points(self) -> tuple[DriftPoint, ...]:
        """Return the series as it is reported."""
        rows = zip(self.steps.tolist(), self.exponents.tolist(), self.lengths.tolist(), strict=True)
        return tuple(
            DriftPoint(step=step, head=self.head, source=self.source, exponent=exponent, length=length)
            for step, exponent, length in rows
        )


def exponent_of(law: Floats, counts: PositionCounts) -> float:
    """Return the exponent under which `law` (survival, [depth]) accepts as many drafts as were counted.

    NaN if there is none: everything or nothing was accepted.
    """
    depth = min(len(law), len(counts.engine_steps))
    engine_steps, accepted = counts.engine_steps[:depth], float(counts.accepted[:depth].sum())

    def excess(exponent: float) -> float:
        return float((engine_steps * law[:depth] ** exponent).sum()) - accepted

    if excess(EXPONENTS[0]) <= 0.0 or excess(EXPONENTS[1]) >= 0.0:
        return float("nan")
    return float(brentq(excess, *EXPONENTS))


def common_law(counts: Sequence[PositionCounts]) -> Floats:
    """Return the law s over the positions that were drafted, [depth]."""
    law = sum(counts, NOTHING).survival()
    for _ in range(ROUNDS):
        exponents = np.array([exponent_of(law, each) for each in counts], np.float64)
        known = np.isfinite(exponents)
        if not known.any():
            break
        mean = np.exp(np.log(exponents[known]).mean())
        rows = [(each, x / mean) for each, x in zip(counts, exponents, strict=True) if np.isfinite(x)]
        law = np.minimum.accumulate(np.array([_survival(rows, position) for position in range(len(law))]))
    return law


def series(
    head: Head, source: Source, steps: Ints, counts: Sequence[PositionCounts], law: Floats
) -> HeadSeries:
    """Return the exponents of the steps, [n], in which there is one."""
    exponents = np.array([exponent_of(law, each) for each in counts], np.float64)
    known = np.isfinite(exponents)
    lengths = [
        1.0 + float(each.accepted.sum() / each.engine_steps[0])
        for each, use in zip(counts, known, strict=True)
        if use
    ]
    return HeadSeries(head, source, steps[known], exponents[known], np.array(lengths, np.float64))


def _survival(rows: Sequence[tuple[PositionCounts, float]], position: int) -> float:
    """Return the s[position] under which the position accepts as many drafts as were counted."""
    drafted = [(each, x) for each, x in rows if len(each.engine_steps) > position]
    engine_steps = np.array([each.engine_steps[position] for each, _ in drafted])
    exponents = np.array([x for _, x in drafted])
    accepted = float(sum(each.accepted[position] for each, _ in drafted))
    if accepted <= 0.0 or accepted >= engine_steps.sum():
        return float(accepted > 0.0)
    return float(brentq(lambda s: float((engine_steps * s**exponents).sum()) - accepted, 0.0, 1.0))
