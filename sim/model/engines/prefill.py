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
    """Contexts of requests that are alike, each computed up to `at` of `end` tokens; `again` were before."""

    indices: list[int]
    at: int
    end: int
    again: int

    def is_like(self, other: Part) -> bool:
        """Return whether contexts of both are computed alike."""
        return self.at == other.at and self.end == other.end and self.again == other.again


class PrefillQueue:
    """Requests that are admitted and not yet decoding. They hold the KV cache of their whole context."""

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._requests = 0

    def __len__(self) -> int:
        return self._requests

    def indices(self) -> Ints:
        """Return the requests, in order, [n]."""
        return np.fromiter((index for part in self._parts for index in part.indices), np.int64, len(self))

    def add(self, parts: Iterable[Part]) -> None:
        """Queue contexts to compute."""
        queue = self._parts
        for part in parts:
            self._requests += len(part.indices)
            if queue and queue[-1].is_like(part):
                queue[-1].indices += part.indices
            else:
                queue.append(part)

    def take(self, budget_tokens: int) -> Chunk:
        """Compute up to `budget_tokens`, at least one, of the first in the queue."""
        budget_tokens = left = max(budget_tokens, 1)
        again, pairs, done, parts = 0, 0, [], self._parts
        while parts and left:
            part = parts[0]
            at, to = part.at, part.end
            count = min(left // (to - at), len(part.indices))
            if not count:
                to, count = at + left, 1
                self._split(part, to)
            elif count == len(part.indices):
                parts.popleft()
                done += part.indices
            else:
                done += part.indices[:count]
                del part.indices[:count]
            left -= count * (to - at)
            pairs += count * (to * to - at * at)
            if part.again > at:
                again += count * (min(to, part.again) - at)
        self._requests -= len(done)
        tokens = budget_tokens - left
        return Chunk(float(tokens), float(pairs), again / max(tokens, 1), np.asarray(done, np.int64))

    def _split(self, part: Part, to: int) -> None:
        """Compute the context of the first of a part, the first of all, up to `to` tokens."""
        if len(part.indices) == 1:
            part.at = to
            return
        first = part.indices.pop(0)
        self._parts.appendleft(Part([first], to, part.end, part.again))

    def pop(self) -> int:
        """Take the newest request out; what was computed of it is lost. Returns its index."""
        newest = self._parts[-1].indices.pop()
        if not self._parts[-1].indices:
            self._parts.pop()
        self._requests -= 1
        return newest

    def remove(self, indices: Ints) -> None:
        """Take requests, [n], out."""
        gone, parts = set(indices.tolist()), self._parts
        for part in parts:
            part.indices = [index for index in part.indices if index not in gone]
        self._parts = deque(part for part in parts if part.indices)
        self._requests = sum(len(part.indices) for part in self._parts)
