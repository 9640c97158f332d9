"""What the driver and its workers say to each other, as msgpack bytes: no pickle, so nothing is executed."""

from __future__ import annotations

import msgspec

from tlt.plugin.requests import AcceptanceCount
from tlt.realrun.config import RealConfig
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.training_config import TrainConfig
from tltsched.drafter_choice import Serving
from tltsched.event_log import SchedulerSetup

Minibatch = tuple[tuple[int, ...], int]
"""Requests of one optimizer step, and their response tokens together."""


class Message(msgspec.Struct, frozen=True, tag_field="kind", gc=False):
    """Base of all messages."""


# --- to a worker ------------------------------------------------------------------------------------------


class PolicySetup(msgspec.Struct, frozen=True, gc=False):
    """How a worker builds one policy. `past` are the lines of its scheduler from rollouts that are done.

    With `sessions` requests leave for tools and come back, and a rollout stays open until it is abandoned.
    """

    setup: SchedulerSetup
    speculating: bool
    past: tuple[bytes, ...] = ()
    sessions: bool = False


class Prepare(Message, frozen=True, tag="prepare", gc=False):
    """Build the engines and schedulers of all policies, and warm every (batch, K) up; answered by Ready.

    `factory` names the engine as `module:function`; it is imported in the worker.
    """

    worker: int
    config: RealConfig
    factory: str
    policies: dict[str, PolicySetup]
    batches: tuple[int, ...]
    ks: tuple[int, ...]


class Work(Message, frozen=True, tag="work", gc=False):
    """Generate these requests; to a worker that is in this rollout already they come on top.

    `origin_s` is the reading of the machine's clock at which the policy's clock would have stood at 0.
    """

    policy: str
    step: int
    origin_s: float
    requests: tuple[EngineRequest, ...]


class Withdraw(Message, frozen=True, tag="withdraw", gc=False):
    """Let go of these requests at the end of the engine step in flight; answered by Withdrawn."""

    policy: str
    step: int
    origin_s: float
    requests: tuple[int, ...]


class Reload(Message, frozen=True, tag="reload", gc=False):
    """Load the policy's own weights again at the end of the engine step in flight; answered by Reloaded.

    What is being generated goes on from the caches that it has if `kv_kept`, else it is prefilled again.
    """

    policy: str
    step: int
    origin_s: float
    version: int
    kv_kept: bool = False


class Abandon(Message, frozen=True, tag="abandon", gc=False):
    """Drop all requests and end the rollout; its last Report answers if one is on, else nothing does.

    A rollout that is open (sessions may come back to it) ends only so.
    """

    policy: str


class Close(Message, frozen=True, tag="close", gc=False):
    """Free the engines and end."""


class PrepareTraining(Message, frozen=True, tag="prepare_training", gc=False):
    """As Prepare, for one policy of RL training: with the model that is trained, and a head if one is.

    Workers sum gradients through a store at `host` and `port`; rank 0 holds it. `ranks` are the workers in
    order of rank. `checkpoint` is a folder to go on from, or empty; `drafter_version` is of the head that
    serves first (-1: none). With `fallback` there is a second engine, which drafts without a model.
    """

    worker: int
    config: TrainConfig
    factory: str
    policy: str
    setup: PolicySetup
    train_head: bool
    batches: tuple[int, ...]
    ks: tuple[int, ...]
    ranks: tuple[int, ...]
    host: str
    port: int
    checkpoint: str
    drafter_version: int
    fallback: bool
    serving: Serving


class Train(Message, frozen=True, tag="train", gc=False):
    """Use idle time for drafter training until StopTrain."""

    step: int
    origin_s: float


class StopTrain(Message, frozen=True, tag="stop_train", gc=False):
    """Leave drafter training; answered by Trained."""


class Phase(Message, frozen=True, tag="phase", gc=False):
    """Do your part of a phase after the rollout; answered by PhaseDone.

    In `policy_update`, `advantages` are those of all requests of the step and `minibatches` the requests of
    each optimizer step with their response tokens; other phases leave both empty.
    """

    phase: str
    step: int
    origin_s: float
    advantages: dict[int, float] = {}
    minibatches: tuple[Minibatch, ...] = ()


class Publish(Message, frozen=True, tag="publish", gc=False):
    """Average what the heads have learned over the workers and serve it as `version`."""

    version: int
    origin_s: float
    keep: str  # worker of rank 0: write the head here, beside the run


class Serve(Message, frozen=True, tag="serve", gc=False):
    """Roll out on the engine of this drafter from now on; its policy is loaded in the weight sync."""

    drafter: Serving


