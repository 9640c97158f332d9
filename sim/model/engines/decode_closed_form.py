"""The closed form of a batch that decodes under one draft configuration until all of its requests are done.

A request goes through stages, in each of which it emits as many tokens an engine step. Between two events, a
finish or a change of stage, an engine step costs F(batch) + kv x (sum of contexts), where every running
request adds its rate to the context. So the time of each event follows from prefix sums, and the state at any
engine step in between from one evaluation. No cost grows with tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tlt.traces.common.arrays import Floats, Ints


class State(NamedTuple):
    """How far a trajectory has come."""

    finished: int
    seconds: float
    request_steps: int
    emitted_tokens: float
    context_tokens: float  # of those still running


START = State(0, 0.0, 0, 0.0, 0.0)


class Stages(NamedTuple):
    """How requests go through the bins of their responses, [n, stages] each; one stage where none differ.

    `until` counts engine steps from the start up to the end of each stage and never falls; the last one is
    the finish. A stage that ends where it begins is passed over.
    """

    until: Ints
    tokens_per_engine_step: Floats
    variance: Floats  # of these

    def of(self, rows: Ints | slice) -> Stages:
        """Return the stages of some requests."""
        return Stages(self.until[rows], self.tokens_per_engine_step[rows], self.variance[rows])

    def engine_steps(self, position: Ints | int) -> Ints:
        """Return how many of the first `position` engine steps fall into each stage, [n, stages]."""
        done: Ints = np.minimum(self.until, np.asarray(position)[..., None])
        if done.shape[1] > 1:
            done[:, 1:] -= done[:, :-1].copy()
        return done


class Segments(NamedTuple):
    """What runs between two events, [events] each, and the finishes of requests in order of them, [n]."""

    step: Ints  # of the engine, counted from the start of the trajectory, at which each ends
    start: Ints
    running: Ints
    request_steps: Ints  # up to the end of each
    growth: Floats  # contexts are context + growth x engine step
    context: Floats
    engine_step_s: Floats  # at engine step 0
    seconds: Floats  # up to the end of each
    emitted: Floats  # the same
    survival: Floats  # P(drafts up to each position are accepted), summed over what runs, [events, depth]
    finish_engine_step: Ints
    finish_s: Floats


def segments(
    stages: Stages, context_tokens: Floats, survival: Floats, fixed_s: Floats, context_s_per_token: float
) -> Segments:
    """Return the segments of stages in order of the finish; `fixed_s[b]` is F at batch b.

    survival: P(drafts up to each position are accepted) of requests by stage, [n, stages, depth].
    """
    step, of_finish, jumps = _events(stages, context_tokens, survival)
    # In the segment before an event there is what this and later ones take away.
    held = -jumps[::-1].cumsum(axis=0)[::-1]
    running = np.rint(held[:, 0]).astype(np.int64)
    growth, context = held[:, 1], held[:, 2]
    start = np.concatenate([_FIRST, step[:-1]])
    engine_step_s = fixed_s[running] + context_s_per_token * context
    lengths = step - start
    # sum of the engine step numbers j in [start, step): each adds kv x growth x j seconds
    engine_step_sums = (step + start - 1) * lengths * 0.5
    seconds = (lengths * engine_step_s + context_s_per_token * growth * engine_step_sums).cumsum()
    return Segments(
        step, start, running, (lengths * running).cumsum(), growth, context, engine_step_s, seconds,
        (lengths * growth).cumsum(), held[:, 3:], stages.until[:, -1], seconds[of_finish],
    )  # fmt: skip


class Trajectory:
    """Where a batch is at any engine step.

    `finish_engine_step` counts engine steps from the start of the trajectory, `finish_s` seconds, both of
    requests in order of their finish, [n].
    """

    def __init__(self, segments: Segments, context_s_per_token: float) -> None:
        self.finish_engine_step, self.finish_s = segments.finish_engine_step, segments.finish_s
        self.kv_s = context_s_per_token
        self._segments = segments
        self.request_steps = int(segments.request_steps[-1])
        self.peak_tokens = float((segments.context + segments.growth * segments.step).max())

    def finished(self, engine_step: int) -> int:
        """Return how many requests are done after `engine_step` engine steps."""
        return int(self.finish_engine_step.searchsorted(engine_step, side="right"))

    def held_at(self, engine_step: int) -> tuple[Floats, int]:
        """Return the survivals of the running requests, summed over them, [depth], and how many they are."""
        segment = self._segment(engine_step)
        return self._segments.survival[segment], int(self._segments.running[segment])

    def _segment(self, engine_step: int) -> int:
        return int(self._segments.step.searchsorted(engine_step, side="right"))

    def at(self, engine_step: int, done: int) -> State:
        """Return the state after `engine_step` engine steps; `done` = finished(engine_step), as known."""
        segment = self._segment(engine_step)
        seconds = float(self._segments.seconds[segment - 1]) if segment else 0.0
        requests = int(self._segments.request_steps[segment - 1]) if segment else 0
        emitted = float(self._segments.emitted[segment - 1]) if segment else 0.0
        if done == len(self.finish_engine_step):
            return State(done, seconds, requests, emitted, 0.0)
        start = int(self._segments.start[segment])
        engine_steps = engine_step - start
        growth = float(self._segments.growth[segment])
        seconds += (
            engine_steps * float(self._segments.engine_step_s[segment])
            + self.kv_s * growth * (engine_step + start - 1) * engine_steps * 0.5
        )
        requests += engine_steps * int(self._segments.running[segment])
        context = float(self._segments.context[segment]) + growth * engine_step
        return State(done, seconds, requests, emitted + engine_steps * growth, context)

    def engine_step_ending(self, seconds: float, after: int, until: int) -> int:
        """Return the first engine step in [after, until] that ends at `seconds` or later, up to rounding."""
        low, high = after, until
        while low < high:
            engine_step = (low + high) // 2
            if self.at(engine_step, self.finished(engine_step)).seconds >= seconds * (1.0 - 1e-12):
                high = engine_step
            else:
                low = engine_step + 1
        return low

    def engine_step_below(self, min_requests: int) -> int:
        """Return the engine step after which fewer than `min_requests` are running."""
        return int(self.finish_engine_step[len(self.finish_engine_step) - max(min_requests, 1)])

    def engine_step_of_context(self, limit_tokens: float) -> int | None:
        """Return the last engine step at which the running contexts fit; None: they always do."""
        if self.peak_tokens <= limit_tokens:
            return None
        parts = self._segments
        segment = int((parts.context + parts.growth * parts.step > limit_tokens).argmax())
        engine_step = int((limit_tokens - self._segments.context[segment]) / self._segments.growth[segment])
        return max(engine_step, int(self._segments.start[segment]))


_FIRST = np.zeros(1, np.int64)


def _events(stages: Stages, context_tokens: Floats, survival: Floats) -> tuple[Ints, Ints, Floats]:
    """Return the engine step of each event in order, [events]; which one each finish is, [n]; and the jumps.

    Jumps, [events, 3 + depth], are what changes with an event: requests, their rates, their contexts at
    engine step 0 along the line that they follow from then on, and their survivals.
    """
    until, rate = stages.until, stages.tokens_per_engine_step
    n, count = until.shape
    finish = until[:, -1]
    if count == 1:
        return finish, np.arange(n), -_held(np.ones(n), rate[:, 0], context_tokens, survival[:, 0])
    # Changes that happen at once, or not before the finish, are no events.
    leaves = (until[:, :-1] > 0) & (until[:, :-1] < finish[:, None])
    row, stage = np.nonzero(leaves)
    at, slower = until[row, stage], rate[row, stage] - rate[row, stage + 1]
    last = (until[:, :-1] < finish[:, None]).sum(axis=1)
    bent = np.bincount(row, slower * at, n)
    every = np.arange(n)
    jumps = np.concatenate(
        [
            -_held(np.ones(n), rate[every, last], context_tokens + bent, survival[every, last]),
            _held(np.zeros(len(row)), -slower, slower * at, survival[row, stage + 1] - survival[row, stage]),
        ]
    )
    step = np.concatenate([finish, at])
    order = step.argsort(kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return step[order], place[:n], jumps[order]


def _held(requests: Floats, rate: Floats, context: Floats, survival: Floats) -> Floats:
    """Return columns of jumps, [n, 3 + depth]."""
    return np.column_stack([requests, rate, context, survival])
