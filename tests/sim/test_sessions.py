"""Simulations of sessions: figures worked out by hand, and what must hold in every run of them."""

from __future__ import annotations

import hashlib
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.session_world import Rows, SessionRun, drawn_rows, sessions_of, simulate_sessions
from tlt.sim.model.sessions.pool import SessionPool
from tlt.sim.model.sessions.prefix_cache import PrefixCache
from tlt.traces.common.seeds import scheduler_rng
from tltsched.commands import Assign
from tltsched.errors import InputError
from tltsched.event_log import encode, read, replay
from tltsched.events import DecisionEnded, RequestsFinished, RequestsWithdrawn, ToolsReturned, TurnsEnded
from tltsched.sessions.routing import RULE_NAMES

ONE = {"hardware__gpus": 1, "cluster__phases": ()}
TURNS: Rows = ((100, 20, 3.0), (30, 10, 0.0))  # one session: 100 -> 20, a tool of 3 s, 30 -> 10
GOLDEN = "f3e5ce65cf303f39666505d5246528ba447b7d5414ed206da51930ab9a041fbb"


@pytest.mark.parametrize("mode", ["jump", "exact"])
def test_a_session_takes_its_turns_and_its_tools(mode: str) -> None:
    """Prefill 2 ms a chunk, 10 us a token, 1 ns a pair; decode 10 ms and 1 us a token of context.

    First turn: 100 tokens of prompt give the first token, 19 engine steps follow on contexts 101 to 119.
    The tool takes 3 s. Second turn: the context is 120 and 30 are new. In the cache are 119 tokens, 112 in
    blocks; 150 - 112 = 38 are computed, on pairs 150^2 - 112^2. Then 9 engine steps on 151 to 159.
    """
    run = simulate_sessions(sessions_of([TURNS]), mode=mode, plain=True, engine__mixed_prefill=False, **ONE)
    first = 0.002 + 100 * 1e-5 + 100**2 * 1e-9
    again = 0.002 + 38 * 1e-5 + (150**2 - 112**2) * 1e-9
    decode = 28 * 0.010 + (sum(range(101, 120)) + sum(range(151, 160))) * 1e-6
    assert run.cluster.env.now == pytest.approx(first + again + decode + 3.0, rel=1e-9)
    assert run.booked_s("tool_wait") == pytest.approx(3.0, rel=1e-9)
    assert run.booked_s("recompute") == pytest.approx(again * 8 / 38, rel=1e-9)  # 120 were known, 112 found
    assert (run.counted("asked_tokens"), run.counted("found_tokens")) == (250, 112)
    assert run.counted("again_tokens") == 8


def test_a_dropped_cache_is_computed_again() -> None:
    run = simulate_sessions(sessions_of([TURNS]), engine__tool_wait_kv="drop", **ONE)
    assert (run.counted("found_tokens"), run.counted("again_tokens")) == (0, 120)


def test_drafting_from_hidden_states_takes_the_last_block_again() -> None:
    assert simulate_sessions(sessions_of([TURNS]), "static:2", **ONE).counted("found_tokens") == 112 - 16


def test_a_context_that_shrinks_is_found_as_far_as_it_is_the_same() -> None:
    """The second prompt keeps 64 of 120 tokens: the blocks behind them are of another text."""
    from dataclasses import replace

    sessions = sessions_of([TURNS])
    kept = sessions.kept_tokens.copy()
    kept[1] = 64
    run = simulate_sessions(replace(sessions, kept_tokens=kept), **ONE)
    assert (run.counted("asked_tokens"), run.counted("found_tokens")) == (100 + 94, 64)


def test_a_group_shares_its_prompt() -> None:
    """Four samples of one prompt of 100 tokens: three find the 96 of whole blocks."""
    run = simulate_sessions(sessions_of([((100, 5, 0.0),)] * 4, samples=4), **ONE)
    assert run.counted("found_tokens") == 3 * 96


def test_tools_above_the_limit_queue() -> None:
    """Two sessions end their first turns together; the second tool begins when the first has returned."""
    rows: list[Rows] = [TURNS, TURNS]
    run = simulate_sessions(sessions_of(rows), cluster__tools_at_once=1, **ONE)
    assert run.cluster.tools is not None
    (row,) = run.cluster.tools.turns.rows
    assert row["tool_s"].tolist() == [3.0, 3.0]
    assert row["tool_queue_s"].tolist() == [0.0, 3.0]


def test_a_tool_that_takes_too_long_ends_its_call_or_its_session() -> None:
    goes_on = simulate_sessions(sessions_of([TURNS]), tools__timeout_s=1.0, **ONE)
    ended = simulate_sessions(sessions_of([TURNS]), tools__timeout_s=1.0, tools__timeout_ends=True, **ONE)
    assert goes_on.booked_s("tool_wait") == pytest.approx(1.0)
    assert ended.booked_s("tool_wait") == pytest.approx(1.0)
    assert [each.cluster.requests.length.tolist() for each in (goes_on, ended)] == [[30], [20]]
    assert [each.cluster.requests.truncated.tolist() for each in (goes_on, ended)] == [[False], [True]]
    assert [each.cluster.tools.turns.timeouts for each in (goes_on, ended) if each.cluster.tools] == [1, 1]


