"""Where compiled code keeps the plan of one engine: two arrays that stay where they are.

To hand an array over costs 0.1 us and to get one back 0.4 us, more than most of what is computed, so kernels
are given these two, write into them, and return nothing. All places follow from the sizes at the front.
"""

from __future__ import annotations

import numpy as np

from tlt.sim.model.engines.compiled.cache import compiled
from tlt.traces.common.arrays import Floats, Ints

# The front of the whole numbers: sizes, then what an interval left.
REQUESTS, BINS, DEPTH, PLANNED, EVENTS, ALL_STEPS = range(6)
POSITION, FINISHED, REQUEST_STEPS, CROWDED, CONTEXT, ACCEPTED = range(6, 12)  # ACCEPTED and on: by position
# The front of the numbers.
SECONDS, EMITTED, HELD, PEAK, KV_S, FRONT = range(6)  # HELD: context tokens


class Memory:
    """Room for the plan of some requests, in bins, under draft configurations of some depth."""

    def __init__(self, requests: int, bins: int, depth: int) -> None:
        cells = requests * bins
        front = ACCEPTED + depth
        self.requests, self.bins, self.depth = requests, bins, depth
        self.ints: Ints = np.zeros(front + 4 * requests + 6 * cells, np.int64)
        self.ints[:3] = requests, bins, depth
        self.floats: Floats = np.zeros(FRONT + requests + (7 + depth) * cells)
        self.left = self.ints[POSITION:front]  # what an interval left, from POSITION on
        self.state = self.floats[:KV_S]  # SECONDS, EMITTED, HELD, PEAK
        self.order = self.ints[front : front + requests]
        self.shares = self.ints[front + 2 * requests : front + 4 * requests].reshape(2, requests)
        self.finish_s = self.floats[FRONT : FRONT + requests]


@compiled
def order_of(ints):
    """Return requests as indices into the submission, in order of their finish, [requests]."""
    front, n = ACCEPTED + ints[DEPTH], ints[REQUESTS]
    return ints[front : front + n]


@compiled
def finish_of(ints):
    """Return the engine steps at which they finish, [requests]."""
    front, n = ACCEPTED + ints[DEPTH], ints[REQUESTS]
    return ints[front + n : front + 2 * n]


@compiled
def shares_of(ints):
    """Return engine steps and accepted drafts of each request in an interval, [2, requests]."""
    front, n = ACCEPTED + ints[DEPTH], ints[REQUESTS]
    return ints[front + 2 * n : front + 4 * n].reshape((2, n))


@compiled
def stages_of(ints, floats, bins):
    """Return `until`, rate and variance of stages, [requests, bins] each; of drafts off there is one bin."""
    n = ints[REQUESTS]
    first, cells = ACCEPTED + ints[DEPTH] + 4 * n, n * bins
    whole, real = n * ints[BINS], FRONT + n
    return (
        ints[first : first + cells].reshape((n, bins)),
        floats[real : real + cells].reshape((n, bins)),
        floats[real + whole : real + whole + cells].reshape((n, bins)),
    )


@compiled
def span_of(ints, bins):
    """Return the tokens of each bin that requests had to emit when it was planned, [requests, bins]."""
    n = ints[REQUESTS]
    first = ACCEPTED + ints[DEPTH] + 4 * n + n * ints[BINS]
    return ints[first : first + n * bins].reshape((n, bins))


@compiled
def segments_of(ints, floats, depth):
    """Return whole numbers, [4, cells], numbers, [5, cells], and survivals, [cells, depth], of segments."""
    n = ints[REQUESTS]
    cells = n * ints[BINS]
    first, real = ACCEPTED + ints[DEPTH] + 4 * n + 2 * cells, FRONT + n + 2 * cells
    return (
        ints[first : first + 4 * cells].reshape((4, cells)),
        floats[real : real + 5 * cells].reshape((5, cells)),
        floats[real + 5 * cells : real + (5 + depth) * cells].reshape((cells, depth)),
    )


@compiled
def finish_s_of(ints, floats):
    """Return the seconds at which requests finish, [requests]."""
    return floats[FRONT : FRONT + ints[REQUESTS]]
