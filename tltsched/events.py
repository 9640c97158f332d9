"""Facts that a driver reports, the simulator and the live engine alike.

Every event carries the time at which it became true, `t_s`, in seconds since the run began. Token counts of
acceptance never include the bonus token; emitted tokens always do.
"""

from __future__ import annotations

import msgspec

from tltsched.draft_config import DraftConfig


class Request(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One response to generate, or a session of several turns with tools between them.

    `length_hint_tokens` is 0 unless a schedule is allowed to know the length.
    """

    id: int
    group: int
    prompt_tokens: int
    length_hint_tokens: int = 0


class Event(msgspec.Struct, frozen=True, tag_field="kind", gc=False):
    """Base of all events."""

    t_s: float


# --- to a WorkerScheduler ---------------------------------------------------------------------------------


class RolloutBegan(Event, frozen=True, tag="rollout_began", gc=False):
    """The worker starts a rollout; its caches are flushed and `drafter_version` serves (-1: no drafter)."""

    worker: int
    step: int
    drafter_version: int


class BatchFormed(Event, frozen=True, tag="batch_formed", gc=False):
    """Requests were admitted: the running batch and the sum of its contexts as decoding goes on."""

    worker: int
    requests: int
    context_tokens: int


DraftsByRequest = tuple[tuple[int, int, int], ...]
"""(request, request_steps, accepted_tokens) of each request: the engine steps in which drafts of it were
verified, and how many of them were accepted in all, the bonus token not counted."""


class DecisionEnded(Event, frozen=True, tag="decision_ended", gc=False, omit_defaults=True):
    """What one decision interval did, and the batch that is left after it.

    `request_steps` is the batch summed over the engine steps, so the mean acceptance length with the bonus
    token is `1 + sum(accepted_by_position) / request_steps`. `accepted_by_position[j]` counts accepted drafts
    at position j. `decode_s` excludes prefill. `by_request` names the requests that ran and had drafts, those
    that finished included, in any order; it is left empty unless the policy wants it (`wants_requests`).
    """

    worker: int
    draft_config: DraftConfig
    engine_steps: int
    request_steps: int
    decode_s: float
    accepted_by_position: tuple[int, ...]
    finished: tuple[int, ...]
    requests: int
    context_tokens: int
    by_request: DraftsByRequest = ()


class RolloutEnded(Event, frozen=True, tag="rollout_ended", gc=False):
    """The worker has no requests of this step left, or the rollout was stopped."""

    worker: int


WorkerEvent = RolloutBegan | BatchFormed | DecisionEnded | RolloutEnded

# --- to the ClusterScheduler ------------------------------------------------------------------------------


class StepBegan(Event, frozen=True, tag="step_began", gc=False, omit_defaults=True):
    """An RL step starts with these fresh requests, as many groups as the schedule asked for.

    `groups` of `samples` responses each are to be trained on; 0: all that the step begins with. The ids of
    requests are unique among those that are neither trained on nor dropped.
    """

    step: int
    requests: tuple[Request, ...]
    groups: int = 0
    samples: int = 0


class RequestsFinished(Event, frozen=True, tag="requests_finished", gc=False, omit_defaults=True):
    """A worker reports requests that are done; each is reported once.

    `context_tokens` sums the contexts of what it still runs; 0 unless the schedule asks for it.
    """

    worker: int
    requests: tuple[int, ...]
    context_tokens: int = 0


class RequestsWithdrawn(Event, frozen=True, tag="requests_withdrawn", gc=False):
    """A worker has let go of requests that it was told to, at the end of the engine step in flight.

    Those that finished in that engine step were reported before and are missing here. `generated_tokens`
    counts what each has emitted so far, over all workers.
    """

    worker: int
    requests: tuple[int, ...]
    generated_tokens: tuple[int, ...]


class ChunksEnded(Event, frozen=True, tag="chunks_ended", gc=False):
    """Requests have emitted the tokens of their chunk, are not done, and have left the worker."""

    worker: int
    requests: tuple[int, ...]
    generated_tokens: tuple[int, ...]


class TurnsEnded(Event, frozen=True, tag="turns_ended", gc=False):
    """Sessions have ended a turn that calls a tool, and have left the worker; they are not done.

    `generated_tokens` counts what each has emitted so far, in all its turns.
    """

    worker: int
    requests: tuple[int, ...]
    generated_tokens: tuple[int, ...]


class ToolsReturned(Event, frozen=True, tag="tools_returned", gc=False, omit_defaults=True):
    """Calls that CallTools began have returned with so many tokens each to go on from (observations).

    Sessions in `ended` are done with that: their environment ended them, or their tool took too long.
    """

    requests: tuple[int, ...]
    observed_tokens: tuple[int, ...]
    ended: tuple[int, ...] = ()


class TrainingStopped(Event, frozen=True, tag="training_stopped", gc=False):
    """A worker left drafter training, free to decode again, after `trained_tokens` response tokens."""

    worker: int
    trained_tokens: int


class PhaseEnded(Event, frozen=True, tag="phase_ended", gc=False):
    """A phase after the rollout is over on all workers."""

    phase: str


class RewardsReady(Event, frozen=True, tag="rewards_ready", gc=False):
    """The rewards of finished requests are known; told only where a schedule `scores_early`, once each."""

    requests: tuple[int, ...]


class DraftersMeasured(Event, frozen=True, tag="drafters_measured", gc=False):
    """What each drafter gets accepted of this step's responses, bonus token counted; None: not measured."""

    head_length: float | None
    model_free_length: float | None


class WorkerLost(Event, frozen=True, tag="worker_lost", gc=False):
    """A worker died; what it had not finished has to be generated elsewhere."""

    worker: int


ClusterEvent = (
    StepBegan
    | RequestsFinished
    | RequestsWithdrawn
    | ChunksEnded
    | TurnsEnded
    | ToolsReturned
    | TrainingStopped
    | PhaseEnded
    | RewardsReady
    | DraftersMeasured
    | WorkerLost
)
