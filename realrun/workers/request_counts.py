"""Drafts of each request, counted engine step by engine step, until the request is done."""

from __future__ import annotations

from collections.abc import Container, Sequence

from tlt.realrun.engine.protocol import RequestDrafts
from tlt.realrun.workers.messages import AcceptanceCount
from tlt.traces.runs.request_acceptance import from_token

Cell = tuple[int, int, int]
"""Request, lower edge of the bin of its position, drafts."""


class RequestCounts:
    """Holds a cell for each request, bin and number of drafts that there was."""

    def __init__(self) -> None:
        self._cells: dict[Cell, tuple[int, int]] = {}  # engine steps, accepted drafts

    def add(self, drafts: Sequence[RequestDrafts]) -> None:
        """Count one engine step."""
        cells = self._cells
        for request, position, drafted, accepted in drafts:
            cell = (request, from_token(position), drafted)
            steps, before = cells.get(cell, (0, 0))
            cells[cell] = (steps + 1, before + accepted)

    def take(self, pending: Container[int]) -> list[AcceptanceCount]:
        """Return the counts of all requests that are not `pending` any more, and forget them.

        A request that an engine step counts once more after it has finished is returned once more.
        """
        done = [cell for cell in self._cells if cell[0] not in pending]
        return [AcceptanceCount(*cell, *self._cells.pop(cell)) for cell in done]