def test_a_session_may_end_at_its_tool() -> None:
    run = simulate_sessions(sessions_of([((100, 20, 2.0),)]), **ONE)
    assert run.booked_s("tool_wait") == pytest.approx(2.0)
    assert not run.cluster.requests.truncated.any()


def test_sticky_turns_find_their_caches_and_turns_dealt_round_do_not() -> None:
    sessions = sessions_of(drawn_rows(1, 16, most_turns=6))
    found = {rule: simulate_sessions(sessions, cluster__routing=rule) for rule in RULE_NAMES}
    assert found["sticky"].counted("found_tokens") > found["round_robin"].counted("found_tokens")
    assert found["sticky"].lines == found["prefix"].lines  # while all is cached and loads are alike


def test_single_turns_are_as_single_responses_are() -> None:
    """Sessions of a turn each take the time of the same lengths in the pool of single responses."""
    from tests.sim.session_world import WORLD
    from tlt.sim.config import resolve
    from tlt.sim.simulation import Simulation
    from tlt.sim.workload import SessionTrace
    from tlt.traces.lengths.schema import Trace

    sessions = sessions_of([((50, 10 + 7 * each, 0.0),) for each in range(12)], samples=2)
    run = simulate_sessions(sessions)
    trace = SessionTrace.of(sessions)
    config = resolve(WORLD | {"workload": {"max_response_tokens": 100}}, "none")
    alone = Simulation(config, Trace(trace.rows, trace.origin)).run()
    assert run.cluster.env.now == pytest.approx(alone.env.now, rel=1e-12)


@pytest.mark.parametrize("schedule", ["divided", "repack"])
def test_schedules_without_turns_say_so(schedule: str) -> None:
    with pytest.raises(InputError, match=f"'{schedule}' for cluster.schedule; allowed: with sessions"):
        simulate_sessions(sessions_of([TURNS]), cluster__schedule=schedule)


def test_the_record_of_a_run_is_what_it_was() -> None:
    """Golden: any change of a decision, a time or a draw changes it."""
    sessions = sessions_of(drawn_rows(3, 24), samples=2, steps=2)
    digest = hashlib.sha256()
    for mode in ("jump", "exact"):
        for rule in RULE_NAMES:
            run = simulate_sessions(
                sessions, "static:3", mode, cluster__routing=rule, cluster__tools_at_once=3
            )
            digest.update(b"".join(run.lines))
    assert digest.hexdigest() == GOLDEN