class Save(Message, frozen=True, tag="save", gc=False):
    """Write what training needs to go on from here into `folder`; answered by Saved."""

    folder: str


Order = (
    Prepare | PrepareTraining | Work | Withdraw | Reload | Abandon | Train | StopTrain | Phase | Publish
    | Serve | Save | Close
)  # fmt: skip
Cut = Withdraw | Reload | Abandon
"""Orders that end a decision interval before they are carried out."""

# --- from a worker ----------------------------------------------------------------------------------------


class EngineInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine that ran, for the record."""

    engine: str
    engine_version: str
    device: str
    torch: str
    environment: dict[str, str]
    kv_tokens: int = 0  # that the smallest of its KV caches holds; 0: it does not tell
    block_tokens: int = 0  # of a block of these caches; 0: it does not tell


class Ready(Message, frozen=True, tag="ready", gc=False):
    """All engines are built and warm."""

    info: EngineInfo
    warm_up_s: float


class EngineStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One engine step that began at `t_s` of the policy's clock; `k` was drafted for the one after it."""

    t_s: float
    seconds: float
    batch: int
    context_tokens: int
    prompt_tokens: int
    k: int
    drafted_tokens: int
    accepted_tokens: int
    compiled: bool
    preempted: int = 0


class Finish(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A response that is done, and when; with its tokens if they are wanted."""

    request: int
    tokens: int
    finish_s: float
    response: tuple[int, ...] = ()


class Report(Message, frozen=True, tag="report", gc=False):
    """What a worker did since its last report.

    `intervals` are (cause, end) of its time, in order. `lines` are records of its scheduler. With `over` its
    rollout has ended, and it had taken in `works` messages Work. `acceptance` is of requests that have
    finished; one may be counted in a later report, too, and then both add up. `context_tokens` are those of
    what it still runs, told where each finish is. `found` are requests that were admitted, with the tokens of
    each one's context that were in the prefix cache. `resting`: nothing is left to do until the next order.
    """

    policy: str
    step: int
    t_s: float
    finished: tuple[Finish, ...]
    intervals: tuple[tuple[str, float], ...]
    lines: tuple[bytes, ...]
    engine_steps: tuple[EngineStep, ...]
    over: bool = False
    works: int = 0
    acceptance: tuple[AcceptanceCount, ...] = ()
    context_tokens: int = 0
    found: tuple[tuple[int, int], ...] = ()
    resting: bool = False


class Withdrawn(Message, frozen=True, tag="withdrawn", gc=False):
    """The worker has let go of requests; `tokens` are those of each one's response so far.

    Those that finished before it read the order are missing.
    """

    t_s: float
    requests: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]


class Reloaded(Message, frozen=True, tag="reloaded", gc=False):
    """The weights are loaded. `intervals` are of a worker that rested; else its reports hold them."""

    t_s: float
    intervals: tuple[tuple[str, float], ...] = ()


class HeadStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One training step of the head: tokens with a loss, and the loss."""

    tokens: int
    loss: float


class Probe(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How well a head predicts this step's responses, on one worker and at one position.

    `head` is "serving" or "initial"; the columns are PROBE_COLUMNS of traces.runs.training. `tokens`
    weighs workers against one another.
    """

    head: str
    position: int
    greedy: float
    sampled: float
    tokens: int


class Trained(Message, frozen=True, tag="trained", gc=False):
    """The worker has left drafter training. `scored` responses had their log-probabilities taken on the way.

    `stop_s` is the time from reading the order to leaving.
    """

    step: int
    t_s: float
    intervals: tuple[tuple[str, float], ...]
    steps: tuple[HeadStep, ...]
    scored: int
    stop_s: float


class PhaseDone(Message, frozen=True, tag="phase_done", gc=False):
    """The worker's part of a phase is done; `facts` (UPDATE_COLUMNS) add up over workers."""

    phase: str
    t_s: float
    intervals: tuple[tuple[str, float], ...]
    rewards: dict[int, float] = {}
    facts: dict[str, float] = {}
    probes: tuple[Probe, ...] = ()


class Saved(Message, frozen=True, tag="saved", gc=False):
    """The checkpoint's part of this worker is on disk."""

    seconds: float


class Failed(Message, frozen=True, tag="failed", gc=False):
    """The worker ends with an error. `refused` holds the parts of an InputError."""

    text: str
    refused: tuple[str, str, str, str] | None = None


Answer = Ready | Report | Withdrawn | Reloaded | Trained | PhaseDone | Saved | Failed

encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
