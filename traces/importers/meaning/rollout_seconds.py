"""Seconds of a logged generation that no draft shortens: waiting for tools, scoring, handing over.

With T the seconds of one generation, g_i those that response i was generated for and w_i those that it waited
for tools and scoring, drafts shorten g_i alone. T ends with one response, whose g is logged (decoding_last)
or lies between bounds:

    T - g_last                                  at the least, where it is logged
    T - g_longest                               else: the last response is generated for no longer
    T - max(g_shortest, g_longest - w_longest)  at the most: g_last + w_last is at least g_longest

Where g_last is logged another response may become the last once decoding is shorter: one that waits for
w_longest. Without any g the bounds are w_shortest and w_longest; where turns are stated and no waiting is, it
may be all of T. Seconds under names that nobody knows may lie within the rollout or beside it.
"""

from __future__ import annotations

from typing import NamedTuple

from tlt.traces.importers.meaning.key import Framework, Meaning

ROUNDED = 1.001  # one turn, in a mean that is printed rounded
BOUNDS: tuple[Meaning, ...] = (
    "decoding_last", "decoding_longest", "decoding_shortest",
    "waiting_longest", "waiting_shortest", "within_gen",
)  # fmt: skip


class Fixed(NamedTuple):
    """Seconds of a rollout that no draft shortens, at the least and at the most.

    longest_s: the most that any response was generated for, or may have been.
    """

    least_s: float
    most_s: float
    longest_s: float


def fixed_seconds(framework: Framework, values: dict[str, float], gen_s: float) -> Fixed:
    """Return the bounds, of all generations of a step; `gen_s` are its seconds, at least 0."""
    generations = generations_of(framework, values)
    one_s = gen_s / generations
    last, longest, shortest, waited, shortest_wait, within_s = (
        framework.stated(meaning, values) for meaning in BOUNDS
    )
    unstated = has_turns(framework, values) and waited is None
    if longest is not None:
        least = one_s - longest
        most = one_s - max(shortest or 0.0, 0.0 if unstated else longest - (waited or 0.0))
    else:
        least = (shortest_wait or 0.0) + (within_s or 0.0)
        most = one_s if unstated else (waited or 0.0) + (within_s or 0.0)
    if last is not None:
        least = one_s - last
        most = max(least, min(waited or 0.0, one_s - (shortest or 0.0)))
    least = min(max(least, 0.0), one_s)
    most = min(max(most, least) * generations + _unknown_within(framework, values, gen_s), gen_s)
    generated = one_s - least if longest is None else min(longest, one_s)
    return Fixed(least * generations, most, generated * generations)


def _unknown_within(framework: Framework, values: dict[str, float], gen_s: float) -> float:
    """Return the seconds of names that nobody knows, of each at most a rollout."""
    unknown = (values[name] for name in framework.kept(values) if framework.key_of(name) is None)
    return sum(seconds for seconds in unknown if 0 < seconds <= gen_s)


def generations_of(framework: Framework, values: dict[str, float]) -> float:
    """Return how many generations a step held; 1 where nothing is said."""
    return max(framework.stated("generations", values) or 1.0, 1.0)


def has_turns(framework: Framework, values: dict[str, float]) -> bool:
    """Return whether responses are said to have more than one turn."""
    turns, rounds = framework.stated("turns", values) or 0.0, framework.stated("rounds", values) or 0.0
    return turns > framework.single_turn * ROUNDED or rounds > ROUNDED
