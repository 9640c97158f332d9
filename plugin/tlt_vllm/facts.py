"""The files that the plugin writes: one folder a job, a folder in it an engine, a line in that a fact.

    OUT/step_times.json             step times that were measured on the fly (tltsched.step_times)
    OUT/engines/0000/engine.json    who writes here (EngineFacts); numbers are given in order of starting
    OUT/engines/0000/facts.jsonl    what the engine did, a line a fact: any struct with a `kind` below
    OUT/engines/0000/records.jsonl  events and commands of its scheduler (tltsched.event_log)

`tlt real collect OUT` makes a run folder of it, in OUT itself. Seconds `t_s` count from `started_unix_s` of
the engine. A line is written whole or, if the engine was killed, is the last one and torn.
"""

from __future__ import annotations

import msgspec

from tltsched.event_log import SchedulerSetup

from .requests import AcceptanceCount

FORMAT_VERSION = 1
ENGINES, ENGINE, FACTS, RECORDS, STEP_TIMES = (
    "engines", "engine.json", "facts.jsonl", "records.jsonl", "step_times.json",
)  # fmt: skip


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes in a folder. Settings of the engine that it does not tell are empty or 0."""

    format_version: int = FORMAT_VERSION
    number: int  # of the engine in this job: the name of its folder, and `worker` in records
    name: str
    mode: str  # watch, advise or control
    policy: str  # that decides: the engine's own rule, written as a policy, in modes watch and advise
    advised_policy: str = ""  # mode advise: whose choices stand in lines of kind `advice`
    setup: SchedulerSetup | None = None  # of the policy that decides; None until its step times are measured
    engine: str
    engine_version: str
    plugin_version: str
    model: str
    device: str
    gpus: int
    rank: str = ""  # data-parallel rank, if there are several
    host: str
    pid: int
    started_unix_s: float
    max_running: int
    kv_tokens: int = 0
    method: str = ""  # of speculation; empty: none is configured
    max_drafts: int = 0
    configured: bool = False  # the plugin configured the speculation, for the framework passed none
    graphs: str = ""  # vLLM's cudagraph_mode
    asynchronous: bool = False  # engine steps are planned while the one before runs
    prefix_caching: bool = False


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", gc=False, omit_defaults=True):
    """Base of the lines of facts.jsonl; fields at their defaults are left out."""

    t_s: float


class Step(Fact, frozen=True, tag="step", gc=False):
    """One engine step; `t_s` is its begin. Counts are those of engine_step.EngineStepFacts."""

    seconds: float
    batch: int
    context_tokens: int
    k: int = 0  # drafts to be made for a later engine step
    prompt_tokens: int = 0
    drafted_tokens: int = 0  # verified in this one
    accepted_by_position: tuple[int, ...] = ()
    waiting: int = 0  # requests that are not in the batch
    preempted: int = 0
    compiled: bool = False  # or captured something: its time means nothing
    graph: str = ""  # FULL, PIECEWISE or NONE where the engine tells (its cudagraph_metrics)


class Finished(Fact, frozen=True, tag="request", gc=False):
    """A response that is done; `t_s` is when it was. `request` numbers those of this engine."""

    request: int
    name: str  # the engine's own
    rollout: int
    prompt: int  # equal for equal prompts, in every engine; negative: its tokens are not known
    prompt_tokens: int
    response_tokens: int
    reason: str  # stop, length, abort, ...
    arrived_s: float
    started_s: float  # first engine step
    preemptions: int = 0
    drafts: tuple[AcceptanceCount, ...] = ()  # by range of the length of the response


class RolloutStarted(Fact, frozen=True, tag="rollout_began", gc=False):
    """The engine has its first requests after the end of a rollout."""

    rollout: int
    policy_version: int  # updates of the weights since the engine started
    drafter_version: int  # updates of the drafter's; -1: the engine has no drafter


class RolloutOver(Fact, frozen=True, tag="rollout_ended", gc=False):
    """A rollout is over: `t_s` is when its last response was done, or when weights changed under it."""

    rollout: int
    reason: str  # drained, weights, caches, sleep, shutdown


class Drained(Fact, frozen=True, tag="drained", gc=False):
    """The engine has no requests left; its rollout ends here unless more come within rollout_gap_s."""


class Weights(Fact, frozen=True, tag="weights", gc=False):
    """Weights were changed. `what`: policy, drafter, or caches (they were dropped: new weights, we think)."""

    what: str
    policy_version: int
    drafter_version: int


class Slept(Fact, frozen=True, tag="sleep", gc=False):
    """The engine was put to sleep."""

    level: int


class Woke(Fact, frozen=True, tag="wake", gc=False):
    """The engine was woken."""


class Advice(Fact, frozen=True, tag="advice", gc=False):
    """What the advised policy chooses for this batch, and what the engine does."""

    requests: int
    context_tokens: int
    advised: str
    actual: str


class Measured(Fact, frozen=True, tag="step_times", gc=False):
    """Step times are known from here on: the policy is in charge."""

    engine_steps: int


class Fault(Fact, frozen=True, tag="fault", gc=False):
    """The plugin stopped here, and the engine went on with its own choice."""

    text: str


AnyFact = (
    Step
    | Finished
    | RolloutStarted
    | RolloutOver
    | Drained
    | Weights
    | Slept
    | Woke
    | Advice
    | Measured
    | Fault
)
