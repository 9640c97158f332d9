"""How requests differ in acceptance: a log-normal exponent each, and the mean of survivals over some of them.

A request of log-exponent x has the survival s ** exp(x), s being that of the median request: 0 is the median,
above it drafts are accepted less often. With the hazard h = -ln s it is exp(-h exp(x)).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log, sqrt

import msgspec

# Gauss-Hermite quadrature of a standard normal, five nodes: exact for polynomials of degree 9.
NODES = (-2.8569700138728056, -1.355626179974266, 0.0, 1.355626179974266, 2.8569700138728056)
WEIGHTS = (
    0.011257411327720683,
    0.22207592200561266,
    0.5333333333333333,
    0.22207592200561266,
    0.011257411327720683,
)
LARGEST_HAZARD = 1e6  # of a position that is never accepted
MOST_ITERATIONS = 60


class Exponents(msgspec.Struct, frozen=True, gc=False):
    """The log-exponents of a batch, taken as normal: those of its requests and what is not known of each."""

    mean: float
    variance: float

    def nodes(self) -> tuple[float, ...]:
        """Return the exponents at which the batch is looked at, with WEIGHTS."""
        spread = sqrt(max(self.variance, 0.0))
        return tuple([exp(self.mean + spread * node) for node in NODES])


def mean(at_nodes: Iterable[float]) -> float:
    """Return the mean over a batch of what is given at its nodes."""
    (w0, w1, w2, _, _), (v0, v1, v2, v3, v4) = WEIGHTS, at_nodes  # weights are symmetric
    return w0 * (v0 + v4) + w1 * (v1 + v3) + w2 * v2


def mean_survival(hazard: float, nodes: tuple[float, ...]) -> float:
    """Return the mean over a batch of the chance that a position of this hazard is accepted."""
    e0, e1, e2, e3, e4 = nodes
    return mean(
        (exp(-hazard * e0), exp(-hazard * e1), exp(-hazard * e2), exp(-hazard * e3), exp(-hazard * e4))
    )


def hazard_of(survival: float, nodes: tuple[float, ...]) -> float:
    """Return the hazard whose mean survival over a batch is this one; at most LARGEST_HAZARD.

    Newton's iteration on -ln of the mean, which is concave and rises: from below it never overshoots.
    """
    if survival >= 1:
        return 0.0
    if survival <= 0:
        return LARGEST_HAZARD
    target = -log(survival)
    (w0, w1, w2, _, _), (e0, e1, e2, e3, e4) = WEIGHTS, nodes  # weights are symmetric
    hazard = target / mean(nodes)
    for _ in range(MOST_ITERATIONS):
        p0, p1, p2 = w0 * exp(-hazard * e0), w1 * exp(-hazard * e1), w2 * exp(-hazard * e2)
        p3, p4 = w1 * exp(-hazard * e3), w0 * exp(-hazard * e4)
        level = p0 + p1 + p2 + p3 + p4
        if level <= 0 or hazard >= LARGEST_HAZARD:
            return LARGEST_HAZARD
        slope = p0 * e0 + p1 * e1 + p2 * e2 + p3 * e3 + p4 * e4
        step = (target + log(level)) * level / slope
        hazard += step
        if step <= 1e-4 * hazard:  # the error left is of the order of its square
            break
    return min(hazard, LARGEST_HAZARD)


def accepted_in_a_row(hazard: float, depth: int) -> float:
    """Return the accepted drafts where each of `depth` in a row has this hazard (geometric)."""
    rate = exp(-hazard)
    return depth if rate >= 1 else rate * (1 - rate**depth) / (1 - rate)


def mean_accepted(hazard: float, depth: int, nodes: tuple[float, ...]) -> float:
    """Return the mean over a batch of accepted_in_a_row."""
    return mean([accepted_in_a_row(hazard * node, depth) for node in nodes])


def hazard_of_accepted(accepted: float, depth: int, nodes: tuple[float, ...]) -> float:
    """Return the hazard of each of `depth` drafts in a row under which this is their mean.

    By false position in the log of the hazard and by halving it, in turn.
    """
    low, high = -14.0, 7.0  # a rate of 1 - 1e-6, and of none
    above = mean_accepted(exp(low), depth, nodes) - accepted
    if above <= 0:
        return 0.0
    below = mean_accepted(exp(high), depth, nodes) - accepted
    if below >= 0:
        return exp(high)
    for turn in range(MOST_ITERATIONS):
        middle = (low + high) / 2 if turn % 2 else (low * below - high * above) / (below - above)
        excess = mean_accepted(exp(middle), depth, nodes) - accepted
        if abs(excess) <= 1e-5 * accepted:
            break
        if excess > 0:
            low, above = middle, excess
        else:
            high, below = middle, excess
    return exp(middle)
