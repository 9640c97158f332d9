"""Drafts of each request, counted engine step by engine step, until the request is done."""

from __future__ import annotations

from collections.abc import Container, Sequence

from tlt.realrun.engine.protocol import RequestDrafts
from tlt.realrun.workers.messages import AcceptanceCount
from tlt.traces.runs.request_acceptance import bin_of, lower_edge

Cell = tuple[int, int, int]
"""Request, bin of its position, drafts."""
ONE_STEP = 1 << 40  # a count holds engine steps above this bit and accepted drafts below: half the time


class RequestCounts:
    """Holds a count for each request, bin and number of drafts that there was."""

    def __init__(self) -> None:
        self._counts: dict[Cell, int] = {}

    def add(self, drafts: Sequence[RequestDrafts]) -> None:
        """Count one engine step."""
        counts = self._counts
        for each in drafts:
            cell = (each.request, bin_of(each.position), each.drafted)
            counts[cell] = counts.get(cell, 0) + ONE_STEP + each.accepted

    def take(self, pending: Container[int]) -> list[AcceptanceCount]:
        """Return the counts of all requests that are not `pending` any more, and forget them.

        A request that an engine step counts once more after it has finished is returned once more.
        """
        done = [cell for cell in self._counts if cell[0] not in pending]
        return [_told(cell, self._counts.pop(cell)) for cell in done]


def _told(cell: Cell, count: int) -> AcceptanceCount:
    request, number, drafted = cell
    request_steps, accepted = divmod(count, ONE_STEP)
    return AcceptanceCount(request, lower_edge(number), drafted, request_steps, accepted)
