"""The sessions of one worker: their contexts grow turn by turn, and what is cached of them is not prefilled.

A session keeps its place in the arrays when it comes back to the worker. Its `prompt_tokens` are then all of
its context that it did not decode itself, what its tools returned included, and `length` is what it has
decoded, in all turns, when the present one ends.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.sim.model.engines.prefill import Part
from tlt.sim.model.engines.running_batch import Limits, RequestPool, Submission
from tlt.sim.model.sessions.prefix_cache import PrefixCache
from tlt.traces.common.arrays import Floats, Ints


class TurnSubmission(Submission, frozen=True):
    """Turns that begin or go on, [n]. Each session decodes from `begun` tokens to `length` in its turn.

    `shared` tokens, its first prompt, begin the contexts of all of its group; of the context `seen` tokens
    were computed before, here or elsewhere, and a cache may hold them.
    """

    begun: Ints
    shared: Ints
    seen: Ints


class CacheCounts(msgspec.Struct):
    """What turns of a rollout found in the prefix cache of a worker, in tokens, preempted ones left out."""

    asked_tokens: int = 0  # contexts of all turns that were admitted, as engines count queries
    found_tokens: int = 0  # hits
    again_tokens: int = 0  # computed once more: known before, and not found
    turns: int = 0


class SessionPool(RequestPool):
    """A pool whose requests leave for tools and come back. Its cache lasts as long as the rollout."""

    requests: TurnSubmission

    def __init__(self, submission: TurnSubmission, limits: Limits, step: int = 0) -> None:
        super().__init__(submission, limits, step)
        self.cache = PrefixCache(limits.block_tokens, limits.drops_block)
        self.counts = CacheCounts()
        self.last_tokens: Ints = np.ones(len(submission.ids), np.int64)
        self._place = {request: place for place, request in enumerate(submission.ids.tolist())}
        self._holding: set[int] = set()  # places whose contexts are in use
        self._preempted: set[int] = set()

    def submit(self, more: Submission) -> None:
        """Queue turns behind those that wait; a session that was here before gets its place back."""
        assert isinstance(more, TurnSubmission)
        ids = more.ids.tolist()
        known = np.array([request in self._place for request in ids], bool)
        fresh = TurnSubmission(*(getattr(more, field)[~known] for field in more.__struct_fields__))
        first = len(self.requests.ids)
        super().submit(fresh)
        self.last_tokens = np.concatenate([self.last_tokens, np.ones(len(fresh.ids), np.int64)])
        self._place.update(zip(fresh.ids.tolist(), range(first, len(self.requests.ids)), strict=True))
        rows = np.flatnonzero(known)
        places = np.array([self._place[ids[row]] for row in rows.tolist()], np.int64)
        for field in ("prompt_tokens", "length", "begun", "seen"):
            getattr(self.requests, field)[places] = getattr(more, field)[rows]
        self.emitted[places] = more.emitted[rows]
        self.waiting.extend(places.tolist())

    def admit(self) -> int:
        """Move waiting turns into prefill while they fit; what does not run makes room for them."""
        self._make_room()
        count = super().admit()
        if count:
            self._make_room()
        return count

    def _parts(self, admitted: Ints) -> list[Part]:
        """Return what has to be computed of each context: what the cache does not have."""
        requests, parts = self.requests, []
        context_tokens = requests.prompt_tokens + self.emitted
        valid_tokens = np.where(requests.begun > 0, requests.seen, np.maximum(requests.seen, requests.shared))
        columns = (requests.ids, requests.group, requests.shared, context_tokens, requests.seen, valid_tokens)
        rows = zip(admitted.tolist(), *(column[admitted].tolist() for column in columns), strict=True)
        for index, request, group, shared, tokens, seen, valid in rows:
            context, found = max(tokens, 1), 0
            if self.limits.prefix_caching:
                found = self.cache.take(request, group, shared, context, valid)
            if index not in self._preempted:  # engines count those apart
                self.counts.asked_tokens += context
                self.counts.found_tokens += found
                self.counts.again_tokens += max(seen - found, 0)
                self.counts.turns += 1
            self._preempted.discard(index)
            self._holding.add(index)
            parts.append(Part([index], found, context, seen))
        return parts

    def join(self, done: Ints) -> None:
        """Let turns, [n], decode whose context is whole: the prefill of what is new emits the first token."""
        fresh = done[self.emitted[done] == self.requests.begun[done]]
        self.emitted[fresh] += 1
        self.last_tokens[fresh] = 1
        self.running = np.concatenate([self.running, done])

    def go_on(self, running: Ints, finished: Ints) -> None:
        """Take who is left as the batch; what the others leave cached stays until its place is needed."""
        super().go_on(running, finished)
        if len(finished):
            self._make_room()
            self._release(finished)

    def withdraw(self, ids: Ints) -> Ints:
        """Take sessions out wherever they are."""
        taken = super().withdraw(ids)
        self._release(taken)
        return taken

    def requeue(self) -> None:
        """Put all back to the head of the queue: caches are gone, those of waiting sessions too."""
        self._again(np.concatenate([self.running, self.prefilling.indices()]))
        super().requeue()
        self._holding.clear()
        self.cache.clear()

    def preempt(self) -> None:
        """Put the newest back to the queue until the others can go on, once nothing unused is left."""
        self.cache.fit(0.0)
        before = {*self.running.tolist(), *self.prefilling.indices().tolist()}
        super().preempt()
        left = before - {*self.running.tolist(), *self.prefilling.indices().tolist()}
        lost = np.array(sorted(left), np.int64)
        self._preempted |= left
        self._again(lost)
        self._release(lost)

    def crowded_above_tokens(self) -> float:
        """Return the context at which the batch has to stop and look whether it must preempt."""
        return super().crowded_above_tokens() + self.cache.shared_tokens

    def _again(self, places: Ints) -> None:
        """Note that contexts, [n], were computed and will be once more."""
        begun = places[self.emitted[places] > self.requests.begun[places]]
        self.requests.seen[begun] = self.requests.prompt_tokens[begun] + self.emitted[begun]

    def _release(self, places: Ints) -> None:
        """Free the caches of those of the places, [n], that hold any."""
        requests = self.requests
        for place in places.tolist():
            if place not in self._holding:
                continue
            self._holding.remove(place)
            if not self.limits.prefix_caching:
                continue
            emitted = int(self.emitted[place] - requests.begun[place])
            # An engine step is cached up to what was known as it began: what it emits comes with the next.
            last = min(int(self.last_tokens[place]), emitted)
            computed = int(requests.prompt_tokens[place] + self.emitted[place]) - last if emitted else 0
            self.cache.release(
                int(requests.ids[place]), int(requests.group[place]), int(requests.shared[place]), computed,
                self.limits.keeps_waiting,
            )  # fmt: skip

    def _make_room(self) -> None:
        """Let what nobody uses go, as far as those who run need its place."""
        self.cache.fit(self.limits.kv_tokens - self._held_tokens())

    def _held_tokens(self) -> float:
        return super()._held_tokens() - self.cache.shared_tokens

    def _needed(self, indices: Ints) -> Floats:
        """Return the tokens of KV cache that each needs to begin to decode, [n]."""
        needed = super()._needed(indices)
        if self.cache.shared_tokens or self._holding:
            rows = zip(indices.tolist(), self.requests.group[indices].tolist(), strict=True)
            held = [0 if place in self._holding else self.cache.holds(group) for place, group in rows]
            needed = needed - np.array(held, np.float64)
        return needed
