"""The stream of fresh prompts (tlt.traces.lengths.stream), and the requests that are alive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from tlt.sim.model.engines.running_batch import Submission
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.lengths.stream import DrawnGroup, GroupStream


class StepRequests(msgspec.Struct, frozen=True):
    """The responses of one RL step as arrays, [n]; a group is a number unique in the step."""

    group: Ints
    prompt_tokens: Ints
    response_tokens: Ints
    truncated: np.ndarray
    offset: Floats
    """What is known beforehand of each request's acceptance: added to the log exponent that is drawn."""

    session: Ints | None = None  # which session of a table each is; None: single turns

    def rows(self, chosen: Ints) -> StepRequests:
        """Return some of the responses, [m]."""
        columns: list[Any] = [None if column is None else column[chosen] for column in self._columns()]
        return StepRequests(*columns)

    def _columns(self) -> list[Any]:
        return [getattr(self, field) for field in self.__struct_fields__]

    @staticmethod
    def joined(parts: Sequence[StepRequests]) -> StepRequests:
        """Return the responses of one part or more, one behind the other."""
        rows = zip(*(part._columns() for part in parts), strict=True)
        columns: list[Any] = [None if row[0] is None else np.concatenate(row) for row in rows]
        return StepRequests(*columns)


class Stream:
    """Hands out fresh requests."""

    def __init__(self, steps: Sequence[StepRequests], rng: np.random.Generator) -> None:
        """`rng` draws the lengths of spare samples alone."""
        self.steps = steps
        self._rng = rng

    @cached_property
    def _groups(self) -> GroupStream:
        """The stream of groups; only schedules that draw need it."""
        return GroupStream([step.group for step in self.steps], self._rng)

    @property
    def repeated(self) -> int:
        """How often the trace was begun anew."""
        return self._groups.repeated if "_groups" in vars(self) else 0

    def groups_of(self, step: int) -> tuple[int, int]:
        """Return the prompt groups of a step of the trace, and the responses of its largest group."""
        return self._groups.groups_of(step)

    def draw(self, groups: int, samples: int) -> StepRequests:
        """Return the next groups, numbered through the run, with `samples` responses each or more."""
        parts = [self._requests(drawn) for drawn in self._groups.draw(groups, samples)]
        if not parts:
            none = np.empty(0, np.int64)
            return StepRequests(none, none, none, none.astype(bool), np.empty(0), none)
        return StepRequests.joined(parts)

    def _requests(self, drawn: DrawnGroup) -> StepRequests:
        group = np.full(len(drawn.rows), drawn.number)
        return msgspec.structs.replace(self.steps[drawn.step].rows(drawn.rows), group=group)


class Requests:
    """What the driver knows of each request, as arrays over ids, [n]."""

    def __init__(self, bins: int) -> None:
        self.group: Ints = np.empty(0, np.int64)
        self.prompt_tokens = self.group
        self.length = self.group
        self.truncated = np.empty(0, bool)
        self.exponent: Floats = np.empty((0, bins))  # of acceptance, [n, bins]
        self.emitted = self.group  # up to the last report
        self.target = self.group  # tokens at which it leaves its worker
        self.worker = self.group  # the last one; -1: none yet
        self.start_s: Floats = np.empty(0)  # of the generation that counts; -1: not begun
        self.finish_s: Floats = np.empty(0)
        # Policy updates in the weights under which that generation began, and ended; -1: not begun.
        self.born = self.group
        self.ended = self.group

    def add(self, fresh: StepRequests, exponent: Floats) -> Ints:
        """Take in fresh requests with their exponents, [n, bins]; returns their ids, [n]."""
        n, first = len(fresh.group), len(self.group)
        nothing = np.full(n, -1)
        added = (
            ("group", fresh.group), ("prompt_tokens", fresh.prompt_tokens), ("length", fresh.response_tokens),
            ("truncated", fresh.truncated), ("exponent", exponent), ("emitted", np.zeros(n, np.int64)),
            ("target", fresh.response_tokens), ("worker", nothing), ("start_s", np.full(n, -1.0)),
            ("finish_s", np.zeros(n)), ("born", nothing), ("ended", nothing),
        )  # fmt: skip
        for field, values in added:
            setattr(self, field, np.concatenate([getattr(self, field), values]))
        return np.arange(first, first + n)

    def submission(self, ids: Ints, kv_kept: bool) -> Submission:
        """Return requests, [n], as an engine takes them."""
        return Submission(
            ids=ids,
            group=self.group[ids],
            prompt_tokens=self.prompt_tokens[ids],
            length=self.target[ids],
            exponent=self.exponent[ids],
            emitted=self.emitted[ids],
            kv_kept=np.full(len(ids), kv_kept),
        )

    def begin(self, ids: Ints, worker: int, version: int, now_s: float) -> None:
        """Note that requests, [n], go to a worker, whose weights have seen so many policy updates."""
        self.worker[ids] = worker
        first = ids[self.born[ids] < 0]
        self.born[first], self.start_s[first] = version, now_s

    def finish(self, ids: Ints, version: int, at_s: Floats | float) -> None:
        """Note that requests, [n], were done at these times."""
        self.finish_s[ids], self.ended[ids] = at_s, version

    def restart(self, ids: Ints) -> int:
        """Put requests, [n], back to their prompts; returns the tokens that are thrown away."""
        wasted = int(self.emitted[ids].sum())
        self.emitted[ids] = 0
        self.born[ids], self.start_s[ids] = -1, -1.0
        return wasted
