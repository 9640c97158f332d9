"""How requests differ in acceptance: a log-normal exponent each, and the mean of survivals over some of them.

A request of log-exponent x has the survival s ** exp(x), s being that of the median request: 0 is the median,
above it drafts are accepted less often. With the hazard h = -ln s it is exp(-h exp(x)).

The functions take and return numbers and columns of them alone, so that a driver may compile them as they are
(tltsched.policies.estimators.arithmetic).
"""

from __future__ import annotations

from array import array
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
LARGEST_TREE_HAZARD = 1e3  # of each position of a tree
FAR_HAZARD = 3.0  # a start from above is taken up to here: farther out all exponentials may have vanished
MOST_ITERATIONS = 60


class Exponents(msgspec.Struct, frozen=True, gc=False):
    """The log-exponents of a batch, taken as normal: those of its requests and what is not known of each."""

    mean: float
    variance: float

    def nodes(self) -> tuple[float, ...]:
        """Return the exponents at which the batch is looked at, with WEIGHTS."""
        return nodes_of(self.mean, self.variance)


def nodes_of(middle: float, variance: float) -> tuple[float, float, float, float, float]:
    """Return the exponents at which a batch of this mean and variance is looked at."""
    spread, (n0, n1, n2, n3, n4) = sqrt(max(variance, 0.0)), NODES
    return (
        exp(middle + spread * n0), exp(middle + spread * n1), exp(middle + spread * n2),
        exp(middle + spread * n3), exp(middle + spread * n4),
    )  # fmt: skip


def mean(at_nodes: tuple[float, ...]) -> float:
    """Return the mean over a batch of what is given at its nodes."""
    (w0, w1, w2, _, _), (v0, v1, v2, v3, v4) = WEIGHTS, at_nodes  # weights are symmetric
    return w0 * (v0 + v4) + w1 * (v1 + v3) + w2 * v2


def mean_survival(hazard: float, nodes: tuple[float, ...]) -> float:
    """Return the mean over a batch of the chance that a position of this hazard is accepted."""
    e0, e1, e2, e3, e4 = nodes
    return mean(
        (exp(-hazard * e0), exp(-hazard * e1), exp(-hazard * e2), exp(-hazard * e3), exp(-hazard * e4))
    )


def hazard_of(survival: float, nodes: tuple[float, ...], start: float = 0.0) -> float:
    """Return the hazard whose mean survival over a batch is this one; at most LARGEST_HAZARD.

    Newton's iteration on -ln of the mean, which is concave and rises: from below it never overshoots, and
    from above it is below after a step. `start` is a hazard near it, if one is known.
    """
    if survival >= 1:
        return 0.0
    if survival <= 0:
        return LARGEST_HAZARD
    target = -log(survival)
    (w0, w1, w2, _, _), (e0, e1, e2, e3, e4) = WEIGHTS, nodes  # weights are symmetric
    hazard = start if 0.0 < start < FAR_HAZARD else target / mean(nodes)
    for _ in range(MOST_ITERATIONS):
        p0, p1, p2 = w0 * exp(-hazard * e0), w1 * exp(-hazard * e1), w2 * exp(-hazard * e2)
        p3, p4 = w1 * exp(-hazard * e3), w0 * exp(-hazard * e4)
        level = p0 + p1 + p2 + p3 + p4
        if level <= 0 or hazard >= LARGEST_HAZARD:
            return LARGEST_HAZARD
        slope = p0 * e0 + p1 * e1 + p2 * e2 + p3 * e3 + p4 * e4
        step = (target + log(level)) * level / slope
        hazard = max(hazard + step, 0.0)
        if abs(step) <= 1e-4 * hazard:  # the error left is of the order of its square
            break
    return min(hazard, LARGEST_HAZARD)


def accepted_in_a_row(hazard: float, depth: int) -> float:
    """Return the accepted drafts where each of `depth` in a row has this hazard (geometric)."""
    rate = exp(-hazard)
    return depth if rate >= 1 else rate * (1 - rate ** float(depth)) / (1 - rate)


def mean_accepted(hazard: float, depth: int, nodes: tuple[float, ...]) -> float:
    """Return the mean over a batch of accepted_in_a_row."""
    e0, e1, e2, e3, e4 = nodes
    v0, v1 = accepted_in_a_row(hazard * e0, depth), accepted_in_a_row(hazard * e1, depth)
    v3, v4 = accepted_in_a_row(hazard * e3, depth), accepted_in_a_row(hazard * e4, depth)
    return mean((v0, v1, accepted_in_a_row(hazard * e2, depth), v3, v4))


def tokens_of_trees(
    hazards: array[float], depths: array[int], nodes: tuple[float, ...], tokens: array[float]
) -> None:
    """Write the harmonic mean over a batch of 1 + accepted_in_a_row, for each tree."""
    for tree in range(len(hazards)):
        hazard, depth = hazards[tree], depths[tree]
        slow = 0.0
        for k in range(len(WEIGHTS)):
            rate = exp(-hazard * nodes[k])
            row = depth if rate >= 1 else rate * (1.0 - rate ** float(depth)) / (1.0 - rate)
            slow += WEIGHTS[k] / (1.0 + row)
        tokens[tree] = 1.0 / slow


def tokens_of_chains(hazards: array[float], nodes: tuple[float, ...], tokens: array[float]) -> None:
    """Write the harmonic mean over a batch of 1 + the survivals up to each position."""
    e0, e1, e2, e3, e4 = nodes
    t0 = t1 = t2 = t3 = t4 = 1.0
    for position in range(len(hazards)):
        hazard = hazards[position]
        t0 += exp(-hazard * e0)
        t1 += exp(-hazard * e1)
        t2 += exp(-hazard * e2)
        t3 += exp(-hazard * e3)
        t4 += exp(-hazard * e4)
        tokens[position] = 1.0 / mean((1.0 / t0, 1.0 / t1, 1.0 / t2, 1.0 / t3, 1.0 / t4))


def hazard_of_accepted(accepted: float, depth: int, nodes: tuple[float, ...], start: float = 0.0) -> float:
    """Return the hazard of each of `depth` drafts in a row under which this is their mean.

    Newton's iteration as in `hazard_of`: the mean is a sum of exponentials of the hazard here too.
    """
    if accepted >= depth:
        return 0.0
    if accepted <= 0:
        return LARGEST_TREE_HAZARD
    hazard = start if 0.0 < start < FAR_HAZARD else 0.3
    for _ in range(MOST_ITERATIONS):
        level = slope = 0.0
        for k in range(len(WEIGHTS)):
            weight, node = WEIGHTS[k], nodes[k]
            rate = exp(-hazard * node)
            refused = 1.0 - rate
            if refused < 1e-9:  # the limit of what follows
                level += weight * depth
                slope += weight * node * depth * (depth + 1) / 2
                continue
            last = rate ** float(depth)
            row = rate * (1.0 - last) / refused  # accepted_in_a_row
            level += weight * row
            slope += weight * node * (row - depth * rate * last) / refused
        if level <= 0 or hazard >= LARGEST_TREE_HAZARD:
            return LARGEST_TREE_HAZARD
        step = log(level / accepted) * level / slope
        hazard = max(hazard + step, 0.0)
        if abs(step) <= 1e-3 * hazard:
            break
    return min(hazard, LARGEST_TREE_HAZARD)
