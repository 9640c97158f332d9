"""What each step of a replay begins with: the trace's own step, or groups drawn from it as a schedule asks.

A replay that goes on draws again what the steps that are kept have drawn, so that it stands where it stood.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec
import numpy as np

from tlt.realrun.driver.requests import Fresh
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.replay.workload import Workload
from tlt.traces.lengths.stream import GroupStream, spare_samples
from tltsched.events import StepBegan
from tltsched.schedules.base import Schedule


class Source(Protocol):
    """The requests of one policy's steps."""

    asked: dict[int, EngineRequest]
    """By id, of the step that was drawn last or, where steps carry over, of all."""

    def draw(self, step: int, schedule: Schedule) -> Fresh:
        """Return what the step begins with, where the schedule is at."""

    def again(self, began: Iterable[StepBegan]) -> None:
        """Draw what these steps, of an earlier call, began with."""

    def origin(self, step: int, request: int) -> tuple[int, int]:
        """Return the step of the trace, and the row in it, that a request of a step was made from."""


class StepSource:
    """Each step has the requests of its own step in the trace."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.asked: dict[int, EngineRequest] = {}

    def draw(self, step: int, schedule: Schedule) -> Fresh:
        """Return the step's requests."""
        del schedule
        requests = self._workload.rollouts[step]
        self.asked = {request.id: request for request in requests}
        return Fresh(requests, turns=self._workload.turns(step))

    def again(self, began: Iterable[StepBegan]) -> None:
        """Nothing was drawn."""

    def origin(self, step: int, request: int) -> tuple[int, int]:
        """Return the place of the request itself."""
        return step, request


class StreamSource:
    """Groups in the order of the trace, numbered through the run, as their requests are."""

    def __init__(self, workload: Workload, seed: int, workers: int) -> None:
        """`workers` are all of the run, those that train the policy included."""
        self._workload = workload
        names = [
            np.array([each.id if each.group < 0 else each.group for each in requests], np.int64)
            for requests in workload.rollouts
        ]
        self._stream = GroupStream(names, spare_samples(seed, workers))
        self._origins: list[tuple[int, int]] = []
        self.asked: dict[int, EngineRequest] = {}

    def draw(self, step: int, schedule: Schedule) -> Fresh:
        """Return as many groups as the schedule asks for."""
        groups, samples = self._stream.groups_of(step)
        fresh = self._draw(schedule.fresh_groups(groups), schedule.samples(samples))
        return Fresh(fresh, groups, samples)

    def again(self, began: Iterable[StepBegan]) -> None:
        """Draw what these steps, of an earlier call, began with."""
        for event in began:
            sizes: dict[int, int] = {}
            for request in event.requests:
                sizes[request.group] = sizes.get(request.group, 0) + 1
            for size in sizes.values():
                self._draw(1, size)

    def origin(self, step: int, request: int) -> tuple[int, int]:
        """Return the step of the trace, and the row in it, that a request was made from."""
        del step
        return self._origins[request]

    def _draw(self, groups: int, samples: int) -> list[EngineRequest]:
        fresh = []
        for drawn in self._stream.draw(groups, samples):
            for row in drawn.rows.tolist():
                asked = self._workload.rollouts[drawn.step][row]
                number = len(self._origins)
                fresh.append(msgspec.structs.replace(asked, id=number, group=drawn.number))
                self._origins.append((drawn.step, row))
        self.asked.update((request.id, request) for request in fresh)
        return fresh
