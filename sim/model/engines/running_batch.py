"""The requests of one worker in one rollout: waiting, in prefill, running, done; and their KV cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import groupby, islice

import msgspec
import numpy as np

from tlt.sim.model.engines.prefill import CACHE_BLOCK_TOKENS, Chunk, Part, PrefillQueue
from tlt.traces.common.arrays import Floats, Ints
from tltsched.draft_config import DraftConfig


class Limits(msgspec.Struct, frozen=True):
    """What bounds the running batch of one engine."""

    max_running: int
    kv_tokens: float  # tokens that the KV cache holds
    prefix_caching: bool  # prompts of one group are prefilled once
    most_emitted: int = 32  # tokens of a request in one engine step: its deepest draft, and the bonus token
    reused_share: float = 0.0  # of a response, kept from an earlier one that its prefill verifies (SPEC-RL)
    reused_from_step: int = 0  # RL step from which there are earlier responses
    keeps_waiting: bool = True  # whether what a session has in the cache stays while it waits for its tool
    block_tokens: int = CACHE_BLOCK_TOKENS  # of the KV cache
    drops_block: bool = False  # whether drafting has the last block of a cached prefix computed again

    @property
    def held_beyond_tokens(self) -> float:
        """Return what a request needs beyond its context to go on: two engine steps, and half a block.

        vLLM keeps nothing back: it admits what fits, and preempts when a block is missing. Here a batch that
        was let in has to run an engine step before it is looked at again, or nobody would get on.
        """
        return 2.0 * self.most_emitted + self.block_tokens / 2


def most_emitted_of(draft_configs: Iterable[DraftConfig]) -> int:
    """Return the tokens that a request emits at most in an engine step, the bonus token included."""
    return 1 + max((draft_config.depth for draft_config in draft_configs), default=0)


class Submission(msgspec.Struct, frozen=True):
    """Requests as arrays, one entry a request, [n].

    Each emits tokens until it has `length` of them, of which it may bring `emitted` from elsewhere. Those
    that bring their KV cache too, `kv_kept`, need no prefill.
    """

    ids: Ints
    group: Ints
    prompt_tokens: Ints
    length: Ints
    exponent: Floats
    emitted: Ints
    kv_kept: np.ndarray

    def joined(self, other: Submission) -> Submission:
        """Return both, these first."""
        return type(self)(
            *(
                np.concatenate([getattr(self, field), getattr(other, field)])
                for field in self.__struct_fields__
            )
        )


class RequestPool:
    """Requests by index into the submission's arrays; `running`, [batch], decode, in order of admission.

    Those in `prefilling` are admitted, too: they hold their KV cache, and join the batch when it is whole.
    """

    def __init__(self, submission: Submission, limits: Limits, step: int = 0) -> None:
        self._reused_share = limits.reused_share if step >= limits.reused_from_step else 0.0
        self.requests = submission
        self.limits = limits
        self.emitted = submission.emitted.copy()
        self.kv_kept = submission.kv_kept.copy()
        self.running: Ints = np.empty(0, np.int64)
        self.prefilling = PrefillQueue()
        self.waiting: deque[int] = deque(range(len(submission.ids)))
        self.preemptions = 0
        self.last_tokens: Ints | None = None  # that each emitted in its last engine step; None: nobody asks
        self._prefilled_groups: set[int] = set()

    def pending(self) -> bool:
        """Return whether any request is not done."""
        return bool(self.waiting) or len(self.prefilling) > 0 or len(self.running) > 0

    def submit(self, more: Submission) -> None:
        """Queue further requests behind those that wait."""
        first = len(self.requests.ids)
        self.requests = self.requests.joined(more)
        self.emitted = np.concatenate([self.emitted, more.emitted])
        self.kv_kept = np.concatenate([self.kv_kept, more.kv_kept])
        self.waiting.extend(range(first, len(self.requests.ids)))

    def withdraw(self, ids: Ints) -> Ints:
        """Take requests, [n], out wherever they are; returns the indices of those that were there, [m]."""
        here = np.isin(self.requests.ids[self.running], ids)
        queued = np.fromiter(self.waiting, np.int64, len(self.waiting))
        there = np.isin(self.requests.ids[queued], ids)
        begun = self.prefilling.indices()
        begun = begun[np.isin(self.requests.ids[begun], ids)]
        taken: Ints = np.concatenate([self.running[here], begun, queued[there]])
        self.prefilling.remove(begun)
        self.running = self.running[~here]
        self.waiting = deque(queued[~there].tolist())
        return taken

    def requeue(self) -> None:
        """Put all admitted requests back to the head of the queue: their caches are gone."""
        while self.prefilling:
            self.waiting.appendleft(self.prefilling.pop())
        self.waiting.extendleft(self.running[::-1].tolist())
        self.running = self.running[:0]
        self._prefilled_groups.clear()

    def has_room(self) -> bool:
        """Return whether a further request would not have to wait behind others."""
        return not self.waiting and self._room() > 0

    def may_admit(self) -> bool:
        """Return whether a request waits for no more than the KV cache."""
        return bool(self.waiting) and self._room() > 0

    def _room(self) -> int:
        return self.limits.max_running - len(self.running) - len(self.prefilling)

    def remaining(self) -> Ints:
        """Return the tokens that each running request still has to emit, [batch]."""
        return self.requests.length[self.running] - self.emitted[self.running]

    def context(self) -> Ints:
        """Return the context tokens of each running request, [batch]."""
        return self.requests.prompt_tokens[self.running] + self.emitted[self.running]

    def admit(self) -> int:
        """Move waiting requests into prefill, first come first served, while they fit; returns how many.

        Those that bring their KV cache join the batch at once. A worker that runs nothing admits one in any
        case: the configuration makes sure that a single request fits.
        """
        if not self.may_admit():
            return 0
        candidates = np.fromiter(islice(self.waiting, self._room()), np.int64)
        upto = self._held_tokens() + self._needed(candidates).cumsum()
        fitting = int(np.count_nonzero(upto <= self.limits.kv_tokens))
        count = max(fitting, 0 if len(self.running) or self.prefilling else 1)
        admitted = candidates[:count]
        for _ in range(count):
            self.waiting.popleft()
        kept = self.kv_kept[admitted]
        if kept.any():
            kept &= self.emitted[admitted] > 0  # a first prefill is always due
            self.kv_kept[admitted] = False  # a preemption loses it
            self.join(admitted[kept])
            admitted = admitted[~kept]
        self.prefilling.add(self._parts(admitted))
        return count

    def _parts(self, admitted: Ints) -> Iterable[Part]:
        """Yield the contexts that have to be computed, of each admitted request, in order."""
        requests, seen, block = self.requests, self._prefilled_groups, self.limits.block_tokens
        columns = [self.emitted, requests.group, requests.prompt_tokens]
        if self._reused_share:  # an earlier response, read whole, is taken to be as long as the one to come
            columns.append(requests.length)
        indices, first = admitted.tolist(), 0
        for alike, rows in groupby(zip(*(column[admitted].tolist() for column in columns), strict=True)):
            emitted, group, prompt, *earlier = alike
            run = indices[first : (first := first + len(list(rows)))]
            end = prompt + emitted or 1
            if emitted:
                yield Part(run, 0, end, end)
                continue
            end += sum(earlier)
            if group not in seen:
                seen.add(group)
                yield Part([run.pop(0)], 0, end, 0)
            if run:
                cached = self.limits.prefix_caching and prompt > 0
                yield Part(run, (prompt - 1) // block * block if cached else 0, end, 0)

    def prefill(self, budget_tokens: int) -> Chunk:
        """Compute a chunk of the contexts in prefill; who is done is to `join` after the engine step."""
        return self.prefilling.take(budget_tokens)

    def join(self, done: Ints) -> None:
        """Let requests, [n], decode whose context is whole: the prefill of a prompt emits the first token."""
        fresh = done[self.emitted[done] == 0]
        self.emitted[fresh] = 1 + self._reused(fresh) if self._reused_share else 1
        self.running = np.concatenate([self.running, done])

    def _reused(self, indices: Ints) -> Ints:
        """Return the tokens that a first prefill takes over from an earlier response, for each index."""
        length = self.requests.length[indices]
        kept = np.minimum((self._reused_share * length).astype(np.int64), length - 1)
        return np.where(self.emitted[indices] == 0, kept, 0)

    def retire(self) -> Ints:
        """Take the finished requests out of the batch; returns their indices, [finished]."""
        done = self.remaining() <= 0
        finished = self.running[done]
        if len(finished):
            self.go_on(self.running[~done], finished)
        return finished

    def go_on(self, running: Ints, finished: Ints) -> None:
        """Take who is left, [batch], as the batch, and who has finished, [n], both as they stood in it."""
        del finished  # their cache is free as soon as they do not run
        self.running = running

    def crowded_above_tokens(self) -> float:
        """Return the context at which the batch has to stop and look whether it must preempt."""
        beyond = len(self.running) * (self.limits.held_beyond_tokens - self.limits.most_emitted)
        return self.limits.kv_tokens - self._prefilling_tokens() - beyond

    def preempt(self) -> None:
        """Put the newest requests back to the head of the queue until the others can go on."""
        while len(self.running) + len(self.prefilling) > 1 and self._held_tokens() > self.limits.kv_tokens:
            if self.prefilling:
                self.waiting.appendleft(self.prefilling.pop())
            else:
                self.waiting.appendleft(int(self.running[-1]))
                self.running = self.running[:-1]
            self.preemptions += 1

    def _held_tokens(self) -> float:
        beyond = len(self.running) * self.limits.held_beyond_tokens
        held = float(self.context().sum()) if len(self.running) else 0.0
        return held + beyond + self._prefilling_tokens()

    def _prefilling_tokens(self) -> float:
        return float(self._needed(self.prefilling.indices()).sum()) if self.prefilling else 0.0

    def _needed(self, indices: Ints) -> Floats:
        """Return the tokens of KV cache that each needs to begin to decode, [n]."""
        needed = self.requests.prompt_tokens[indices] + self.emitted[indices]
        if self._reused_share:
            needed += self._reused(indices)
        return np.asarray(needed + (1 + self.limits.held_beyond_tokens), np.float64)