CASES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "mode": st.sampled_from(["jump", "exact"]),
        "policy": st.sampled_from(["none", "static:3", "goodput"]),
        "rule": st.sampled_from(sorted(RULE_NAMES)),
        "schedule": st.sampled_from(
            ["synchronous", "oversample_partial", "oversample_abort", "tail_batching", "bounded_async"]
        ),
        "tools_at_once": st.integers(0, 3),
        "kv_tokens": st.sampled_from([700.0, 1500.0, 1e9]),
        "max_running": st.sampled_from([2, 64]),
        "wait_kv": st.sampled_from(["keep", "drop"]),
        "timeout_s": st.sampled_from([0.0, 0.2]),
    }
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(case=CASES)
def test_whatever_the_settings_tokens_caches_and_places_add_up(case: dict[str, Any]) -> None:
    """Each token is decoded once, caches stay within their budget, nobody is in two places."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tlt.sim.simulation.kv_tokens", lambda *_: case["kv_tokens"])
        watch_budget(patch)
        run = simulate_sessions(
            sessions_of(drawn_rows(case["seed"], 12), samples=2, steps=2), case["policy"], case["mode"],
            hardware__gpus=3, cluster__schedule=case["schedule"], cluster__routing=case["rule"],
            cluster__tools_at_once=case["tools_at_once"], engine__max_running=case["max_running"],
            engine__tool_wait_kv=case["wait_kv"], tools__timeout_s=case["timeout_s"],
            tools__timeout_ends=True, engine__mixed_prefill=False,
        )  # fmt: skip
    check_places(run)
    if case["policy"] == "none" and case["schedule"] == "synchronous":
        check_tokens(run)
    assert run.lines == [encode(each) for each in replayed(run)]
    for worker in run.cluster.workers:
        assert worker.timeline.ends_s == sorted(worker.timeline.ends_s)


def watch_budget(patch: pytest.MonkeyPatch) -> None:
    """Have each admission checked: what runs and what is cached fit, unless a single session runs."""
    admit = SessionPool.admit

    def checked(pool: SessionPool) -> int:
        count = admit(pool)
        if len(pool.running) + len(pool.prefilling) > 1:
            assert pool._held_tokens() + pool.cache.free_tokens <= pool.limits.kv_tokens
        else:
            assert pool.cache.free_tokens <= max(pool.limits.kv_tokens - pool._held_tokens(), 0.0)
        counts = pool.counts
        assert 0 <= counts.found_tokens <= counts.asked_tokens
        return count

    patch.setattr(SessionPool, "admit", checked)


def check_places(run: SessionRun) -> None:
    """A session is on one worker, or at its tool, or nowhere: never in two places."""
    where: dict[int, object] = {}
    for record in run.records:
        match record.body:
            case Assign(worker=worker, requests=requests):
                for request in requests:
                    assert where.get(request) in (None, "back"), record
                    where[request] = worker
            case TurnsEnded(worker=worker, requests=requests):
                for request in requests:
                    assert where[request] == worker
                    where[request] = "tool"
            case ToolsReturned(requests=requests, ended=ended):
                for request in requests:
                    assert where[request] == "tool"
                    where[request] = None if request in ended else "back"
            case (
                RequestsFinished(worker=worker, requests=requests)
                | RequestsWithdrawn(worker=worker, requests=requests)
            ):
                for request in requests:
                    assert where.pop(request) == worker
            case _:
                pass
        if type(record.body).__name__ in ("Restart", "Drop", "TrainOn", "EndStep"):
            for request in getattr(record.body, "requests", tuple(where)):
                where.pop(request, None)


def check_tokens(run: SessionRun) -> None:
    """Without drafts a token is a request in an engine step, or the first of a turn, out of its prefill."""
    decoded = sum(each.body.request_steps for each in run.records if isinstance(each.body, DecisionEnded))
    tokens = sum(int(row["response_tokens"]) for row in run.cluster.log.schedule_rows)
    turns = sum(int(rows["turns"].sum()) for rows in run.cluster.tools.turns.rows)  # type: ignore[union-attr]
    assert decoded + turns == tokens


def replayed(run: SessionRun) -> list[Any]:
    setup = run.simulation.setup
    return list(replay(setup, read(run.lines), partial(scheduler_rng, setup.seed)))


@pytest.mark.parametrize("seed", range(3))
def test_both_modes_agree_where_nothing_is_drawn(seed: int) -> None:
    """Without drafts nothing is drawn; a turn that comes back may fall into one engine step or the next."""
    sessions = sessions_of(drawn_rows(seed, 20), samples=2)
    jump, exact = (
        simulate_sessions(sessions, mode=mode, engine__max_running=6) for mode in ("jump", "exact")
    )
    assert jump.cluster.env.now == pytest.approx(exact.cluster.env.now, rel=2e-3)
    assert jump.counted("found_tokens") == pytest.approx(exact.counted("found_tokens"), rel=0.01)


@pytest.mark.parametrize("policy", ["none", "static:3", "tlt_chains@bounded_async"])
def test_sessions_are_the_same_with_compiled_code(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, found = sessions_of(drawn_rows(0, 20), samples=2), []
    for switch in ("0", "1"):
        monkeypatch.setenv("TLT_COMPILED", switch)
        run = simulate_sessions(sessions, policy, engine__max_running=6)
        compiled = "Compiled" in type(run.cluster.workers[0].engine).__name__
        assert compiled == (switch == "1" and find_spec("numba") is not None)
        found.append((run.cluster.env.now, run.counted("found_tokens"), run.lines))
    assert found[0] == found[1]


def test_both_modes_agree_on_average_with_drafts() -> None:
    makespans = {
        mode: np.mean(
            [
                simulate_sessions(
                    sessions_of(drawn_rows(9, 20), samples=2), "static:3", mode, run__seed=seed
                ).cluster.env.now
                for seed in range(5)
            ]
        )
        for mode in ("jump", "exact")
    }
    assert makespans["jump"] == pytest.approx(makespans["exact"], rel=0.02)


@pytest.mark.parametrize(("block_tokens", "found"), [(16, 96), (32, 96), (64, 64), (128, 0)])
def test_prefixes_are_found_in_whole_blocks(block_tokens: int, found: int) -> None:
    cache = PrefixCache(block_tokens)
    assert cache.take(0, 0, 40, 40, 0) == 0
    cache.release(0, 0, 40, 100, keep=True)
    assert cache.take(0, 0, 40, 120, 100) == found


def test_what_the_last_engine_step_emitted_is_not_cached() -> None:
    """Every draft is accepted: of 5 tokens the prefill emits one, an engine step that drafts 3 the others.

    The turn leaves 60 + 5 tokens, of which 61 were known as that engine step began: three whole blocks of 16.
    All but the newest would be 64, four blocks. The next turn has its last block computed again.
    """
    rows: list[Rows] = [((60, 5, 0.1), (20, 1, 0.0))]
    run = simulate_sessions(sessions_of(rows), "static:3", "exact", acceptance__rate=1.0, **ONE)
    assert run.counted("found_tokens") == 3 * 16 - 16


def test_both_modes_find_as_much_on_average_with_drafts() -> None:
    """On one worker, where nothing hangs on when a turn comes back; nearly 3 of 4 tokens are found."""
    found = {
        mode: np.mean(
            [
                simulate_sessions(
                    sessions_of(drawn_rows(9, 60, most_turns=8)), "static:3", mode, run__seed=seed, **ONE
                ).counted("found_tokens")
                for seed in range(8)
            ]
        )
        for mode in ("jump", "exact")
    }
    assert found["jump"] == pytest.approx(found["exact"], rel=0.003)
