"""Facts that a driver reports, the simulator and the live engine alike.

Every event carries the time at which it became true, `t_s`, in seconds since the run began. Token counts of
acceptance never include the bonus token; emitted tokens always do.
"""

from __future__ import annotations

import msgspec

from tltsched.arms import Arm


class Request(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One response to generate. `length_hint_tokens` is 0 unless a schedule is allowed to know the length."""

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


class EpochEnded(Event, frozen=True, tag="epoch_ended", gc=False):
    """What one decision epoch did, and the batch that is left after it.

    `request_cycles` is the batch summed over the cycles, so the mean acceptance length with the bonus token
    is `1 + sum(accepted_by_position) / request_cycles`. `accepted_by_position[j]` counts accepted drafts at
    position j. `decode_s` excludes prefill.
    """

    worker: int
    arm: Arm
    cycles: int
    request_cycles: int
    decode_s: float
    accepted_by_position: tuple[int, ...]
    finished: tuple[int, ...]
    requests: int
    context_tokens: int


class RolloutEnded(Event, frozen=True, tag="rollout_ended", gc=False):
    """The worker has no requests of this step left, or the rollout was stopped."""

    worker: int


WorkerEvent = RolloutBegan | BatchFormed | EpochEnded | RolloutEnded

# --- to the ClusterScheduler ------------------------------------------------------------------------------


class StepBegan(Event, frozen=True, tag="step_began", gc=False):
    """An RL step starts with these requests to roll out."""

    step: int
    requests: tuple[Request, ...]


class RequestsFinished(Event, frozen=True, tag="requests_finished", gc=False):
    """A worker reports requests that are done; each is reported once."""

    worker: int
    requests: tuple[int, ...]


class TrainingStopped(Event, frozen=True, tag="training_stopped", gc=False):
    """A worker left drafter training, free to decode again, after `trained_tokens` response tokens."""

    worker: int
    trained_tokens: int


class PhaseEnded(Event, frozen=True, tag="phase_ended", gc=False):
    """A phase after the rollout is over on all workers."""

    phase: str


class WorkerLost(Event, frozen=True, tag="worker_lost", gc=False):
    """A worker died; what it had not finished has to be generated elsewhere."""

    worker: int


ClusterEvent = StepBegan | RequestsFinished | TrainingStopped | PhaseEnded | WorkerLost
