"""Requests of an engine: who they are, and their drafts, counted until they are done."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import msgspec

from .engine_step import RequestDrafts

FIRST_BIN_TOKENS = 128
PROMPT_BITS = (1 << 53) - 1  # what every reader of JSON keeps; hashes of integers are alike in all processes

Cell = tuple[int, int, int]
"""Request, bin of its position, drafts."""
ONE_STEP = 1 << 40  # a count holds engine steps above this bit and accepted drafts below: half the time


class AcceptanceCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Engine steps that verified `depth` drafts of a request in one bin of its position."""

    request: int
    from_token: int
    depth: int
    request_steps: int
    accepted_tokens: int


def bin_of(position: int) -> int:
    """Return the bin of a position in a response (tokens before it): 0 to 127, to 255, to 511 and so on."""
    return (position // FIRST_BIN_TOKENS).bit_length()


def lower_edge(number: int) -> int:
    """Return the lower edge of a bin: 0, 128, 256, 512 and so on."""
    return (FIRST_BIN_TOKENS // 2) << number if number else 0


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


class Known(msgspec.Struct, gc=False):
    """A request that runs: its number in this engine, its prompt's, and seconds of the engine's clock."""

    request: Any
    number: int
    prompt: int  # equal for equal prompts, in every engine; negative: its tokens are not known
    arrived_s: float
    started_s: float


class Done(msgspec.Struct, frozen=True, gc=False):
    """A request that is done, with what its drafts came to."""

    known: Known
    drafts: tuple[AcceptanceCount, ...]


class LiveRequests:
    """Numbers the requests of an engine as they come, and tells when they are done."""

    def __init__(self, started_unix_s: float) -> None:
        self.alive: set[int] = set()  # running, or done since the last `forget_done`
        self._started_unix_s = started_unix_s
        self._known: dict[str, Known] = {}
        self._counts = RequestCounts()
        self._next = 0

    def see(self, requests: Sequence[Any], t_s: float) -> None:
        """Take in the requests of a plan."""
        known = self._known
        for request in requests:
            if request.request_id not in known:
                tokens = request.prompt_token_ids
                prompt = hash(tuple(tokens)) & PROMPT_BITS if tokens else -1 - self._next
                arrived_s = min(request.arrival_time - self._started_unix_s, t_s)
                known[request.request_id] = Known(request, self._next, prompt, arrived_s, t_s)
                self.alive.add(self._next)
                self._next += 1

    def drafts(self, drafts: Sequence[tuple[str, int, int, int]]) -> tuple[RequestDrafts, ...]:
        """Count the drafts of an engine step, and return them under our numbers.

        An engine that plans ahead counts a request once more after it is done: that is left out.
        """
        told = tuple(
            [
                RequestDrafts(self._known[name].number, *counts)
                for name, *counts in drafts
                if name in self._known
            ]
        )
        self._counts.add(told)
        return told

    def done(self, held: Container[str]) -> list[Done]:
        """Return the requests that have finished, or were aborted: the engine has let go of their names."""
        names = [name for name in self._known if name not in held]
        done = [self._known.pop(name) for name in names]
        if not done:
            return []
        counts: dict[int, list[AcceptanceCount]] = {}
        for count in self._counts.take({known.number for known in self._known.values()}):
            counts.setdefault(count.request, []).append(count)
        return [Done(known, tuple(counts.get(known.number, ()))) for known in done]

    def forget_drafts(self) -> None:
        """Count drafts anew, of requests that go on under other weights."""
        self._counts = RequestCounts()

    def forget_done(self) -> None:
        """Let go of those that are done."""
        self.alive.intersection_update([known.number for known in self._known.values()])
