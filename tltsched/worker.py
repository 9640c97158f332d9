"""The scheduler beside one engine: which arm drafts, for how long, and what turning it on costs.

Two rules of this file. It holds no clock: time is what the last event said. It holds no engine: a decision is
the return value of `handle`, and the driver carries it out.

Theory of operation. A rollout is a row of decision epochs. Each begins with a Draft and ends with an
EpochEnded, whose facts go to the policy before the next choice is made. A batch that is formed while a Draft
stands open (requests were admitted before it ran a cycle) replaces that Draft.

An `entry` is due from the moment the engine has decoded without its drafter until it has decoded with it: the
driver pays it right before the first cycle of the epoch that carries it, and an epoch of no cycles has not
paid.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from tltsched.commands import Draft
from tltsched.draft_config import OFF, Arm
from tltsched.errors import ProtocolError
from tltsched.events import BatchFormed, EpochEnded, RolloutBegan, RolloutEnded, WorkerEvent
from tltsched.policies.base import Batch, Choice, Outcome, Policy

NO_DRAFTER = -1
_OFF_FOR_GOOD = Choice(OFF)


class WorkerState(Enum):
    """Where a worker is in a rollout."""

    RESTING = "resting"  # between rollouts
    ROLLING = "rolling"  # in a rollout, with nothing to decode
    DECODING = "decoding"  # a Draft is open


class WorkerScheduler:
    """Turns the events of one worker into Draft commands; raises ProtocolError if they come out of order."""

    def __init__(self, worker: int, policy: Policy) -> None:
        self.worker = worker
        self.policy = policy
        self.state = WorkerState.RESTING
        self._t_s = 0.0
        self._policy_drafts = any(arm.depth > 0 for arm in policy.arms)
        self._may_draft = True
        self._drafter_in_step = True
        self._arm: Arm = OFF

    def handle(self, event: WorkerEvent) -> tuple[Draft, ...]:
        """Take one event in; return the Draft of the epoch that starts now, if one does."""
        if not event.t_s >= self._t_s:  # written so that NaN is refused too
            raise ProtocolError(
                f"worker {self.worker}: time went back from {self._t_s} s to {event.t_s} s: {event}"
            )
        if event.worker != self.worker:
            raise ProtocolError(f"worker {self.worker} was given an event of worker {event.worker}: {event}")
        handler = _TRANSITIONS.get((self.state, type(event)))
        if handler is None:
            raise ProtocolError(f"worker {self.worker} is {self.state.value} and cannot take {event}")
        commands = handler(self, event)
        self._t_s = event.t_s
        return commands

    def _begin(self, event: RolloutBegan) -> tuple[Draft, ...]:
        self._may_draft = not self._policy_drafts or event.drafter_version != NO_DRAFTER
        self._drafter_in_step = True
        self.policy.begin_rollout()
        self.state = WorkerState.ROLLING
        return ()

    def _first_batch(self, event: BatchFormed) -> tuple[Draft, ...]:
        drafts = self._reform(event)
        # The prefill of a batch that starts off leaves the drafter out; one that starts drafting fills both.
        self._drafter_in_step = self._arm.depth > 0
        self.state = WorkerState.DECODING
        return drafts

    def _reform(self, event: BatchFormed) -> tuple[Draft, ...]:
        if event.requests < 1 or event.context_tokens < 0:
            raise ProtocolError(
                f"worker {self.worker}: a batch has a request and no negative context: {event}"
            )
        return (self._draft(event.requests, event.context_tokens),)

    def _next_epoch(self, event: EpochEnded) -> tuple[Draft, ...]:
        self._check(event)
        if event.cycles > 0:
            self._drafter_in_step = event.arm.depth > 0
            if self._may_draft:
                self.policy.observe(
                    Outcome(
                        event.arm,
                        event.cycles,
                        event.request_cycles,
                        event.decode_s,
                        event.accepted_by_position,
                    )
                )
        if event.requests == 0:
            # An empty engine has no cache to rebuild: the next batch is prefilled as at the start.
            self._drafter_in_step = True
            self.state = WorkerState.ROLLING
            return ()
        return (self._draft(event.requests, event.context_tokens),)

    def _end(self, event: RolloutEnded) -> tuple[Draft, ...]:  # noqa: ARG002 (the table passes the event)
        self.state = WorkerState.RESTING
        return ()

    def _draft(self, requests: int, context_tokens: int) -> Draft:
        choice = self.policy.choose(Batch(requests, context_tokens)) if self._may_draft else _OFF_FOR_GOOD
        self._arm = choice.arm
        due = choice.arm.depth > 0 and not self._drafter_in_step and self.policy.off_state == "dropped"
        return Draft(
            self.worker,
            choice.arm,
            choice.max_cycles,
            choice.min_requests,
            self.policy.entry if due else "none",
        )

    def _check(self, event: EpochEnded) -> None:
        if event.arm != self._arm:
            raise ProtocolError(f"worker {self.worker} was to use arm {self._arm}, not {event.arm}: {event}")
        counts = (event.cycles, event.requests, event.context_tokens, *event.accepted_by_position)
        # A cycle decodes one request or more and takes time; the rates of the policies divide by both.
        if min(counts) < 0 or event.request_cycles < event.cycles:
            raise ProtocolError(f"worker {self.worker}: counts cannot be negative or contradict: {event}")
        if event.cycles > 0 and not event.decode_s > 0:
            raise ProtocolError(f"worker {self.worker}: cycles take time: {event}")


# (state, event) -> what happens; anything else is a broken protocol.
_TRANSITIONS: dict[tuple[WorkerState, type], Callable[[WorkerScheduler, Any], tuple[Draft, ...]]] = {
    (WorkerState.RESTING, RolloutBegan): WorkerScheduler._begin,
    (WorkerState.ROLLING, BatchFormed): WorkerScheduler._first_batch,
    (WorkerState.ROLLING, RolloutEnded): WorkerScheduler._end,
    (WorkerState.DECODING, BatchFormed): WorkerScheduler._reform,
    (WorkerState.DECODING, EpochEnded): WorkerScheduler._next_epoch,
    (WorkerState.DECODING, RolloutEnded): WorkerScheduler._end,
}
