"""How a served head's exponent goes with the policy's entropy, between the steps of a measured run.

log x = a + b log H by least squares: entropies of one run span several times their smallest, and so do
exponents. b is an association, since prompts differ between steps as well as the policy.
"""

from __future__ import annotations

import numpy as np

from tlt.sim.validate.training.acceptance_exponents import HeadSeries
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Jackknife
from tlt.traces.results.predicted_training import EntropyLaw, Figure

MIN_STEPS = 4  # through which a line with an interval is drawn


def entropy_law(served: HeadSeries, entropy: Floats) -> EntropyLaw | None:
    """Fit the exponents of the rollouts, by step, to `entropy`, nats a token, [steps].

    Returns None if fewer than four steps have both, or all have one entropy.
    """
    nats = entropy[served.steps]
    known = np.isfinite(nats) & (nats > 0.0)
    x, y = np.log(nats[known]), np.log(served.exponents[known])
    if len(x) < MIN_STEPS or np.ptp(x) == 0.0:
        return None
    estimate = Jackknife(len(x), parameters=2).estimate(Jackknife(len(x)).slope(x, y))
    varied = float(y.var())
    left = y - y.mean() - estimate.value * (x - x.mean())
    return EntropyLaw(
        elasticity=Figure(value=estimate.value, interval=estimate.interval),
        lowest_nats=float(nats[known].min()),
        highest_nats=float(nats[known].max()),
        explained=1.0 - float(left.var()) / varied if varied else 0.0,
        steps=len(x),
    )
