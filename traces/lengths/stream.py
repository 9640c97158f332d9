"""The stream of prompt groups that schedules draw from, which do not take a trace step by step.

Simulated and live drivers draw from the same stream: group by group in the order of the trace. Who needs more
groups than the trace has begins it anew; `GroupStream.repeated` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tlt.traces.common.arrays import Ints
from tlt.traces.common.seeds import CLUSTER, sequence


class DrawnGroup(NamedTuple):
    """The `number`-th group of a run: rows of one step of the trace, a row a sample; one may come twice."""

    number: int
    step: int
    rows: Ints


class GroupStream:
    """Hands out groups."""

    def __init__(self, groups_by_step: Sequence[Ints], rng: np.random.Generator) -> None:
        """`groups_by_step` names the group of each row of each step; `rng` draws spare samples alone."""
        self.repeated = 0  # how often the trace was begun anew
        self._rng = rng
        self._by_step = groups_by_step
        self._groups: list[tuple[int, Ints]] = []
        for number, group in enumerate(groups_by_step):
            order = group.argsort(kind="stable")
            cuts = np.flatnonzero(np.diff(group[order])) + 1
            self._groups += [(number, rows) for rows in np.split(order, cuts) if len(rows)]
        self._next = 0
        self._drawn = 0

    def groups_of(self, step: int) -> tuple[int, int]:
        """Return the prompt groups of a step of the trace, and the responses of its largest group."""
        sizes = np.unique(self._by_step[step], return_counts=True)[1]
        return len(sizes), int(sizes.max(initial=0))

    def draw(self, groups: int, samples: int) -> list[DrawnGroup]:
        """Return the next groups, with `samples` rows each or more.

        A group that the trace gives fewer has spare ones, drawn from its own (modelled).
        """
        return [self._group(samples) for _ in range(groups)]

    def _group(self, samples: int) -> DrawnGroup:
        if self._next == len(self._groups):
            self._next = 0
            self.repeated += 1
        step, rows = self._groups[self._next]
        self._next += 1
        self._drawn += 1
        if len(rows) < samples:
            rows = np.concatenate([rows, self._rng.choice(rows, samples - len(rows))])
        return DrawnGroup(self._drawn - 1, step, rows)


def spare_samples(seed: int, workers: int) -> np.random.Generator:
    """Return the generator of spare samples in a run of so many workers, those that train included.

    It is the last child of the cluster's stream (tlt.sim.model.assembly has the others).
    """
    return np.random.default_rng(sequence(seed, CLUSTER).spawn(workers + 2)[-1])
