"""A scheduler's decisions for an engine that steps itself: plans come by, engine steps come back.

The live worker of this project steps its engine and asks between the steps. Here the engine tells. Both give
the scheduler the same events:

- a batch is formed by the first engine step without a prompt after some with, when that one is planned;
- an engine step without a prompt belongs to the decision interval that is open when it comes back. On an
  engine that plans ahead its drafts may be of the interval before, as in the live worker; drafts that are
  deeper than any decision was made before there were decisions (step times were being measured), and their
  engine step belongs to none;
- a decision interval ends when its choice says so, when the engine is empty, and, at the next batch that is
  formed, if requests were admitted.

An engine that is given prompts without end would never form a batch: after PROMPTED engine steps in a row
with prompts its batch counts as formed.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Protocol

from tltsched.commands import SetDraftConfig
from tltsched.draft_config import DraftConfig, chain
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan, RolloutEnded, WorkerEvent
from tltsched.policies.base import Batch, Outcome, Policy

from .engine_step import DecisionInterval, EngineStepFacts

PROMPTED = 8  # engine steps; some ms of an engine, and more than a rollout's first prefill of most

ContextTokens = Callable[[], int]
"""Returns the context tokens of the running batch as of now."""


class Decider(Protocol):
    """What takes the events of one worker and answers with the draft configuration of the next interval."""

    worker: int
    wants_requests: bool

    def handle(self, event: WorkerEvent) -> tuple[SetDraftConfig, ...]:
        """Take an event in; return the decision that it brings about, if any."""


class Decisions:
    """Keeps one decision interval after the other. Times are seconds of the engine's clock."""

    def __init__(self, scheduler: Decider, alive: Container[int]) -> None:
        """`alive` holds the requests that run or finished since the last decision interval ended."""
        self.scheduler = scheduler
        self.decided = 0  # decision intervals that were begun
        self._alive = alive
        self._draft: SetDraftConfig | None = None
        self._interval: DecisionInterval | None = None
        self._prompted = 0  # engine steps in a row that were planned with prompts
        self._formed = False
        self._finished: list[int] = []
        self._deepest = 0  # depth of all decisions
        self._drafter_version = -1
        self._rolling = False

    def begin(self, t_s: float, step: int, drafter_version: int) -> None:
        """Begin a rollout."""
        self.scheduler.handle(RolloutBegan(t_s, self.scheduler.worker, step, drafter_version))
        self._rolling, self._formed, self._prompted = True, False, 0

    def end(self, t_s: float) -> None:
        """End the rollout, with the decision interval that is open."""
        if self._rolling:
            self._close(t_s, 0, 0)
            self.scheduler.handle(RolloutEnded(t_s, self.scheduler.worker))
        self._draft = self._interval = None
        self._finished.clear()
        self._rolling = self._formed = False

    def planned(self, t_s: float, batch: int, context: ContextTokens, prompts: bool) -> int:
        """Take in what the next engine step will be; return how many drafts it is to make."""
        self._prompted = self._prompted + 1 if prompts else 0
        if prompts and self._prompted % PROMPTED:
            self._formed = False
        elif not self._formed or prompts:
            tokens = context()
            self._close(t_s, batch, tokens)
            self._take(self.scheduler.handle(BatchFormed(t_s, self.scheduler.worker, batch, tokens)))
            self._formed = True
        return self._draft.draft_config.depth if self._draft else 0

    def came(self, t_s: float, facts: EngineStepFacts, k: int, left: int, context: ContextTokens) -> None:
        """Take in an engine step that was planned with `k`; `left` requests are not finished after it."""
        del k
        self._finished += facts.finished
        interval, draft = self._interval, self._draft
        foreign = len(facts.accepted_by_position) > self._deepest
        if facts.prompt_tokens or interval is None or draft is None or foreign:
            if not left:
                self._close(t_s, 0, 0)
            return
        interval.add(facts, left)
        if interval.requests < draft.min_requests or interval.engine_steps == draft.max_engine_steps:
            requests = interval.requests
            self._close(t_s, requests, context() if requests else 0)

    def _close(self, t_s: float, requests: int, context_tokens: int) -> None:
        """End the open decision interval if it has engine steps; the next begins unless nothing is left."""
        interval, draft = self._interval, self._draft
        if interval is None or draft is None or not interval.engine_steps:
            return
        finished = tuple(self._finished)
        self._finished.clear()
        event = DecisionEnded(
            t_s, self.scheduler.worker, interval.draft_config, interval.engine_steps, interval.request_steps,
            interval.decode_s, tuple(interval.accepted_by_position), finished, requests, context_tokens,
            interval.by_request(self._alive),
        )  # fmt: skip
        self._draft = self._interval = None
        self._take(self.scheduler.handle(event))
        if not requests:
            self._formed = False

    def _take(self, drafts: tuple[SetDraftConfig, ...]) -> None:
        for draft in drafts:
            self._draft = draft
            self._deepest = max(self._deepest, draft.draft_config.depth)
            self._interval = DecisionInterval(draft.draft_config, self.scheduler.wants_requests)
            self.decided += 1


class Adviser:
    """Asks a policy what it would do, and lets it learn from what another one does."""

    def __init__(
        self, worker: int, policy: Policy,
        advise: Callable[[BatchFormed | DecisionEnded, DraftConfig, DraftConfig], None],
    ) -> None:  # fmt: skip
        """`advise` takes the event that the policy was asked at, what the engine does, and the choice."""
        self.worker = worker
        self.wants_requests = bool(getattr(policy, "wants_requests", False))
        self._policy = policy
        self._advise = advise
        self.actual = chain(0)  # what the engine does

    def handle(self, event: WorkerEvent) -> tuple[SetDraftConfig, ...]:
        """Return a decision for what the engine does, to last as long as the policy's would."""
        if isinstance(event, RolloutBegan):
            self._policy.begin_rollout()
        if isinstance(event, DecisionEnded) and event.draft_config in self._policy.draft_configs:
            self._policy.observe(
                Outcome(
                    event.draft_config, event.engine_steps, event.request_steps, event.decode_s,
                    event.accepted_by_position, event.finished, event.by_request,
                )
            )  # fmt: skip
        if not isinstance(event, BatchFormed | DecisionEnded) or not event.requests:
            return ()
        choice = self._policy.choose(Batch(event.requests, event.context_tokens))
        self._advise(event, self.actual, choice.draft_config)
        return (SetDraftConfig(self.worker, self.actual, choice.max_engine_steps, choice.min_requests),)


class AdvisedDecisions(Decisions):
    """Decision intervals of an adviser: one ends as well when the engine changes K by itself."""

    def __init__(self, adviser: Adviser, alive: Container[int]) -> None:
        super().__init__(adviser, alive)
        self._adviser = adviser

    def came(self, t_s: float, facts: EngineStepFacts, k: int, left: int, context: ContextTokens) -> None:
        """Take in an engine step."""
        if chain(k) != self._adviser.actual:
            self._adviser.actual = chain(k)
            self._deepest = max(self._deepest, k)
            if self._interval is not None and not facts.prompt_tokens:
                self._close(t_s, facts.batch, context())
                if self._interval is not None:
                    self._interval.draft_config = chain(k)
        super().came(t_s, facts, k, left, context)
