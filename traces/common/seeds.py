"""Every random stream of the project, so that no two draws share numbers by accident.

A stream is a prefix of SeedSequence's spawn key under the seed of a run; what follows it (a step, a worker)
numbers its members. Two streams whose whole keys are equal draw the same numbers from the same seed. The
prefixes are part of the results: a changed one changes figures. Where two are equal it says below whether one
run uses both.

Equal keys that meet in one run, where draws are not independent of one another (the figures bear it: one is a
factor of step times, the other the lengths of a few prompts; or a choice of text and a choice of problem):
    the lengths of step 2 and COST_FACTORS, of step 3 and ADVICE, of step 4 and CHOICE, where a simulation
        generates its lengths;
    HEAD_BATCHES of worker r and PROBLEMS of index r, in each step of a training run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tlt.plugin.drafting import scheduler_rng as scheduler_rng  # of one worker's scheduler, in every world


class Stream(NamedTuple):
    """What is drawn, and the beginning of its spawn key."""

    what: str
    prefix: tuple[int, ...]


# --- lengths: the step alone is the key, as SeedSequence.spawn would number the steps -----------------------
LENGTHS = Stream("generated lengths and prompt lengths, by step", ())
SESSIONS = Stream("generated sessions, by step", (7,))
LOGGED_LENGTHS = Stream("lengths with the moments that a log gives, by step", ())

# --- a simulation -------------------------------------------------------------------------------------------
CLUSTER = Stream("parent of each worker's acceptance and of the cluster's two generators", (1,))
COST_FACTORS = Stream("factors of step-time coefficients within their error", (2,))  # equal to PROMPTS
ADVICE = Stream("step times under which the advice for each batch loses", (3,))  # equal to RESPONSES
# Equal to one another and to HEAD_BATCHES, PROBLEMS: each belongs to a command of its own.
BEST_DRAFT_MAP = Stream("factors under which a cell of the map loses", (4,))
CHOICE = Stream("uncertain inputs of the finalists of a search", (4,))
# Equal to WARM_UP_PROBLEMS: each belongs to a command of its own.
EXPORT = Stream("factors under which a row of an export loses", (5,))
RESAMPLED_PROMPTS = Stream("prompts of further steps after the one that was observed", (5, 1))

# --- a live engine ------------------------------------------------------------------------------------------
PROMPTS = Stream("prompts of a replay, by rollout", (2,))
RESPONSES = Stream("sampling seeds of a training run or a natural replay, by step and request", (3,))
HEAD_BATCHES = Stream("what a worker trains the head on, by step and worker", (4,))
PROBLEMS = Stream("problems of a training run, by step and index; own prompts by pass", (4,))
WARM_UP_PROBLEMS = Stream("problems that a policy is warmed up on, by step and index", (5,))
HELD_OUT_PROBLEMS = Stream("problems that nothing is trained on, by step and index", (6,))


def sequence(seed: int, stream: Stream, *member: int) -> np.random.SeedSequence:
    """Return the seed sequence of a member of a stream."""
    return np.random.SeedSequence(seed, spawn_key=(*stream.prefix, *member))


def generator(seed: int, stream: Stream, *member: int) -> np.random.Generator:
    """Return the generator of a member of a stream."""
    return np.random.default_rng(sequence(seed, stream, *member))


def response_seed(seed: int, step: int, request: int) -> int:
    """Return the sampling seed of one response, so that it does not depend on which worker makes it."""
    return int(sequence(seed, RESPONSES, step, request).generate_state(1)[0])
