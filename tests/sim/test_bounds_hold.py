"""Bounds of a comparison: no simulated schedule and no policy is faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sim.session_world import drawn_rows, sessions_of, simulate_sessions
from tests.sim.small_world import trace_of
from tlt.sim.advise.bounds import bounds_of, write_bounds
from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.bounds import read_bounds
from tltsched.schedules import PRESETS

JOB: dict[str, Any] = {
    "hardware": {"gpus": 4, "tp": 1, "model": "Qwen2.5-7B"},
    "cost": {"source": "vllm-0.32-h100-qwen2.5-7b"},
    "acceptance": {"kind": "geometric", "rate": 0.7, "request_spread": 0.0},
}
LUCK, OF = 0.03, 24  # with drafts the bound is one of expectations: of so many responses, fewer have more
POLICIES = ("none", "static:4", "goodput", "tlt_chains", "disable_by_batch")


def steps(trace: Trace, policy: str, **sections: Any) -> list[tuple[float, float]]:
    """Simulate and return the seconds of each rollout and step."""
    rows = Simulation(resolve(JOB | sections, policy), trace).run().log.step_rows
    return [(row["rollout_end_s"] - row["start_s"], row["end_s"] - row["start_s"]) for row in rows]


def world(trace: Trace, **sections: Any) -> Simulation:
    """Return the job without drafts, with some sections replaced."""
    return Simulation(resolve(JOB | sections, "none"), trace)


def lengths(seed: int, count: int, median: float, spread: float) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(np.log(median), spread, count)
    return [int(length) for length in np.clip(drawn, 2, 8000)]


ENGINES = st.fixed_dictionaries(
    {
        "max_running": st.sampled_from([8, 256]),
        "prefix_caching": st.booleans(),
        "chunk_tokens": st.sampled_from([512, 8192]),
        "graph_max_requests": st.sampled_from([0, 4]),
        "eager_s_per_draft_pass": st.just(0.001),
    }
)
ENGINE = {
    "max_running": 8, "prefix_caching": False, "chunk_tokens": 512, "graph_max_requests": 0,
    "eager_s_per_draft_pass": 0.001,
}  # fmt: skip


@example(14631, (4, 1, 1), 452.0, 0.5, "synchronous", "static:4", 8, ENGINE)  # 3.5 % of luck
@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31),
    st.tuples(st.sampled_from([4, 24, 96]), st.sampled_from([1, 4, 8]), st.sampled_from([1, 30, 2000])),
    st.floats(50, 1500),
    st.floats(0.0, 1.5),
    st.sampled_from([name for name, spec in PRESETS.items() if spec.keeps_order]),
    st.sampled_from(POLICIES),
    st.sampled_from([1, 3, 8]),
    ENGINES,
)
def test_no_schedule_of_whole_steps_beats_the_bound(
    seed: int,
    shape: tuple[int, int, int],
    median: float,
    spread: float,
    schedule: str,
    policy: str,
    gpus: int,
    engine: dict[str, Any],
) -> None:
    count, samples, prompt_tokens = shape
    trace = trace_of(
        [lengths(seed + step, count, median, spread) for step in range(2)], prompt_tokens, samples
    )
    phases = {"policy_update_s": 2.0}  # one or two GPUs have no room for the update of this model
    sections = {"hardware": JOB["hardware"] | {"gpus": gpus}, "engine": engine, "phases": phases}
    bounds = bounds_of(world(trace, **sections))
    found = steps(trace, f"{policy}@{schedule}", **sections)
    for row, (rollout_s, step_s) in zip(bounds.rows, found, strict=True):
        least_s = row.plain_s() if policy == "none" else row.drafted_s()
        assert least_s is not None
        slack = 1e-9 if policy == "none" else LUCK * max(OF / count, 1.0) ** 0.5
        assert step_s >= least_s * (1.0 - slack)
        assert step_s >= row.phases_s
        drafted_s = row.drafted_s()
        assert drafted_s is not None
        assert drafted_s <= row.plain_s() + 1e-9
        assert rollout_s >= (least_s - row.phases_s) * (1.0 - slack)


SESSIONS = st.tuples(st.integers(0, 2**31), st.sampled_from([2, 12, 48]), st.sampled_from([1, 4]))


@settings(max_examples=25, deadline=None)
@given(SESSIONS, st.sampled_from(["none", "static:2", "goodput"]), st.sampled_from([1, 3, 16]), st.booleans())
def test_no_rollout_of_sessions_beats_the_bound(
    drawn: tuple[int, int, int], policy: str, gpus: int, waits: bool
) -> None:
    seed, count, samples = drawn
    rows = [
        tuple((20 * new, 20 * tokens, wait * waits) for new, tokens, wait in session)
        for session in drawn_rows(seed, count, samples)
    ]
    run = simulate_sessions(
        sessions_of(rows, samples), policy, hardware__gpus=gpus, acceptance__request_spread=0.0
    )
    (step,) = run.cluster.log.step_rows
    (row,) = bounds_of(run.simulation).rows
    least_s = row.plain_s() if policy == "none" else row.drafted_s()
    assert least_s is not None
    assert step["end_s"] - step["start_s"] >= least_s * (1.0 - (1e-9 if policy == "none" else LUCK))


def test_the_bound_of_a_session_alone_is_the_time_of_its_turns_without_tools() -> None:
    # Two turns of 1,000 new tokens each, and the prefix cache holds whole blocks of 16 tokens: at most 15 and
    # the last token that was sampled are computed again.
    sessions = sessions_of([((1000, 100, 5.0), (1000, 100, 0.0))])
    run = simulate_sessions(sessions, hardware__gpus=1)
    (step,) = run.cluster.log.step_rows
    (row,) = bounds_of(run.simulation).rows
    rollout_s = step["rollout_end_s"] - step["start_s"] - 5.0
    assert row.longest_s == pytest.approx(rollout_s, rel=0.01)
    assert row.longest_s <= rollout_s


@pytest.mark.parametrize("schedule", [name for name, spec in PRESETS.items() if not spec.keeps_order])
@pytest.mark.parametrize("policy", ["none", "goodput"])
def test_no_schedule_that_carries_responses_over_beats_the_work_of_what_it_trained_on(
    schedule: str, policy: str
) -> None:
    trace = trace_of([lengths(step, 64, 400, 1.2) for step in range(6)], 30, 4)
    config = resolve(JOB, f"{policy}@{schedule}")
    cluster = Simulation(config, trace).run()
    responses, _, _ = cluster.tables()
    by_step = [rows["response_tokens"].tolist() for _, rows in responses.groupby("step")]
    bounds = bounds_of(world(trace_of(by_step, 30, 4)))
    plain = [row.work_s + row.compute_s for row in bounds.rows]
    least_s = sum(plain if policy == "none" else [row.carried_s() for row in bounds.rows])
    assert float(cluster.env.now) >= least_s * (1.0 - LUCK)


def test_a_schedule_that_knows_lengths_is_no_bound() -> None:
    # 4 prompts of 4,000 tokens with 8 samples each on 4 workers: together they prefill one each; the longest
    # first scatters them, so that every worker prefills every prompt.
    drawn = [int(length) for length in np.random.default_rng(2).integers(50, 150, 32)]
    trace = trace_of([drawn], 4000, 8)
    knowing, plain = (steps(trace, f"none@{name}")[0][0] for name in ("longest_first", "synchronous"))
    assert knowing > plain
    assert plain >= bounds_of(world(trace)).rows[0].plain_s() - bounds_of(world(trace)).rows[0].phases_s


def test_more_workers_lower_the_work_and_not_the_longest() -> None:
    trace = trace_of([lengths(0, 64, 400, 1.0)], 30, 4)
    few, many = (bounds_of(world(trace, hardware=JOB["hardware"] | {"gpus": gpus})) for gpus in (4, 8))
    assert many.rows[0].work_s == pytest.approx(few.rows[0].work_s / 2)
    assert many.rows[0].longest_s == few.rows[0].longest_s


def test_fixed_phases_take_no_workers_and_yet_follow_one_another() -> None:
    trace = trace_of([lengths(0, 16, 400, 1.0)])
    row = bounds_of(world(trace, phases={"logprob_s": 50.0, "policy_update_s": 70.0})).rows[0]
    assert row.phases_s > 120.0
    assert row.compute_s == 0.0
    assert row.carried_s() == row.phases_s


def test_drafts_out_of_history_have_no_bound() -> None:
    bounds = bounds_of(world(trace_of([[10, 20]]), drafter={"kind": "history"}))
    assert bounds.draft_configs == ()
    assert bounds.rows[0].drafted_s() is None
    row = bounds.rows[0]
    assert row.carried_s() == max(row.work_s + row.compute_s, row.phases_s)


def test_requests_that_accept_unequally_leave_the_bound_one_of_expectations() -> None:
    trace = trace_of([lengths(0, 64, 400, 1.0)] * 12, 30, 4)
    uneven = JOB | {"acceptance": JOB["acceptance"] | {"request_spread": 0.5, "group_correlation": 0.5}}
    bounds = bounds_of(Simulation(resolve(uneven, "none"), trace))
    assert bounds.rows[0].plain_s() == bounds_of(world(trace)).rows[0].plain_s()
    rows = Simulation(resolve(uneven, "goodput"), trace).run().log.step_rows
    simulated = [row["end_s"] - row["start_s"] for row in rows]
    assert np.mean(simulated) >= np.mean([row.drafted_s() for row in bounds.rows]) * (1.0 - LUCK)


def test_long_responses_that_accept_less_raise_the_bound() -> None:
    trace = trace_of([lengths(0, 64, 400, 1.0)], 30, 4)
    least = []
    for correlation in (0.0, 0.8):
        uneven = JOB["acceptance"] | {"request_spread": 0.5, "length_correlation": correlation}
        least.append(bounds_of(world(trace, acceptance=uneven)).rows[0].drafted_longest_s)
    assert least[0] < least[1]


def test_bounds_survive_their_file(tmp_path: Path) -> None:
    assert read_bounds(tmp_path) is None
    simulation = world(trace_of([[100, 200]]))
    write_bounds(simulation, tmp_path)
    assert read_bounds(tmp_path) == bounds_of(simulation)
