"""What the live driver keeps of a step, beside what every driver does (tlt.traces.runs.step_log).

A step that is over is kept on disk as it is, so that a run that was stopped goes on behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import field

from tlt.plugin.requests import AcceptanceCount
from tlt.realrun.driver.sessions import TurnCount
from tlt.realrun.workers.messages import EngineStep, HeadStep, PhaseDone, Probe, Trained
from tlt.traces.runs.step_log import StepState
from tltsched.drafter_choice import Serving
from tltsched.event_log import Record, encode, read
from tltsched.events import DecisionEnded


class Response(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A response that is done: who generated it, how long it is, and when it was.

    `start_s` is when its generation began that counts; `born` and `ended` are the policy updates that the
    weights had seen when it began and when it was done.
    """

    request: int
    worker: int
    tokens: int
    finish_s: float
    group: int
    prompt_tokens: int
    start_s: float
    born: int
    ended: int


class Carried(msgspec.Struct):
    """What a request has that outlives a step; `born` -1: not begun, `finish_s` below 0: not done."""

    request: int
    tokens: tuple[int, ...] = ()  # to go on behind, if it is not done
    emitted: int = 0
    born: int = -1
    ended: int = -1
    start_s: float = -1.0
    finish_s: float = -1.0


class Interval(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker's time up to `end_s`, from the end of its interval before."""

    worker: int
    cause: str
    end_s: float


class Loss(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker that died, in which step of which policy, and at what time of that policy's clock."""

    worker: int
    step: int
    policy: str
    t_s: float
    reason: str


class LiveStep(StepState, kw_only=True):
    """What one step of one policy has seen so far.

    `lines` are its records in order of time, numbered an owner, once it is over. What follows `acceptance` is
    of RL training: `drafter` is what the rollout drafted with, `drafter_next` and `serves_next` (version and
    age in policy updates; version -1: none) are what the next step begins with.
    """

    policy: str
    responses: list[Response] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    engine_steps: list[tuple[int, tuple[EngineStep, ...]]] = field(
        default_factory=list
    )  # (worker, engine steps)
    lines: tuple[bytes, ...] = ()
    losses: list[Loss] = field(default_factory=list)
    acceptance: list[AcceptanceCount] = field(default_factory=list)
    wasted_tokens: int = 0  # generated and thrown away
    dropped_responses: int = 0  # given up
    dropped_tokens: int = 0  # of those; part of wasted_tokens
    carried: list[Carried] = field(default_factory=list)  # to the next step
    turns: list[TurnCount] = field(default_factory=list)  # of sessions, as engines admitted them
    sessions: list[tuple[int, int, float, float]] = field(
        default_factory=list
    )  # (request, turns, seconds of tools, seconds until they ran)

    handover_end_s: float = -1.0
    rewards: dict[int, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)  # UPDATE_COLUMNS that workers add up
    heads: dict[int, tuple[HeadStep, ...]] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)
    scored_early: int = 0
    stop_s: float = 0.0
    drafter: Serving = "head"
    drafter_next: Serving = "head"
    serves_next: tuple[int, int] = (-1, 0)

    def count_all(self, lines: Iterable[bytes]) -> None:
        """Count the decision intervals among records towards acceptance."""
        for record in read(lines):
            if isinstance(record.body, DecisionEnded):
                ended = record.body
                self.count(ended.draft_config, ended.request_steps, ended.accepted_by_position)

    def note_dropped(self, responses: int, tokens: int) -> None:
        """Count responses that were given up with their tokens."""
        self.wasted_tokens += tokens
        self.dropped_tokens += tokens
        self.dropped_responses += responses

    def note_trained(self, worker: int, trained: Trained) -> int:
        """Take in what a worker has trained the drafter on; returns the tokens."""
        tokens = sum(head.tokens for head in trained.steps)
        self.heads[worker] = self.heads.get(worker, ()) + trained.steps
        self.trained_tokens += tokens
        self.scored_early += trained.scored
        self.stop_s = max(self.stop_s, trained.stop_s)
        return tokens

    def note_phase(self, done: PhaseDone) -> None:
        """Take in what one worker's part of a phase came to."""
        self.rewards |= done.rewards
        self.probes += done.probes
        for name, value in done.facts.items():
            self.facts[name] = self.facts.get(name, 0.0) + value


def decode_step(content: bytes) -> LiveStep:
    """Decode a step that was kept.

    Raises msgspec.MsgspecError for other content, that of versions whose responses told no group among it.
    """
    table = msgspec.msgpack.decode(content, type=dict[str, Any])
    rows = table.get("responses", ())
    if "rollout" in table or any(len(row) < len(Response.__struct_fields__) for row in rows):
        raise msgspec.ValidationError("an earlier version kept it, without the groups of its responses")
    return msgspec.convert(table, LiveStep)


class Drafter:
    """What drafts now, as the driver knows it."""

    def __init__(self, version: int, age_steps: int = 0, kind: Serving = "head") -> None:
        """`version` is of the head that serves; -1: none."""
        self.version = version
        self.age_steps = age_steps
        self.kind: Serving = kind
        self._updates = 0  # of the policy in this step

    def begin_step(self) -> None:
        """Take in that a step begins."""
        self._updates = 0

    def policy_updated(self) -> None:
        """Take in that the policy has moved."""
        self._updates += 1
        self.age_steps += 1

    def publish(self, version: int) -> None:
        """Serve a new head: trained on responses of this step, it lags the updates that came after them."""
        self.version, self.age_steps = version, self._updates


def numbered(steps: Iterable[LiveStep]) -> Iterator[bytes]:
    """Yield the records of all steps, numbered through."""
    records = (record for step in steps for record in read(step.lines))
    for seq, record in enumerate(records):
        yield encode(Record(record.t_s, seq, record.owner, record.body))


def records_of(steps: Iterable[LiveStep], owner: str) -> list[Record]:
    """Return what is on record of one scheduler."""
    return [record for step in steps for record in read(step.lines) if record.owner == owner]
