"""What one engine step did, as any driver of an engine reads it, and what a decision interval adds up to."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from tltsched.draft_config import DraftConfig
from tltsched.events import DraftsByRequest


class RequestDrafts(msgspec.Struct, frozen=True, gc=False):
    """What one engine step verified of one request, whose response had `position` tokens before it."""

    request: int
    position: int
    drafted: int
    accepted: int  # the bonus token is not counted


class RequestPrompt(msgspec.Struct, frozen=True, gc=False):
    """What one engine step prefilled of one request, with `cached_tokens` of its context there before it."""

    request: int
    tokens: int
    cached_tokens: int


class EngineStepFacts(msgspec.Struct, frozen=True, gc=False):
    """What one engine step did.

    `batch` requests took part, with `context_tokens` in their caches together before the engine step.
    `prompt_tokens` of prefill were computed in it (0: a pure decode engine step). `accepted_by_position[j]`
    counts accepted drafts at position j, bonus tokens not counted. `drafted_tokens` is what was verified, and
    `drafts` is both by request, of those that had some.
    """

    seconds: float
    batch: int
    context_tokens: int
    prompt_tokens: int
    drafted_tokens: int
    accepted_by_position: tuple[int, ...]
    finished: tuple[int, ...]
    compiled: bool = False  # or captured, something in it: its time means nothing
    drafts: tuple[RequestDrafts, ...] = ()
    preempted: int = 0  # requests that lost their cache to make room when it was planned
    prompts: tuple[RequestPrompt, ...] = ()  # what `prompt_tokens` is made of


class DecisionInterval:
    """What one decision interval adds up to: engine steps that only decode, under one draft configuration."""

    def __init__(self, draft_config: DraftConfig, tells_requests: bool = False) -> None:
        """With `tells_requests` drafts are counted by request as well."""
        self.draft_config = draft_config
        self.engine_steps = 0
        self.request_steps = 0
        self.decode_s = 0.0
        self.accepted_by_position: list[int] = []
        self.requests = 0  # left after the last engine step
        self._by_request: dict[int, list[int]] | None = {} if tells_requests else None

    def add(self, facts: EngineStepFacts, pending: int) -> None:
        """Count one engine step; `pending` requests are not finished after it, waiting ones included."""
        self.engine_steps += 1
        self.request_steps += facts.batch
        self.decode_s += facts.seconds
        # An engine that plans ahead counts a request once more right after it has finished.
        self.requests = min(facts.batch - len(facts.finished), pending)
        accepted = facts.accepted_by_position
        self.accepted_by_position += [0] * (len(accepted) - len(self.accepted_by_position))
        for position, count in enumerate(accepted):
            self.accepted_by_position[position] += count
        if self._by_request is not None:
            self._count(self._by_request, facts.drafts)

    def by_request(self, alive: Container[int]) -> DraftsByRequest:
        """Return the drafts of each of the requests that are `alive` or finished in the interval itself."""
        counts = (self._by_request or {}).items()
        return tuple((request, steps, accepted) for request, (steps, accepted) in counts if request in alive)

    def _count(self, counts: dict[int, list[int]], drafts: Sequence[RequestDrafts]) -> None:
        """Count the drafts of one engine step, of requests that had as many as were to be drafted.

        Those of the draft configuration before, and those cut at the end of a response, tell of another
        number of drafts: they say that a request runs, and no more.
        """
        k = self.draft_config.depth
        for each in drafts:
            count = counts.setdefault(each.request, [0, 0])
            if each.drafted == k:
                count[0] += 1
                count[1] += each.accepted
