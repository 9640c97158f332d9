"""Seconds of a logged generation that no draft shortens: waiting for tools, scoring, handing over.

With T the seconds of one generation, g_i those that response i was generated for and w_i those that it waited
for tools and scoring, drafts shorten g_i alone. T ends with one response, whose g is logged (decoding_last)
or lies between bounds:

    T - g_last                              known
    T - g_longest                           at the least: the last response is generated for no longer
    T - max(g_mean, g_longest - w_longest)  at the most: g_last + w_last is at least g_longest, and a response
                                            that ends last is not one that is generated for less than the mean

Without any g between w_shortest and w_longest; where turns are stated and no waiting is, nothing is known and
it may be all of T. Seconds under names that nobody knows may be of it as well, if they do not fit beside the
phases.
"""

from __future__ import annotations

from typing import NamedTuple

from tlt.traces.importers.meaning.key import PHASE_NAMES, Framework

CLOSE = 0.01  # of a step: times of several clocks do not add up to the digit


class Fixed(NamedTuple):
    """Seconds of a rollout that no draft shortens, at the least and at the most."""

    least_s: float
    most_s: float


def fixed_seconds(framework: Framework, values: dict[str, float], gen_s: float) -> Fixed:
    """Return the bounds, of all generations of a step; `gen_s` are its seconds, at least 0."""
    generations = generations_of(framework, values)
    one_s = gen_s / generations
    last, longest, mean, waited, shortest_wait = (
        framework.stated(meaning, values)
        for meaning in (
            "decoding_last", "decoding_longest", "decoding_mean", "waiting_longest", "waiting_shortest",
        )
    )  # fmt: skip
    within_s = framework.stated("within_gen", values) or 0.0
    unstated = has_turns(framework, values) and waited is None
    if last is not None:
        least = most = one_s - last
    elif longest is not None:
        least = one_s - longest
        shortest = 0.0 if unstated else longest - (waited or 0.0)
        most = one_s - max(mean or 0.0, shortest)
    else:
        least = (shortest_wait or 0.0) + within_s
        most = one_s if unstated else (waited or 0.0) + within_s
    least = min(max(least, 0.0), one_s)
    unknown_s = _unknown_within(framework, values)
    return Fixed(least * generations, min(max(most, least) * generations + unknown_s, gen_s))


def _unknown_within(framework: Framework, values: dict[str, float]) -> float:
    """Return the seconds of names that nobody knows and that do not fit into a step beside its phases.

    They lie within one of them, and that may be the rollout.
    """
    step_s = framework.stated("step", values)
    if step_s is None:
        return 0.0
    beside_s = step_s - sum(framework.stated(phase, values) or 0.0 for phase in PHASE_NAMES[1:])
    unknown = (values[name] for name in framework.kept(values) if framework.key_of(name) is None)
    return sum(seconds for seconds in unknown if beside_s + CLOSE * step_s < seconds <= step_s)


def generations_of(framework: Framework, values: dict[str, float]) -> float:
    """Return how many generations a step held; 1 where nothing is said."""
    return max(framework.stated("generations", values) or 1.0, 1.0)


def has_turns(framework: Framework, values: dict[str, float]) -> bool:
    """Return whether responses are said to have more than one turn."""
    turns = framework.stated("turns", values)
    return turns is not None and turns > framework.single_turn * 1.001
