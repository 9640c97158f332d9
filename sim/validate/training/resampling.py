"""Bootstrap intervals over RL steps that stay honest where steps are few.

Percentile intervals over n units are too narrow by about sqrt((n - p) / n) for a figure with p parameters,
and take the normal law where Student's is due. They are expanded here (Hesterberg, What teachers should know
about the bootstrap, 2015): their ends lie where the normal law reaches Student's quantile, stretched by that.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from tlt.traces.common.arrays import Floats

RESAMPLES = 2000
LEVEL = 0.95


def resampled(units: int, rng: np.random.Generator) -> Floats:
    """Return how often each unit counts, [1 + RESAMPLES, units]; the first row is every unit once."""
    drawn = rng.multinomial(units, np.full(units, 1.0 / units), size=RESAMPLES)
    return np.concatenate([np.ones((1, units)), drawn])


def interval(values: Floats, units: int, parameters: int = 1) -> tuple[float, float] | None:
    """Return the interval of resampled `values`; NaN is a resample that gave no figure.

    None if half of them gave none, or there are no more units than parameters.
    """
    known = values[np.isfinite(values)]
    free = units - parameters
    if free < 1 or len(known) < len(values) / 2:
        return None
    reach = float(stats.t.ppf((1 + LEVEL) / 2, free)) * np.sqrt(units / free)
    tail = float(stats.norm.sf(reach))
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)
