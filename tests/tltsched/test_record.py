"""Records: written, read, replayed to the same bytes, and compared."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from tests.tltsched.all_policies import TIMES
from tltsched.cluster_config import ClusterConfig
from tltsched.commands import EndStep, SetDraftConfig
from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError, ProtocolError
from tltsched.event_log import (
    Record,
    RecordedCluster,
    RecordedWorker,
    Recorder,
    SchedulerSetup,
    build_cluster,
    build_worker,
    encode,
    first_difference,
    read,
    replay,
)
from tltsched.events import (
    BatchFormed,
    DecisionEnded,
    PhaseEnded,
    Request,
    RequestsFinished,
    RolloutBegan,
    RolloutEnded,
    StepBegan,
    TrainingStopped,
    WorkerEvent,
)
from tltsched.policies import PRESETS, PolicySpec
from tltsched.policies.base import Rng
from tltsched.policies.static import StaticConfig
from tltsched.spot import SpotConfig


def setup(policy: PolicySpec, seed: int = 7) -> SchedulerSetup:
    cluster = ClusterConfig(phases=("reward",), spot=SpotConfig(enabled=True))
    return SchedulerSetup(workers=2, policy=policy, cluster=cluster, step_times=TIMES, seed=seed)


def rng_of(seed: int) -> Callable[[int], Rng]:
    return lambda worker: Random(f"{seed}/{worker}")  # noqa: S311


def roll_out(worker: RecordedWorker, number: int, step: int, requests: int) -> None:
    """Run one request after the other to its end: one in a long interval, one in a row of short ones."""
    t_s, total = float(step), 0
    worker.handle(RolloutBegan(t_s, number, step, 0))
    (draft,) = worker.handle(BatchFormed(t_s, number, requests, 1000 * requests))
    while requests:
        engine_steps = min(40, draft.max_engine_steps or 40)
        accepted = tuple(
            int(requests * engine_steps * 0.8**position)
            for position in range(1, draft.draft_config.depth + 1)
        )
        t_s += 0.001
        total += engine_steps
        decoded = engine_steps * requests
        requests -= engine_steps >= 30 or requests <= 3 or total % 8 == 0
        event = DecisionEnded(
            *(t_s, number, draft.draft_config, engine_steps, decoded, 0.3 + t_s % 0.01, accepted),
            *((), requests, 1000 * requests),
            tuple((row, engine_steps, engine_steps * row // 50) for row in range(requests))
            if worker.wants_requests and accepted
            else (),
        )
        (draft,) = worker.handle(event) or (draft,)
    worker.handle(RolloutEnded(t_s, number))


def run(config: SchedulerSetup) -> list[bytes]:
    """Three steps of two workers; the second one falls idle first and trains."""
    lines: list[bytes] = []
    recorder = Recorder(lines.append)
    cluster = RecordedCluster(build_cluster(config), recorder)
    workers = [RecordedWorker(build_worker(config, n, rng_of(config.seed)), recorder) for n in (0, 1)]
    for step in range(3):
        requests = tuple(Request(number, 0, 100) for number in range(80))
        cluster.handle(StepBegan(float(step), step, requests))
        for number in (1, 0):
            roll_out(workers[number], number, step, 40)
            ids = tuple(range(40 * number, 40 * number + 40))
            cluster.handle(RequestsFinished(step + 0.5, number, ids))
        cluster.handle(TrainingStopped(step + 0.6, 1, 500))
        cluster.handle(PhaseEnded(step + 0.7, "reward"))
    return lines


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_replay_gives_the_same_bytes(name: str) -> None:
    config = setup(PRESETS[name])
    lines = run(config)
    assert lines == run(config), "same events, same seed"
    stored = msgspec.json.decode(msgspec.json.encode(config), type=SchedulerSetup)
    again = list(replay(stored, read(lines), rng_of(stored.seed)))
    assert [encode(record) for record in again] == lines
    assert first_difference(read(lines), again) is None


def test_drafts_by_request_stand_in_a_line_only_where_there_are_some() -> None:
    facts = DecisionEnded(1.0, 0, chain(2), 5, 10, 0.5, (6, 3), (4,), 1, 100)
    plain, told = (
        encode(Record(1.0, 3, "worker/0", body))
        for body in (facts, msgspec.structs.replace(facts, by_request=((4, 5, 6), (9, 5, 3))))
    )
    assert plain == (
        b'{"t_s":1.0,"seq":3,"owner":"worker/0","body":{"kind":"decision_ended","t_s":1.0,"worker":0,'
        b'"draft_config":{"depth":2,"topk":1,"verify_tokens":3},"engine_steps":5,"request_steps":10,'
        b'"decode_s":0.5,"accepted_by_position":[6,3],"finished":[4],"requests":1,"context_tokens":100}}\n'
    )
    assert told == plain.replace(b":100}}", b':100,"by_request":[[4,5,6],[9,5,3]]}}')
    for line in (plain, told):
        (record,) = read([line])
        assert encode(record) == line


def test_the_drafts_of_each_request_decide() -> None:
    config = setup(PRESETS["goodput"])
    lines = run(config)
    without = [
        encode(
            msgspec.structs.replace(record, body=msgspec.structs.replace(record.body, by_request=()))
            if isinstance(record.body, DecisionEnded)
            else record
        )
        for record in read(lines)
    ]
    assert first_difference(read(lines), replay(config, read(without), rng_of(0))) is not None
    assert lines != without
    assert not any(b"by_request" in line for line in run(setup(PRESETS["goodput_mean"])))


def test_another_seed_shows_where_it_first_decides_otherwise() -> None:
    config = setup(PRESETS["tlt"])
    lines = run(config)
    shown = first_difference(read(lines), replay(config, read(lines), rng_of(1)))
    assert shown is not None
    recorded, replayed = shown
    assert recorded is not None
    assert replayed is not None
    assert isinstance(recorded.body, SetDraftConfig)
    assert (recorded.seq, recorded.owner) == (replayed.seq, replayed.owner)
    assert recorded.body != replayed.body


def test_a_side_that_ends_early_differs_by_nothing() -> None:
    records = list(read(run(setup(PRESETS["none"]))))
    assert first_difference(records, records[:-1]) == (records[-1], None)
    assert first_difference([], []) is None


def test_lines_are_plain_json_in_order() -> None:
    lines = run(setup(PRESETS["none"]))
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    first = msgspec.json.decode(lines[1])
    assert first == {
        "t_s": 0.0,
        "seq": 1,
        "owner": "cluster",
        "body": {"kind": "assign", "worker": 0, "requests": list(range(40))},
    }
    assert [record.seq for record in read(lines)] == list(range(len(lines)))
    assert isinstance(list(read(lines))[-1].body, EndStep)


def test_without_a_recorder_the_commands_are_the_same() -> None:
    config = setup(PRESETS["tlt"])
    lines: list[bytes] = []
    quiet, loud = (
        RecordedWorker(build_worker(config, 0, rng_of(7)), recorder)
        for recorder in (None, Recorder(lines.append))
    )
    for event in (RolloutBegan(0.0, 0, 0, 0), BatchFormed(0.0, 0, 20, 100)):
        assert quiet.handle(event) == loud.handle(event)
    assert len(lines) == 3


def test_an_event_that_is_refused_is_on_record() -> None:
    lines: list[bytes] = []
    worker = RecordedWorker(build_worker(setup(PRESETS["none"]), 0, rng_of(0)), Recorder(lines.append))
    with pytest.raises(ProtocolError):
        worker.handle(RolloutEnded(0.0, 0))
    assert len(lines) == 1


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b'{"t_s":0,"seq":0,"owner":"cluster","body":{"kind":"dance"}}', b'{"t_s":"x","seq":0}'],
)
def test_a_line_that_is_no_record_is_named(line: bytes) -> None:
    good = encode(Record(0.0, 0, "worker/0", RolloutBegan(0.0, 0, 0, 0)))
    with pytest.raises(InputError, match="line 3"):
        list(read([good, b"\n", line]))


@pytest.mark.parametrize(
    ("owner", "event"),
    [("worker/5", RolloutBegan(0.0, 5, 0, 0)), ("cluster", RolloutBegan(0.0, 0, 0, 0)), ("me", None)],
)
def test_a_record_of_somebody_unknown_is_refused(owner: str, event: WorkerEvent | None) -> None:
    records = [Record(0.0, 0, owner, event or PhaseEnded(0.0, "reward"))]
    with pytest.raises(InputError, match="events of cluster and of worker/0 to worker/1"):
        list(replay(setup(PRESETS["none"]), records, rng_of(0)))


def test_setup_carries_draft_configs_as_numbers() -> None:
    document = msgspec.json.decode(msgspec.json.encode(setup(StaticConfig(draft_config="4"))))
    assert document["policy"] == {"kind": "static", "draft_config": "4", "when_off": "k0"}
    assert document["step_times"]["draft_configs"][0]["draft_config"] == msgspec.to_builtins(OFF)
