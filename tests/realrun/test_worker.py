"""The live worker on a fake engine and its fake clock: decision intervals, admission, booked time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from tests.realrun.fakes import REQUEST_S, STEP_S, FakeEngine, flat_times
from tlt.plugin.engine_step import EngineStepFacts, RequestDrafts
from tlt.plugin.requests import AcceptanceCount, RequestCounts
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.workers.messages import Finish, Work
from tlt.realrun.workers.worker import DecisionInterval, Log, Worker
from tlt.traces.common.seeds import scheduler_rng
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import chain
from tltsched.event_log import Record, RecordedWorker, Recorder, SchedulerSetup, build_worker, read
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan, RolloutEnded
from tltsched.policies import PolicySpec, parse_policy
from tltsched.policies.goodput import GoodputConfig


def requests(*lengths: int, prompt: int = 8, first: int = 0) -> list[EngineRequest]:
    return [EngineRequest(first + row, tuple(range(prompt)), tokens) for row, tokens in enumerate(lengths)]


class Bench:
    """A worker with its records and reports."""

    def __init__(self, policy: str | PolicySpec, engine: FakeEngine) -> None:
        spec = parse_policy(policy) if isinstance(policy, str) else policy
        times = flat_times(tuple(chain(k) for k in range(1, 5)), 64)
        setup = SchedulerSetup(workers=1, policy=spec, step_times=times)
        self.lines: list[bytes] = []
        self.logs: list[Log] = []
        scheduler = build_worker(setup, 0, partial(scheduler_rng, 0))
        recorded = RecordedWorker(scheduler, Recorder(self.lines.append))
        self.engine = engine
        self.worker = Worker(recorded, engine, engine.clock, self.logs.append)

    def rollout(self, asked: Sequence[EngineRequest], step: int = 0) -> None:
        self.logs.append(self.worker.rollout(step, asked))

    def records(self) -> list[Record]:
        return list(read(self.lines))

    def bodies(self, kind: type) -> list[object]:
        return [record.body for record in self.records() if isinstance(record.body, kind)]

    def finishes(self) -> list[Finish]:
        return [finish for log in self.logs for finish in log.finished]


def test_one_decision_interval_without_speculation() -> None:
    bench = Bench("none", FakeEngine(8, 0))
    bench.rollout(requests(3, 5))
    kinds = [type(record.body) for record in bench.records()]
    assert kinds == [RolloutBegan, BatchFormed, SetDraftConfig, DecisionEnded, RolloutEnded]
    (interval,) = bench.bodies(DecisionEnded)
    assert isinstance(interval, DecisionEnded)
    # The first token of each comes out of prefill: 2 engine steps of two requests, 2 of one.
    assert (interval.engine_steps, interval.request_steps, interval.requests) == (4, 6, 0)
    assert interval.decode_s == pytest.approx(4 * STEP_S + 6 * REQUEST_S)
    assert sorted(interval.finished) == [0, 1]
    assert [(finish.request, finish.tokens) for finish in bench.finishes()] == [(0, 3), (1, 5)]
    assert bench.bodies(RolloutBegan)[0].drafter_version == -1  # type: ignore[attr-defined]


def test_prefill_is_booked_apart_and_spans_tile() -> None:
    bench = Bench("static:2", FakeEngine(8, 4, chunk_tokens=10))
    bench.rollout(requests(20, 30, 40))
    booked = [interval for log in bench.logs for interval in log.intervals]
    assert [cause for cause, _ in booked] == ["prefill", "speculate"]
    assert booked[0][1] == pytest.approx(24 * 1e-5)
    assert booked[-1][1] == bench.engine.now_s
    steps = [step for log in bench.logs for step in log.engine_steps]
    assert sum(step.prompt_tokens for step in steps) == 24
    assert sum(step.seconds for step in steps) == pytest.approx(bench.engine.now_s)
    decisions = [body for body in bench.bodies(DecisionEnded) if isinstance(body, DecisionEnded)]
    assert sum(decision.engine_steps for decision in decisions) == sum(
        not step.prompt_tokens for step in steps
    )
    assert sum(sum(decision.accepted_by_position) for decision in decisions) == sum(
        step.accepted_tokens for step in steps
    )


def test_an_admission_ends_the_decision_interval_before_it() -> None:
    bench = Bench("none", FakeEngine(2, 0))
    bench.rollout(requests(4, 10, 6))
    story = [record.body for record in bench.records()]
    kinds = [type(body) for body in story]
    assert kinds == [
        *(RolloutBegan, BatchFormed, SetDraftConfig),
        *(DecisionEnded, SetDraftConfig),  # request 0 is done; the decision that this gives is replaced
        *(BatchFormed, SetDraftConfig, DecisionEnded, RolloutEnded),
    ]
    first, second = (body for body in story if isinstance(body, DecisionEnded))
    assert (first.engine_steps, first.requests, first.finished) == (3, 1, (0,))
    assert first.context_tokens == 8 + 3
    formed = [body for body in story if isinstance(body, BatchFormed)]
    assert [batch.requests for batch in formed] == [2, 2]
    assert first.t_s < formed[1].t_s  # the prefill lies between
    assert second.requests == 0
    intervals = [interval for log in bench.logs for interval in log.intervals]
    assert [cause for cause, _ in intervals] == ["prefill", "decode", "prefill", "decode"]


def test_more_requests_than_run_at_once_are_all_generated() -> None:
    bench = Bench("tlt_chains", FakeEngine(4, 4))
    lengths = [5 + 7 * row % 31 for row in range(23)]
    bench.rollout(requests(*lengths))
    assert {finish.request: finish.tokens for finish in bench.finishes()} == dict(enumerate(lengths))
    ends = [end for log in bench.logs for _, end in log.intervals]
    assert ends == sorted(ends)


def test_requests_that_come_on_the_way_join_the_rollout() -> None:
    bench = Bench("none", FakeEngine(8, 0))
    late = [requests(9, first=50)]

    def orders(wait: bool) -> Sequence[Work]:
        assert not wait, "a rollout that is not open never waits"
        come = len(bench.engine.stepped) >= 6 and late
        return (Work("none", 0, 0.0, tuple(late.pop())),) if come else ()

    bench.logs.append(bench.worker.rollout(0, requests(20, 30), orders))
    assert {finish.request for finish in bench.finishes()} == {0, 1, 50}
    formed = bench.bodies(BatchFormed)
    assert [batch.requests for batch in formed] == [2, 3]  # type: ignore[attr-defined]


def test_a_session_may_end_two_turns_before_its_scheduler_is_told() -> None:
    bench = Bench("none", FakeEngine(8, 0))
    bench.worker.watched = True
    again = [requests(1)]

    def orders(wait: bool) -> Sequence[Work]:
        assert not wait, "a rollout that is not open never waits"
        # A turn of one token is over with its prefill: request 0 comes back before anything was decoded.
        come = len(bench.engine.stepped) == 1 and again
        return (Work("none", 0, 0.0, tuple(again.pop())),) if come else ()

    bench.logs.append(bench.worker.rollout(0, requests(1, 5), orders))
    assert [finish.request for finish in bench.finishes()] == [0, 0, 1]
    (told,) = bench.bodies(DecisionEnded)
    assert isinstance(told, DecisionEnded)
    assert told.finished == (0, 1), "a request finishes once in the same decision interval"


def test_decision_intervals_end_at_their_engine_steps_and_at_the_threshold() -> None:
    spec = GoodputConfig(draft_configs=("off", "1", "2"), decision_engine_steps=5)
    bench = Bench(spec, FakeEngine(8, 2))
    bench.rollout(requests(40, 60))
    intervals = bench.bodies(DecisionEnded)
    assert len(intervals) > 3
    assert all(interval.engine_steps <= 5 for interval in intervals)  # type: ignore[attr-defined]

    bench = Bench("tlt_chains", FakeEngine(64, 4))
    bench.rollout(requests(*([10] * 20), *([200] * 30)))
    first, second = bench.bodies(DecisionEnded)[:2]
    # 50 -> 30 requests, and the threshold is 32; then its warm-up of 10.
    assert (first.draft_config.depth, first.requests) == (0, 30)  # type: ignore[attr-defined]
    assert second.engine_steps == 10  # type: ignore[attr-defined]


def test_off_with_speculation_configured_is_its_own_cause() -> None:
    bench = Bench("static:off", FakeEngine(8, 4))
    bench.rollout(requests(5))
    assert [cause for log in bench.logs for cause, _ in log.intervals] == ["prefill", "decode_off"]
    assert set(bench.engine.stepped) == {0}
    assert bench.bodies(RolloutBegan)[0].drafter_version == 0  # type: ignore[attr-defined]


def test_responses_that_finish_in_a_prefill_engine_step_are_reported() -> None:
    bench = Bench("none", FakeEngine(1, 0))
    bench.rollout(requests(1, 1, 4))
    assert sorted(finish.request for finish in bench.finishes()) == [0, 1, 2]


def test_a_response_of_another_length_is_an_error() -> None:
    class Short(FakeEngine):
        def responses(self) -> dict[int, tuple[int, ...]]:
            return {request: tokens[:-1] for request, tokens in super().responses().items()}

    bench = Bench("none", Short(8, 0))
    with pytest.raises(RuntimeError, match="was to have 5 tokens and has 4"):
        bench.rollout(requests(5))


def test_two_rollouts_follow_one_another() -> None:
    engine = FakeEngine(8, 4)
    bench = Bench("static:4", engine)
    bench.rollout(requests(20, 30), 0)
    bench.rollout(requests(25, 15), 1)
    assert engine.dropped == 2, "the second finds nothing of the first in a cache"
    times = [record.t_s for record in bench.records()]
    assert times == sorted(times)
    assert [body.step for body in bench.bodies(RolloutBegan)] == [0, 1]  # type: ignore[attr-defined]


def test_each_request_has_its_drafts_counted_by_bin_and_depth() -> None:
    bench = Bench("static:2", FakeEngine(2, 4))
    seen: list[RequestDrafts] = []
    step = bench.engine.step

    def noting(k: int) -> EngineStepFacts:
        facts = step(k)
        seen.extend(facts.drafts)
        return facts

    bench.engine.step = noting  # type: ignore[method-assign]
    bench.rollout(requests(20, 300, 150))
    counts: Counter[tuple[int, int]] = Counter()
    for drafts in seen:
        assert drafts.drafted == 2
        edge = 0 if drafts.position < 128 else 128 if drafts.position < 256 else 256
        counts[drafts.request, edge] += 1000 + drafts.accepted
    told = [count for log in bench.logs for count in log.acceptance]
    assert {(c.request, c.from_token): 1000 * c.request_steps + c.accepted_tokens for c in told} == counts
    assert {count.depth for count in told} == {2}
    assert {edge for request, edge in counts if request == 1} == {0, 128, 256}
    # Each is told with the log that tells that its request has finished.
    for log in bench.logs:
        assert {count.request for count in log.acceptance} <= {finish.request for finish in log.finished}


def test_a_request_counted_again_after_its_end_is_told_again() -> None:
    counts = RequestCounts()
    counts.add([RequestDrafts(5, 127, 4, 3), RequestDrafts(6, 10, 4, 0)])
    assert counts.take(pending={6}) == [AcceptanceCount(5, 0, 4, 1, 3)]
    counts.add([RequestDrafts(5, 131, 4, 1), RequestDrafts(6, 11, 2, 2)])
    assert counts.take(pending={6}) == [AcceptanceCount(5, 128, 4, 1, 1)]
    assert counts.take(pending=()) == [AcceptanceCount(6, 0, 4, 1, 0), AcceptanceCount(6, 0, 2, 1, 2)]


def test_a_policy_that_asks_is_told_the_drafts_of_each_request() -> None:
    lengths = [30 + 5 * row for row in range(9)]
    for policy, told in (("goodput:1+2", True), ("goodput_mean:1+2", False), ("static:2", False)):
        bench = Bench(policy, FakeEngine(4, 2))
        bench.rollout(requests(*lengths))
        decisions = [body for body in bench.bodies(DecisionEnded) if isinstance(body, DecisionEnded)]
        rows = [row for decision in decisions for row in decision.by_request]
        assert bool(rows) is told
        if not told:
            continue
        assert {request for request, *_ in rows} == set(range(len(lengths)))
        done: set[int] = set()
        for decision in decisions:
            names = {request for request, *_ in decision.by_request}
            assert len(names) == len(decision.by_request)
            assert not names & done
            assert sum(steps for _, steps, _ in decision.by_request) <= decision.request_steps
            assert sum(row[2] for row in decision.by_request) <= sum(decision.accepted_by_position)
            done |= set(decision.finished)
        # What is missing was cut at the end of a response, or drafted by the configuration before.
        accepted = sum(sum(decision.accepted_by_position) for decision in decisions)
        assert sum(row[2] for row in rows) > 0.8 * accepted


def test_drafts_of_another_number_say_only_that_a_request_runs() -> None:
    interval = DecisionInterval(chain(2), tells_requests=True)
    drafts = tuple(RequestDrafts(*row) for row in ((1, 5, 4, 3), (2, 5, 2, 1), (3, 5, 2, 0)))
    interval.add(EngineStepFacts(0.01, 3, 30, 0, 8, (3, 1, 1), (), compiled=False, drafts=drafts), 3)
    assert interval.by_request({1, 2, 3}) == ((1, 0, 0), (2, 1, 1), (3, 1, 0))
    assert interval.by_request({2}) == ((2, 1, 1),)
