"""Successive halving: all designs on few RL steps, those that hold up on more, with common random numbers.

All designs roll out the same lengths under the same seeds, so few steps tell them apart. Few steps flatter
schedules that put long responses off, and burden those that start with empty engines. So a design competes
with those of its own schedule until the last round, which runs all steps. The best of each hardware stays
too: the error of its step times is its own, and may be larger than what it is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tlt.sim.advise.sensitivity import first_steps
from tlt.sim.parallel.timing import Timing
from tlt.sim.search.space import Candidate
from tlt.sim.simulation import Simulation
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.plan import SearchRound

FIRST_ROUNDS = (1, 4)  # RL steps
KEPT = 0.2  # of the designs of a schedule, in each round
LEAST_KEPT = 2
Objective = Callable[[Candidate, Timing], float]
Simulate = Callable[[Sequence[Simulation]], list[Timing]]


class Tried(msgspec.Struct, frozen=True):
    """A design as far as it came."""

    candidate: Candidate
    timing: Timing
    steps: int
    objective: float  # smaller is better


def halve(
    candidates: Sequence[Candidate], trace: Trace, objective: Objective, simulate: Simulate
) -> tuple[list[Tried], list[Tried], list[SearchRound]]:
    """Return the designs that ran all steps, the best first; those that were dropped; and the rounds."""
    steps = int(trace.rows["step"].nunique())
    counts = [*(count for count in FIRST_ROUNDS if count < steps), steps]
    left, dropped, rounds = list(candidates), [], []
    tried: list[Tried] = []
    for count in counts:
        part = first_steps(trace, count)
        timings = simulate([each.simulation.on(part) for each in left])
        tried = sorted(
            (
                Tried(each, timing, count, objective(each, timing))
                for each, timing in zip(left, timings, strict=True)
            ),
            key=lambda each: each.objective,
        )
        rounds.append(SearchRound(steps=count, designs=len(left)))
        if count < steps:
            kept = _kept(tried)
            dropped += [each for each in tried if each not in kept]
            left = [each.candidate for each in kept]
    return tried, dropped, rounds


def _kept(tried: list[Tried]) -> list[Tried]:
    """Return the best KEPT of each schedule, and the best of each hardware under its best schedule."""
    schedules = list(dict.fromkeys(each.candidate.design.schedule for each in tried))
    best = []
    for schedule in schedules:
        own = [each for each in tried if each.candidate.design.schedule == schedule]
        best += own[: max(LEAST_KEPT, round(KEPT * len(own)))]
    return [*best, *(each for each in best_by_hardware(tried) if each not in best)]


def best_by_hardware(tried: Sequence[Tried]) -> list[Tried]:
    """Return the best design of each hardware, in the order given."""
    best: dict[str, Tried] = {}
    for each in tried:
        best.setdefault(each.candidate.design.hardware, each)
    return list(best.values())
