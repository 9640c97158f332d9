"""Prompts on their way into the KV cache of an engine, a chunk an engine step, first come first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np

from tlt.traces.common.arrays import Ints

CACHE_BLOCK_TOKENS = 16  # vLLM's: a prompt in the cache is computed again from its last whole block on


class Chunk(msgspec.Struct, frozen=True):
    """What one engine step computes of prompts. `pairs` counts (query, key) pairs twice, as squares do.

    `again` is the share of the tokens that was in a cache before and was lost; `done` are the requests, as
    indices into the submission, whose context is whole after it.
    """

    tokens: float
    pairs: float
    again: float
    done: Ints


class Part(msgspec.Struct, gc=False):
    """The context of one request, computed up to `at` of `end` tokens; up to `again` it was so before."""

    index: int
    at: int
    end: int
    again: int


class PrefillQueue:
    """Requests that are admitted and not yet decoding. They hold the KV cache of their whole context."""

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()

    def __len__(self) -> int:
        return len(self._parts)

    def indices(self) -> Ints:
        """Return the requests, in order, [n]."""
        return np.fromiter((part.index for part in self._parts), np.int64, len(self._parts))

    def add(self, parts: Iterable[Part]) -> None:
        """Queue contexts to compute."""
        self._parts.extend(parts)

    def take(self, budget_tokens: int) -> Chunk:
        """Compute up to `budget_tokens`, at least one, of the first in the queue."""
        left, again, pairs, done, parts = max(budget_tokens, 1), 0, 0.0, [], self._parts
        while parts and left:
            part = parts[0]
            at, to = part.at, part.end
            if at + left < to:
                to = part.at = at + left
            else:
                parts.popleft()
                done.append(part.index)
            left -= to - at
            pairs += float(to * to - at * at)
            if part.again > at:
                again += min(to, part.again) - at
        tokens = max(budget_tokens, 1) - left
        return Chunk(float(tokens), pairs, again / max(tokens, 1), np.asarray(done, np.int64))

    def pop(self) -> int:
        """Take the newest request out; what was computed of it is lost. Returns its index."""
        return self._parts.pop().index

    def remove(self, indices: Ints) -> None:
        """Take requests, [n], out."""
        gone = set(indices.tolist())
        self._parts = deque(part for part in self._parts if part.index not in gone)
