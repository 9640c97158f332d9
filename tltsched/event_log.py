"""The record of a run, one JSON line an event or a command, and its replay.

A line is a Record: when, its place in the order, who decided (`cluster` or `worker/3`), and the event or
command itself. A replay hands the recorded events to fresh schedulers; the same setup and seed give the same
commands, so the replayed lines equal the recorded ones byte for byte unless the schedulers have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest

import msgspec

from tltsched.cluster import ClusterScheduler, ClusterState
from tltsched.cluster_config import ClusterConfig
from tltsched.commands import ClusterCommand, Command, SetDraftConfig
from tltsched.errors import InputError
from tltsched.events import ClusterEvent, WorkerEvent
from tltsched.policies import PolicySpec
from tltsched.policies.base import Rng
from tltsched.schedules.cluster_view import UNLIMITED, Capacity
from tltsched.step_times import StepTimeTable
from tltsched.worker import WorkerScheduler

CLUSTER = "cluster"
Body = WorkerEvent | ClusterEvent | SetDraftConfig | ClusterCommand


class SchedulerSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that the schedulers of a run were built from; `step_times` only if the policy needs them."""

    workers: int
    policy: PolicySpec
    cluster: ClusterConfig = ClusterConfig()
    step_times: StepTimeTable | None = None
    capacity: Capacity = UNLIMITED
    seed: int = 0


class Record(msgspec.Struct, frozen=True, gc=False):
    """One line. `t_s` of a command is that of the event it answers; `seq` counts the lines from 0."""

    t_s: float
    seq: int
    owner: str
    body: Body


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


def encode(record: Record) -> bytes:
    """Return the line of a record, newline included."""
    return _encode(record) + b"\n"


def read(lines: Iterable[bytes]) -> Iterator[Record]:
    """Decode lines, blank ones left out; raises InputError with the number of a line that is no record."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _decode(line)
            except msgspec.MsgspecError as error:
                raise InputError(
                    "records", f"line {number}: {error}", "lines written by a run", "record the run again"
                ) from None


class Recorder:
    """Writes lines to a sink, such as the write method of an open binary file."""

    def __init__(self, sink: Callable[[bytes], object]) -> None:
        self._sink = sink
        self._seq = 0

    def add(self, owner: str, t_s: float, body: Body) -> None:
        """Write one event or command."""
        self._sink(encode(Record(t_s, self._seq, owner, body)))
        self._seq += 1


class RecordedWorker:
    """A worker's scheduler that records what goes in and what comes out; drivers use it in its place."""

    def __init__(self, scheduler: WorkerScheduler, recorder: Recorder | None) -> None:
        self.worker = scheduler.worker  # its number
        self.wants_requests = scheduler.wants_requests
        self.drafts = scheduler.drafts
        self._scheduler = scheduler
        self._recorder = recorder
        self._owner = worker_owner(scheduler.worker)

    @property
    def asks_policy(self) -> bool:
        """Whether the policy is asked in the rollout that is on."""
        return self._scheduler.asks_policy

    def handle(self, event: WorkerEvent) -> tuple[SetDraftConfig, ...]:
        """Record the event, handle it, record the commands; an event that is refused is on record too."""
        recorder = self._recorder
        if recorder is None:
            return self._scheduler.handle(event)
        recorder.add(self._owner, event.t_s, event)
        commands = self._scheduler.handle(event)
        for command in commands:
            recorder.add(self._owner, event.t_s, command)
        return commands


class RecordedCluster:
    """A cluster's scheduler that records what goes in and what comes out; drivers use it in its place."""

    def __init__(self, scheduler: ClusterScheduler, recorder: Recorder | None) -> None:
        self.config = scheduler.config
        self.schedule = scheduler.schedule
        self.view = scheduler.cluster_view
        self._scheduler = scheduler
        self._recorder = recorder

    @property
    def rolling_out(self) -> bool:
        """Whether requests are being generated, and neither hand-over nor phases have begun."""
        return self._scheduler.state is ClusterState.ROLLOUT

    @property
    def pausing(self) -> bool:
        """Whether requests are being stopped, or run to their ends, before new weights go out."""
        return self._scheduler.state is ClusterState.PAUSE

    def handle(self, event: ClusterEvent) -> tuple[ClusterCommand, ...]:
        """Record the event, handle it, record the commands; an event that is refused is on record too."""
        recorder = self._recorder
        if recorder is None:
            return self._scheduler.handle(event)
        recorder.add(CLUSTER, event.t_s, event)
        commands = self._scheduler.handle(event)
        for command in commands:
            recorder.add(CLUSTER, event.t_s, command)
        return commands


def worker_owner(worker: int) -> str:
    """Return the name under which a worker's lines stand."""
    return f"worker/{worker}"


def build_worker(setup: SchedulerSetup, worker: int, make_rng: Callable[[int], Rng]) -> WorkerScheduler:
    """Return a fresh scheduler of one worker; `make_rng(worker)` must depend on the setup's seed alone."""
    return WorkerScheduler(worker, setup.policy.build(make_rng(worker), setup.step_times))


def build_cluster(setup: SchedulerSetup) -> ClusterScheduler:
    """Return a fresh scheduler of the cluster."""
    return ClusterScheduler(setup.workers, setup.cluster, setup.capacity)


def replay(
    setup: SchedulerSetup, records: Iterable[Record], make_rng: Callable[[int], Rng]
) -> Iterator[Record]:
    """Yield the recorded events again, each with the commands that it brings about now.

    Recorded commands are skipped. Raises ProtocolError where the schedulers now refuse an event, and
    InputError for a record of a worker that the setup does not have.
    """
    cluster = build_cluster(setup)
    workers = {worker_owner(worker): build_worker(setup, worker, make_rng) for worker in range(setup.workers)}
    seq = 0
    for record in records:
        event = record.body
        if isinstance(event, Command):
            continue
        yield Record(record.t_s, seq, record.owner, event)
        seq += 1
        commands: tuple[SetDraftConfig | ClusterCommand, ...]
        if record.owner == CLUSTER and isinstance(event, ClusterEvent):
            commands = cluster.handle(event)
        elif record.owner in workers and isinstance(event, WorkerEvent):
            commands = workers[record.owner].handle(event)
        else:
            raise InputError(
                "record",
                f"{type(event).__name__} of {record.owner}",
                f"events of {CLUSTER} and of {worker_owner(0)} to {worker_owner(setup.workers - 1)}",
                "use the scheduler.json of the same run",
            )
        for command in commands:
            yield Record(record.t_s, seq, record.owner, command)
            seq += 1


def first_difference(
    recorded: Iterable[Record], replayed: Iterable[Record]
) -> tuple[Record | None, Record | None] | None:
    """Return the first pair of records that differ (None: that side has ended), or None if none do."""
    for pair in zip_longest(recorded, replayed):
        if pair[0] != pair[1]:
            return pair
    return None
