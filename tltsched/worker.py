"""The scheduler beside one engine: how it drafts, for how long, and what turning drafting on costs.

Two rules of this file. It holds no clock: time is what the last event said. It holds no engine: a decision is
the return value of `handle`, and the driver carries it out.

Theory of operation. A rollout is a row of decision intervals. Each begins with a SetDraftConfig and ends with
a DecisionEnded, whose facts go to the policy before the next choice is made. A batch that is formed while a
SetDraftConfig stands open (requests were admitted before it ran an engine step) replaces it.

A `resume_cost` is due from the moment the engine has decoded without its drafter until it has decoded with
it: the driver pays it right before the first engine step of the decision interval that carries it, and a
decision interval of no engine steps has not paid.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from tltsched.commands import SetDraftConfig
from tltsched.draft_config import OFF
from tltsched.event_checks import check_batch, check_decision, check_rollout, refusal, require
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan, RolloutEnded, WorkerEvent
from tltsched.policies.base import Batch, Choice, Outcome, Policy

NO_DRAFTER = -1
_OFF_FOR_GOOD = Choice(OFF)


class WorkerState(StrEnum):
    """Where a worker is in a rollout."""

    RESTING = "resting"  # between rollouts
    ROLLING = "rolling"  # in a rollout, with nothing to decode
    DECODING = "decoding"  # a SetDraftConfig is open


class WorkerScheduler:
    """Turns the events of one worker into commands; raises ProtocolError if they come out of order."""

    # Of a rollout, from its begin on.
    _may_draft: bool
    _drafter_in_step: bool
    _open: SetDraftConfig  # the last decision

    def __init__(self, worker: int, policy: Policy) -> None:
        self.worker = worker
        self.policy = policy
        self.state = WorkerState.RESTING
        self.wants_requests = bool(getattr(policy, "wants_requests", False))
        """Whether the driver is to fill DecisionEnded.by_request."""
        self.who = f"worker {worker}"
        self._t_s = 0.0
        self._step = -1
        self._deepest = 0  # depth of all decisions
        self.drafts = any(draft_config.depth for draft_config in policy.draft_configs)
        """Whether the policy ever drafts."""

    @property
    def asks_policy(self) -> bool:
        """Whether the policy is asked in the rollout that is on; without a drafter nothing is drafted."""
        return self._may_draft

    def handle(self, event: WorkerEvent) -> tuple[SetDraftConfig, ...]:
        """Take one event in; return the draft configuration of the interval that starts now, if one does."""
        handler = _TRANSITIONS.get((self.state, type(event)))
        if handler is None:
            raise refusal(self.who, f"it is {self.state.value} and cannot take this", event)
        require(self, WorkerScheduler._check, event, self._t_s)
        commands = handler(self, event)
        self._t_s = event.t_s
        return commands

    def _begin(self, event: RolloutBegan) -> tuple[SetDraftConfig, ...]:
        self._step = event.step
        self._may_draft = not self.drafts or event.drafter_version != NO_DRAFTER
        self._drafter_in_step = True
        self.policy.begin_rollout()
        self.state = WorkerState.ROLLING
        return ()

    def _first_batch(self, event: BatchFormed) -> tuple[SetDraftConfig, ...]:
        drafts = self._reform(event)
        # The prefill of a batch that starts off leaves the drafter out; one that starts drafting fills both.
        self._drafter_in_step = bool(self._open.draft_config.depth)
        self.state = WorkerState.DECODING
        return drafts

    def _reform(self, event: BatchFormed) -> tuple[SetDraftConfig, ...]:
        return (self._draft(event.requests, event.context_tokens),)

    def _next_decision(self, event: DecisionEnded) -> tuple[SetDraftConfig, ...]:
        if event.engine_steps:
            self._drafter_in_step = bool(event.draft_config.depth)
            if self._may_draft:
                self.policy.observe(
                    Outcome(
                        event.draft_config,
                        event.engine_steps,
                        event.request_steps,
                        event.decode_s,
                        event.accepted_by_position,
                        event.finished,
                        event.by_request,
                    )
                )
        if not event.requests:
            # An empty engine has no cache to rebuild: the next batch is prefilled as at the start.
            self._drafter_in_step = True
            self.state = WorkerState.ROLLING
            return ()
        return (self._draft(event.requests, event.context_tokens),)

    def _end(self, event: RolloutEnded) -> tuple[SetDraftConfig, ...]:  # noqa: ARG002 (the table passes the event)
        self.state = WorkerState.RESTING
        return ()

    def _draft(self, requests: int, context_tokens: int) -> SetDraftConfig:
        choice = self.policy.choose(Batch(requests, context_tokens)) if self._may_draft else _OFF_FOR_GOOD
        due = (
            bool(choice.draft_config.depth)
            and not self._drafter_in_step
            and self.policy.when_off == "drafter_dropped"
        )
        self._deepest = max(self._deepest, choice.draft_config.depth)
        self._open = SetDraftConfig(
            self.worker,
            choice.draft_config,
            choice.max_engine_steps,
            choice.min_requests,
            self.policy.resume_cost if due else "none",
        )
        return self._open

    def _check(self, event: WorkerEvent) -> str:
        """Return what is wrong with an event, "" if nothing is."""
        if event.worker != self.worker:
            return f"was given an event of worker {event.worker}"
        match event:
            case DecisionEnded():
                return check_decision(event, self._open, self._deepest)
            case BatchFormed():
                return check_batch(event)
            case RolloutBegan():
                return check_rollout(event, self._step)
            case RolloutEnded():
                return ""


# (state, event) -> what happens; anything else is a broken protocol.
_TRANSITIONS: dict[tuple[WorkerState, type], Callable[[WorkerScheduler, Any], tuple[SetDraftConfig, ...]]] = {
    (WorkerState.RESTING, RolloutBegan): WorkerScheduler._begin,
    (WorkerState.ROLLING, BatchFormed): WorkerScheduler._first_batch,
    (WorkerState.ROLLING, RolloutEnded): WorkerScheduler._end,
    (WorkerState.DECODING, BatchFormed): WorkerScheduler._reform,
    (WorkerState.DECODING, DecisionEnded): WorkerScheduler._next_decision,
    (WorkerState.DECODING, RolloutEnded): WorkerScheduler._end,
}
