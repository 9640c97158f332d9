"""Decisions that a driver carries out, the simulator and the live engine alike."""

from __future__ import annotations

from typing import Literal

import msgspec

from tltsched.draft_config import DraftConfig
from tltsched.drafter_choice import Serving

# What an engine must do before the first drafting engine step after it ran without a drafter: nothing (the
# drafter's KV is in step), fill the drafter's KV, or requeue and prefill all again (released TLT).
ResumeCost = Literal["none", "draft_prefill", "reprefill"]


class Command(msgspec.Struct, frozen=True, tag_field="kind", gc=False):
    """Base of all commands."""


class SetDraftConfig(Command, frozen=True, tag="set_draft_config", gc=False):
    """Use `draft_config` for the next decision interval.

    The decision interval ends after `max_engine_steps` engine steps (None: no limit), as soon as fewer than
    `min_requests` are running, or when a request is admitted, whichever comes first.
    """

    worker: int
    draft_config: DraftConfig
    max_engine_steps: int | None
    min_requests: int
    resume_cost: ResumeCost = "none"


class Assign(Command, frozen=True, tag="assign", gc=False, omit_defaults=True):
    """Put these requests on a worker, in this order, whether it decodes already or not.

    A request that has generated tokens goes on from them, a session behind what its tools have returned. Its
    context is prefilled again unless `kv_kept`: then its KV cache comes from where it ran before; what an
    engine finds in its prefix cache is its own affair. With `chunk_tokens` each request leaves the worker
    after so many more tokens (0: when it is done, or at the end of a turn).
    """

    worker: int
    requests: tuple[int, ...]
    chunk_tokens: int = 0
    kv_kept: bool = False


class Withdraw(Command, frozen=True, tag="withdraw", gc=False):
    """Take these requests off a worker; it answers once, with RequestsWithdrawn."""

    worker: int
    requests: tuple[int, ...]


class Restart(Command, frozen=True, tag="restart", gc=False):
    """Throw away what these requests have generated; they will be assigned again from their prompts."""

    requests: tuple[int, ...]


class Drop(Command, frozen=True, tag="drop", gc=False):
    """Give these requests up, with what they have generated."""

    requests: tuple[int, ...]


class TrainOn(Command, frozen=True, tag="train_on", gc=False):
    """The policy is trained on these responses in this step; without it, on all that finished in it."""

    requests: tuple[int, ...]


class CallTools(Command, frozen=True, tag="call_tools", gc=False):
    """Begin the tool call that each of these sessions waits for; ToolsReturned answers, in any order.

    A Restart or Drop of a session ends its call, which is not to answer any more.
    """

    requests: tuple[int, ...]


class StartTraining(Command, frozen=True, tag="start_training", gc=False):
    """These idle workers join drafter training now."""

    workers: tuple[int, ...]


class StopTraining(Command, frozen=True, tag="stop_training", gc=False):
    """These workers must leave drafter training; each answers with TrainingStopped."""

    workers: tuple[int, ...]


class BeginPhase(Command, frozen=True, tag="begin_phase", gc=False, omit_defaults=True):
    """All workers enter a phase that follows the rollout.

    Where rollouts go on meanwhile, those of the trainers alone do, but for weight_sync: each engine stops at
    the end of its engine step, takes the weights and goes on with the requests that it has. They go on from
    the caches that they have if `kv_kept`, else their contexts are prefilled again.
    """

    phase: str
    kv_kept: bool = False


class PublishDrafter(Command, frozen=True, tag="publish_drafter", gc=False):
    """Give all workers the drafter weights trained so far, as `version`."""

    version: int
    trained_tokens: int


class ServeDrafter(Command, frozen=True, tag="serve_drafter", gc=False):
    """Draft with this from the next rollout on; the engine that takes over needs the policy's weights."""

    drafter: Serving


class EndStep(Command, frozen=True, tag="end_step", gc=False):
    """The RL step is complete."""

    step: int


ClusterCommand = (
    Assign
    | Withdraw
    | Restart
    | Drop
    | TrainOn
    | CallTools
    | StartTraining
    | StopTraining
    | BeginPhase
    | PublishDrafter
    | ServeDrafter
    | EndStep
)
