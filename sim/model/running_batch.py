"""The requests of one worker in one rollout: waiting, running, done; and the KV cache they must fit into."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

from tlt.traces.common.arrays import Floats, Ints

# Room kept for each running request, so that preemption and admission do not chase each other. Half of it
# must exceed what one engine step can emit (depth + 1); 64 is about one percent of a full cache, like vLLM's.
MARGIN_TOKENS = 64


class Limits(msgspec.Struct, frozen=True):
    """What bounds the running batch of one engine."""

    max_running: int
    kv_tokens: float  # tokens that the KV cache holds
    prefix_caching: bool  # prompts of one group are prefilled once
    reused_share: float = 0.0  # of a response, kept from an earlier one that its prefill verifies (SPEC-RL)
    reused_from_step: int = 0  # RL step from which there are earlier responses


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
        return Submission(
            *(
                np.concatenate([getattr(self, field), getattr(other, field)])
                for field in self.__struct_fields__
            )
        )


class Admission(msgspec.Struct, frozen=True):
    """What admitting took to prefill: prompts for the first time, and contexts lost to preemption."""

    requests: int
    prompt_tokens: float = 0.0
    prompt_squares: float = 0.0
    recompute_tokens: float = 0.0
    recompute_squares: float = 0.0


class RequestPool:
    """Requests by index into the submission's arrays; `running` is in order of admission, [batch]."""

    def __init__(self, submission: Submission, limits: Limits, step: int = 0) -> None:
        self._reused_share = limits.reused_share if step >= limits.reused_from_step else 0.0
        self.requests = submission
        self.limits = limits
        self.emitted = submission.emitted.copy()
        self.kv_kept = submission.kv_kept.copy()
        self.running: Ints = np.empty(0, np.int64)
        self.waiting: deque[int] = deque(range(len(submission.ids)))
        self.preemptions = 0
        self._prefilled_groups: set[int] = set()

    def pending(self) -> bool:
        """Return whether any request is not done."""
        return bool(self.waiting) or len(self.running) > 0

    def submit(self, more: Submission) -> None:
        """Queue further requests behind those that wait."""
        first = len(self.requests.ids)
        self.requests = self.requests.joined(more)
        self.emitted = np.concatenate([self.emitted, more.emitted])
        self.kv_kept = np.concatenate([self.kv_kept, more.kv_kept])
        self.waiting.extend(range(first, len(self.requests.ids)))

    def withdraw(self, ids: Ints) -> Ints:
        """Take requests, [n], out, waiting or running; returns the indices of those that were there, [m]."""
        here = np.isin(self.requests.ids[self.running], ids)
        queued = np.fromiter(self.waiting, np.int64, len(self.waiting))
        there = np.isin(self.requests.ids[queued], ids)
        taken: Ints = np.concatenate([self.running[here], queued[there]])
        self.running = self.running[~here]
        self.waiting = deque(queued[~there].tolist())
        return taken

    def requeue(self) -> None:
        """Put all running requests back to the head of the queue: their caches are gone."""
        self.waiting.extendleft(self.running[::-1].tolist())
        self.running = self.running[:0]
        self._prefilled_groups.clear()

    def has_room(self) -> bool:
        """Return whether a further request would not have to wait behind others."""
        return not self.waiting and len(self.running) < self.limits.max_running

    def remaining(self) -> Ints:
        """Return the tokens that each running request still has to emit, [batch]."""
        return self.requests.length[self.running] - self.emitted[self.running]

    def context(self) -> Ints:
        """Return the context tokens of each running request, [batch]."""
        return self.requests.prompt_tokens[self.running] + self.emitted[self.running]

    def admit(self) -> Admission:
        """Move waiting requests into the batch, first come first served, while they fit.

        The prefill of a request emits its first token. A worker that runs nothing admits one in any case:
        the configuration makes sure that a single request fits.
        """
        room = self.limits.max_running - len(self.running)
        if not self.waiting or room <= 0:
            return Admission(0)
        candidates = np.fromiter(self.waiting, np.int64, len(self.waiting))[:room]
        needed = self.requests.prompt_tokens[candidates] + self.emitted[candidates] + 1 + MARGIN_TOKENS
        needed += self._reused(candidates)
        fitting = int((self._held_with_margin() + needed.cumsum() <= self.limits.kv_tokens).sum())
        count = max(fitting, 0 if len(self.running) else 1)
        admitted = candidates[:count]
        for _ in range(count):
            self.waiting.popleft()
        return self._prefill(admitted)

    def _prefill(self, admitted: Ints) -> Admission:
        fresh = admitted[self.emitted[admitted] == 0]
        again = admitted[(self.emitted[admitted] > 0) & ~self.kv_kept[admitted]]
        self.kv_kept[admitted] = False  # a preemption loses it
        prompts = self._prompts_to_prefill(fresh).astype(np.float64)
        lost = (self.requests.prompt_tokens[again] + self.emitted[again]).astype(np.float64)
        verified, verified_squares = self._verified(fresh)
        self.emitted[fresh] = 1 + self._reused(fresh)
        self.running = np.concatenate([self.running, admitted])
        return Admission(
            len(admitted),
            float(prompts.sum()) + verified,
            float(np.dot(prompts, prompts)) + verified_squares,
            float(lost.sum()),
            float(np.dot(lost, lost)),
        )

    def _reused(self, indices: Ints) -> Ints:
        """Return the tokens that a first prefill takes over from an earlier response, for each index."""
        if not self._reused_share:
            return np.zeros(len(indices), np.int64)
        length = self.requests.length[indices]
        kept = np.minimum((self._reused_share * length).astype(np.int64), length - 1)
        return np.where(self.emitted[indices] == 0, kept, 0)

    def _verified(self, fresh: Ints) -> tuple[float, float]:
        """Return tokens and squared lengths that verifying earlier responses adds to the prefill of prompts.

        The earlier response is read whole, and is taken to be as long as the one to come.
        """
        if not self._reused_share:
            return 0.0, 0.0
        prompt = self.requests.prompt_tokens[fresh].astype(np.float64)
        whole = prompt + self.requests.length[fresh]
        return float((whole - prompt).sum()), float(np.dot(whole, whole) - np.dot(prompt, prompt))

    def _prompts_to_prefill(self, fresh: Ints) -> Ints:
        """Return the prompt lengths that have to be computed: one a group with prefix caching."""
        if not self.limits.prefix_caching:
            return self.requests.prompt_tokens[fresh]
        groups, first = np.unique(self.requests.group[fresh], return_index=True)
        new = [
            index
            for group, index in zip(groups.tolist(), first.tolist(), strict=True)
            if group not in self._prefilled_groups
        ]
        self._prefilled_groups.update(groups.tolist())
        return self.requests.prompt_tokens[fresh[new]] if new else fresh[:0]

    def retire(self) -> Ints:
        """Take the finished requests out of the batch; returns their indices, [finished]."""
        done = self.remaining() <= 0
        finished = self.running[done]
        self.running = self.running[~done]
        return finished

    def crowded_above_tokens(self) -> float:
        """Return the context at which the batch has to stop and look whether it must preempt."""
        return self.limits.kv_tokens - len(self.running) * MARGIN_TOKENS / 2

    def preempt(self) -> None:
        """Put the newest requests back to the head of the queue until the others can go on."""
        while len(self.running) > 1 and self._held_with_margin() > self.limits.kv_tokens:
            self.waiting.appendleft(int(self.running[-1]))
            self.running = self.running[:-1]
            self.preemptions += 1

    def _held_with_margin(self) -> float:
        return float(self.context().sum()) + len(self.running) * MARGIN_TOKENS
