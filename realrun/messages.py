"""What the driver and its workers say to each other, as msgpack bytes: no pickle, so nothing is executed."""

from __future__ import annotations

import msgspec

from realrun.config import RealConfig
from realrun.engine import EngineRequest
from tltsched.record import SchedulerSetup


class Message(msgspec.Struct, frozen=True, tag_field="kind", gc=False):
    """Base of all messages."""


# --- to a worker ------------------------------------------------------------------------------------------


class ArmSetup(msgspec.Struct, frozen=True, gc=False):
    """How a worker builds one arm. `past` are the lines of its scheduler from rollouts that are done."""

    setup: SchedulerSetup
    speculating: bool
    past: tuple[bytes, ...] = ()


class Prepare(Message, frozen=True, tag="prepare", gc=False):
    """Build the engines and schedulers of all arms, and warm every (batch, K) up; answered by Ready.

    `factory` names the engine as `module:function`; it is imported in the worker.
    """

    worker: int
    config: RealConfig
    factory: str
    arms: dict[str, ArmSetup]
    batches: tuple[int, ...]
    ks: tuple[int, ...]


class Work(Message, frozen=True, tag="work", gc=False):
    """Generate these requests; to a worker that is in this rollout already they come on top.

    `origin_s` is the reading of the worker's own clock at which the arm's clock would have stood at 0.
    """

    arm: str
    step: int
    origin_s: float
    requests: tuple[EngineRequest, ...]


class Close(Message, frozen=True, tag="close", gc=False):
    """Free the engines and end."""


Order = Prepare | Work | Close

# --- from a worker ----------------------------------------------------------------------------------------


class EngineInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine that ran, for the record."""

    engine: str
    engine_version: str
    device: str
    torch: str
    environment: dict[str, str]


class Ready(Message, frozen=True, tag="ready", gc=False):
    """All engines are built and warm. `clock_s` is the worker's clock as it answered."""

    info: EngineInfo
    warm_up_s: float
    clock_s: float


class Cycle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One engine cycle that began at `t_s` of the arm's clock; `k` was drafted for the cycle after it."""

    t_s: float
    seconds: float
    batch: int
    context_tokens: int
    prompt_tokens: int
    k: int
    drafted_tokens: int
    accepted_tokens: int
    compiled: bool


class Finish(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A response that is done, and when."""

    request: int
    tokens: int
    finish_s: float


class Report(Message, frozen=True, tag="report", gc=False):
    """What a worker did since its last report.

    `spans` are (cause, end) of stretches of time, in order. `lines` are records of its scheduler. With `over`
    its rollout has ended, and it had taken in `works` messages Work.
    """

    arm: str
    step: int
    t_s: float
    finished: tuple[Finish, ...]
    spans: tuple[tuple[str, float], ...]
    lines: tuple[bytes, ...]
    cycles: tuple[Cycle, ...]
    over: bool = False
    works: int = 0


class Failed(Message, frozen=True, tag="failed", gc=False):
    """The worker ends with an error. `refused` holds the parts of an InputError."""

    text: str
    refused: tuple[str, str, str, str] | None = None


Answer = Ready | Report | Failed

encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
