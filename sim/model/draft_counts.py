"""Drafts of each simulated request by bin of its position, as tlt.traces.runs.request_acceptance wants them.

Engines say in pieces what requests gained: exact mode a piece for each engine step, jump mode one for each
time that it fixes what a request has emitted, and for each bin if its law changes with the bin. A piece that
spans several bins is split over them as if each of its engine steps had gained the same (modelled); in whole
tokens, so that sums are kept. So the bins of a stretch have one rate, or those of the law: the law of a
request's total is that of exact mode, but chance does not part its bins.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import MOST_BINS, bins, from_tokens
from tltsched.draft_config import DraftConfig

MOST_HELD = 1 << 16  # entries of pieces of a worker before they are summed up
MOST_CONFIGS = 1 << 12


class Pieces(msgspec.Struct, gc=False):
    """What requests gained under one draft configuration, [n, stages]; `ids` is [n].

    Each stage began after `position` tokens of the response and had `span` more after `engine_steps` engine
    steps; these emitted `tokens`, those past the end of the response included, a mean where nothing was
    drawn. Requests up to `end` have gained it, and those before `begin` are counted.
    """

    draft_config: DraftConfig
    ids: Ints
    position: Ints
    span: Ints
    tokens: Ints | Floats
    engine_steps: Ints
    begin: int = 0
    end: int = 0

    def end_early(self, first: int, gained: Ints, engine_steps: int) -> None:
        """Let requests from `first` on have gained these tokens, [n - first], in so many engine steps.

        Engine steps fall to the stages by the rates that were planned.
        """
        planned_steps, planned = self.engine_steps[first:], self.tokens[first:]
        upto = np.minimum(self.span[first:].cumsum(axis=1), gained[:, None])
        tokens = np.diff(upto, axis=1, prepend=0)
        took = tokens * planned_steps / np.maximum(planned, 1.0)
        share = took.cumsum(axis=1) / np.maximum(took.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        steps = np.diff(np.rint(share * engine_steps).astype(np.int64), axis=1, prepend=0)
        self.span[first:] = self.tokens[first:] = tokens
        self.engine_steps[first:] = steps

    def due(self) -> Pieces:
        """Return the entries of those that have happened and are not counted, all of them [entries]."""
        due = slice(self.begin, self.end)
        return Pieces(
            self.draft_config, self.ids[due].repeat(self.span.shape[1]), self.position[due].ravel(),
            self.span[due].ravel(), self.tokens[due].ravel(), self.engine_steps[due].ravel(),
        )  # fmt: skip


class Counts(msgspec.Struct, frozen=True):
    """Sums by key (request, bin, draft configuration), in rising order of it, [cells] each."""

    key: Ints
    request_steps: Ints
    accepted_tokens: Ints

    def of(self, where: np.ndarray) -> Counts:
        """Return some of the cells, [cells] of bool."""
        return Counts(self.key[where], self.request_steps[where], self.accepted_tokens[where])

    def requests(self) -> Ints:
        """Return the request of each cell, [cells]."""
        return self.key // (MOST_BINS * MOST_CONFIGS)


_NONE, _ZERO = np.empty(0, np.int64), np.zeros(1, np.int64)
EMPTY = Counts(_NONE, _NONE, _NONE)


class WorkerCounts:
    """What the requests of one worker gained, in the order in which it became known."""

    def __init__(self, sum_up: Callable[[list[Pieces]], None]) -> None:
        self._sum_up = sum_up
        self._held: list[Pieces] = []
        self._entries = 0

    def add(self, pieces: Pieces) -> None:
        """Count all entries of pieces that are not counted yet."""
        self.add_until(pieces, len(pieces.ids))

    def add_until(self, pieces: Pieces, end: int) -> None:
        """Count the entries of pieces up to `end` that are not counted yet; they must not change any more."""
        if pieces.begin == pieces.end < end:
            self._held.append(pieces)
        self._entries += (end - pieces.end) * pieces.span.shape[1]
        pieces.end = end
        if self._entries > MOST_HELD:
            self._sum_up(self.taken())

    def taken(self) -> list[Pieces]:
        """Return what is held, and hold it no longer."""
        held, self._held, self._entries = self._held, [], 0
        return held


class DraftCounts:
    """Counts the drafts of all requests that are alive.

    Workers are summed one after the other, so that no figure depends on which of them was simulated first.
    """

    def __init__(self) -> None:
        self._workers: dict[int, WorkerCounts] = {}
        self._counts = EMPTY
        self._codes: dict[DraftConfig, int] = {}

    def of(self, worker: int) -> WorkerCounts:
        """Return the counts of a worker, which it adds to."""
        return self._workers.setdefault(worker, WorkerCounts(self._add))

    def forget(self, ids: Ints) -> None:
        """Drop what requests, [n], gained: it is thrown away."""
        self.take(ids)

    def take(self, ids: Ints) -> Counts:
        """Return the counts of requests, [n], that are done, and keep those of the others."""
        self._sum()
        if not len(self._counts.key):
            return EMPTY
        done = np.isin(self._counts.requests(), ids)
        taken, self._counts = self._counts.of(done), self._counts.of(~done)
        return taken

    def table(self, by_step: list[tuple[int, Counts]]) -> pd.DataFrame:
        """Return ACCEPTANCE_COLUMNS of counts that were taken, each with the RL step it belongs to."""
        key, request_steps, accepted = (
            np.concatenate([_NONE, *(getattr(counts, name) for _, counts in by_step)])
            for name in Counts.__struct_fields__
        )
        configs, names = list(self._codes), pd.Index([str(config) for config in self._codes], dtype="str")
        cell, code = np.divmod(key, MOST_CONFIGS)
        # TLT's released 8_4_8 verifies fewer drafts than it is deep; the law of acceptance goes by the depth.
        width = np.array([max(config.verify_tokens - 1, config.depth) for config in configs], np.int64)
        return pd.DataFrame(
            {
                "step": np.repeat([step for step, _ in by_step], [len(counts.key) for _, counts in by_step]),
                "request": cell // MOST_BINS,
                "from_token": from_tokens(cell % MOST_BINS),
                "draft_config": pd.Categorical.from_codes(code, names),
                "request_steps": request_steps,
                "drafted_tokens": request_steps * (width[code] if configs else code),
                "accepted_tokens": accepted,
            }
        )

    def _sum(self) -> None:
        """Add up what all workers hold."""
        workers = [self._workers[worker] for worker in sorted(self._workers)]
        self._add([pieces for worker in workers for pieces in worker.taken()])

    def _add(self, held: list[Pieces]) -> None:
        """Add up pieces."""
        if not held:
            return
        parts = (self._counts, self._cells([pieces.due() for pieces in held]))
        for pieces in held:
            pieces.begin = pieces.end
        key, steps, accepted = (
            np.concatenate([getattr(part, name) for part in parts]) for name in Counts.__struct_fields__
        )
        keys, cell = np.unique(key, return_inverse=True)
        self._counts = Counts(
            keys, *(np.bincount(cell, values).astype(np.int64) for values in (steps, accepted))
        )

    def _cells(self, held: list[Pieces]) -> Counts:
        """Return the cells of pieces, a key may come several times.

        Means are rounded so that their running sum is at most half a token off, and within what can be.
        """
        sizes = [len(pieces.ids) for pieces in held]
        code = np.repeat([self._code(pieces.draft_config) for pieces in held], sizes)
        most = np.repeat([pieces.draft_config.depth + 1 for pieces in held], sizes)
        ids, position, span, mean_tokens, engine_steps = (
            np.concatenate(arrays)
            for arrays in zip(
                *((each.ids, each.position, each.span, each.tokens, each.engine_steps) for each in held),
                strict=True,
            )
        )
        tokens = np.diff(np.floor(mean_tokens.cumsum() + 0.5), prepend=0.0).astype(np.int64)
        tokens = np.clip(tokens, engine_steps, most * engine_steps)
        row, number, steps, emitted = split(position, span, tokens, engine_steps)
        return Counts((ids[row] * MOST_BINS + number) * MOST_CONFIGS + code[row], steps, emitted - steps)

    def _code(self, draft_config: DraftConfig) -> int:
        return self._codes.setdefault(draft_config, len(self._codes))


def split(position: Ints, span: Ints, tokens: Ints, engine_steps: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return row of the piece, bin, engine steps and tokens of every bin that an engine step began in.

    Engine step i of n begins at position + span * i / n. Arguments have one shape, [n], results another,
    [cells]. Over cells of one piece, engine steps and tokens sum to those of it, and where that has 1 to
    d + 1 tokens for each of its engine steps, so has every cell.
    """
    some = np.flatnonzero(engine_steps)
    position, n, tokens = position[some], engine_steps[some], tokens[some]
    span = np.maximum(span[some], 1)
    first, last = bins(position), bins(position + span * (n - 1) // n)
    count = last - first + 1
    row = np.repeat(np.arange(len(n)), count)
    number = np.arange(len(row)) - np.repeat(count.cumsum() - count, count) + first[row]
    n, span = n[row], span[row]
    # Engine steps that begin before the end of the bin: the least i with span * i / n >= end - position.
    before_end = -(-(from_tokens(number + 1) - position[row]) * n // span)
    upto = np.where(number == last[row], n, before_end)
    emitted = (2 * tokens[row] * upto + n) // (2 * n)
    begins = number == first[row]
    return some[row], number, _rises(upto, begins), _rises(emitted, begins)


def _rises(upto: Ints, begins: np.ndarray) -> Ints:
    """Return what running sums, [cells], rise by; they begin anew where `begins`."""
    before = np.concatenate([_ZERO, upto[:-1]])
    rises: Ints = upto - np.where(begins, 0, before)
    return rises
