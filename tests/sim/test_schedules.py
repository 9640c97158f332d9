"""Every rollout schedule in whole simulations: books, records, batches, jump against exact mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.sim.small_world import PLAIN, Run, config_of, simulate, trace_of
from tests.sim.test_simulation import CHAINS, SMALL, check_books, check_replay, lengths_of, with_kv_tokens
from tlt.sim.comparison import compare
from tlt.sim.policy_set import policy_set, resolve_policies
from tlt.sim.simulation import Simulation
from tlt.sim.write_run import run_into
from tlt.traces.lengths.schema import Trace
from tlt.traces.runs.runfolder import RunFolder
from tltsched.errors import InputError
from tltsched.schedules import PRESETS

NAMES = sorted(PRESETS)
PROMPT_TOKENS, SAMPLES, GROUPS = 30, 4, 12


def world(seed: int = 3, steps: int = 4, longest: int = 400) -> Trace:
    return trace_of(lengths_of(seed, steps, GROUPS * SAMPLES, longest), PROMPT_TOKENS, SAMPLES)


def run(name: str, trace: Trace, policy: str = "none", **extra: Any) -> Run:
    chosen = SMALL | CHAINS | {"cluster.schedule": name} | extra
    return simulate(config_of(chosen, policy), trace)


def check_batches(told: Run) -> None:
    """Each step trains on as many whole groups as the trace has, and no response is trained on twice."""
    spec = told.cluster.spec
    groups = told.responses.groupby(["step", "group"]).size()
    assert (groups == SAMPLES).all()
    assert (groups.groupby("step").size() == GROUPS).all()
    key = ["step", "request"] if spec.keeps_order else ["request"]
    assert not told.responses.duplicated(key).any()
    assert (told.responses["finish_s"] >= told.responses["start_s"]).all()
    ends = told.responses["step"].map(told.steps.set_index("step")["rollout_end_s"])
    assert (told.responses["finish_s"] <= ends * (1 + 1e-9)).all()


@pytest.mark.slow
@given(
    name=st.sampled_from(NAMES),
    policy=st.sampled_from(["none", "static:3", "goodput:off+2+5", "tlt_chains"]),
    seed=st.integers(0, 1000),
    mode=st.sampled_from(["jump", "exact"]),
    spot=st.booleans(),
    tight=st.booleans(),
    max_running=st.sampled_from([1, 5, 256]),
    phases=st.sampled_from([[], ["reward", "weight_sync"], ["policy_update"]]),
    drift=st.sampled_from([0.0, 0.3]),
)
@example(  # the cache overflows before the first step of a decision interval
    name="oversample_abort", policy="tlt_chains", seed=0, mode="exact", spot=False, tight=True,
    max_running=256, phases=[], drift=0.0,
)  # fmt: skip
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_books_close_batches_are_whole_and_records_replay(
    name: str, policy: str, seed: int, mode: str, spot: bool, tight: bool, max_running: int,
    phases: list[str], drift: float,
) -> None:  # fmt: skip
    trace = world(seed, 3, 150)
    chosen = SMALL | CHAINS | {
        "cluster.schedule": name, "run.mode": mode, "run.seed": seed, "engine.max_running": max_running,
        "cluster.spot.enabled": spot and not PRESETS[name].overlaps, "cluster.phases": phases,
        "drafter.activation_s": 0.05, "drafter.drift_per_update": drift,
    }  # fmt: skip
    if tight:
        longest = int(trace.rows["response_tokens"].max()) + PROMPT_TOKENS + 64
        chosen = with_kv_tokens(chosen, trace, policy, longest * 2.0)
    config = config_of(chosen, policy)
    told = simulate(config, trace)
    check_books(told, config.workers)
    check_batches(told)
    check_replay(told)


@pytest.mark.parametrize("name", NAMES)
def test_without_drafts_jump_mode_is_exact_under_every_schedule(name: str) -> None:
    jump, exact = (run(name, world(7), **{"run.mode": mode}) for mode in ("jump", "exact"))
    assert jump.steps["end_s"].tolist() == pytest.approx(exact.steps["end_s"].tolist(), rel=1e-9)
    assert jump.responses["request"].tolist() == exact.responses["request"].tolist()
    assert jump.responses["finish_s"].tolist() == pytest.approx(exact.responses["finish_s"].tolist())
    for column in ("wasted_tokens", "carried_tokens", "staleness_mean"):
        here, there = ([row[column] for row in each.cluster.log.schedule_rows] for each in (jump, exact))
        assert here == pytest.approx(there)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["oversample_partial", "tail_batching", "repack", "bounded_async"])
def test_with_drafts_jump_mode_meets_exact_mode_in_the_mean(name: str) -> None:
    walls = {
        mode: [
            run(name, world(9, longest=900), "static:3", **{"run.mode": mode, "run.seed": seed}).wall_s
            for seed in range(5)
        ]
        for mode in ("jump", "exact")
    }
    jump, exact = np.array(walls["jump"]), np.array(walls["exact"])
    error = np.sqrt((jump.var(ddof=1) + exact.var(ddof=1)) / 5)
    assert jump.mean() == pytest.approx(exact.mean(), abs=0.01 * exact.mean() + 4 * error)


@pytest.mark.parametrize("name", ["longest_first", "divided"])
def test_schedules_that_keep_the_order_train_on_what_synchronous_training_does(name: str) -> None:
    columns = ["step", "request", "group", "response_tokens"]
    plain, other = (run(each, world()).responses[columns] for each in ("synchronous", name))
    assert plain.equals(other)


def test_partial_rollouts_resume_with_their_tokens_and_waste_none() -> None:
    partial, thrown = run("oversample_partial", world()), run("oversample_abort", world())
    rows = partial.cluster.log.schedule_rows
    assert sum(row["wasted_tokens"] for row in rows) == 0
    assert all(row["carried_tokens"] > 0 for row in rows)
    assert rows[0]["staleness_max"] == 0 < rows[1]["staleness_max"]
    assert "recompute" in set(partial.intervals["cause"])
    rows = thrown.cluster.log.schedule_rows
    assert all(row["wasted_tokens"] > 0 and row["carried_responses"] == 0 for row in rows)
    assert all(row["staleness_max"] == 0 for row in rows)


def test_tail_batching_puts_long_prompts_off_and_stays_on_policy() -> None:
    told = run("tail_batching", world(steps=8))
    rows = told.cluster.log.schedule_rows
    assert all(row["staleness_max"] == 0 for row in rows)
    tokens = [row["response_tokens"] for row in rows]
    # A quarter of a step's prompts is put off in each short round: four fill a long one.
    assert [row["carried_responses"] for row in rows[:5]] == [
        GROUPS * SAMPLES // 4 * n for n in (1, 2, 3, 4, 0)
    ]
    assert tokens[4] > 1.5 * np.mean(tokens[:4])


def test_repack_empties_workers_and_moved_requests_are_prefilled_again() -> None:
    plain, packed = run("synchronous", world(longest=900)), run("repack", world(longest=900))
    busy = []
    for told in (plain, packed):
        rows = told.intervals[told.intervals["cause"] == "decode"]
        busy.append(float((rows["end_s"] - rows["start_s"]).sum()))
    assert busy[1] < busy[0]
    assert "recompute" in set(packed.intervals["cause"])
    free = run("repack", world(longest=900), **{"cluster.schedule": {"kind": "repack", "transfer": True}})
    assert "recompute" not in set(free.intervals["cause"])


def test_divided_moves_requests_at_the_end_of_chunks_without_prefill() -> None:
    chunks = {"kind": "divided", "chunk_tokens": 64}
    told = run("divided", world(longest=900), **{"cluster.schedule": chunks})
    assert b'"chunks_ended"' in told.records
    assert "recompute" not in set(told.intervals["cause"])
    assert told.wall_s <= run("synchronous", world(longest=900)).wall_s


def test_a_group_known_to_be_long_goes_before_the_others() -> None:
    # One slot a worker: probes first, then the samples of the group whose probe was longest.
    lengths = [10, 10, 10, 10, 90, 90, 90, 90, 20, 20, 20, 20]
    told = run(
        "divided",
        trace_of([lengths], PROMPT_TOKENS, 4),
        **{"hardware.gpus": 1, "cluster.schedule": {"kind": "divided", "chunk_tokens": 5, "slots": 1}},
    )
    last = told.responses.groupby("group")["finish_s"].max()
    assert last[1] < min(last[0], last[2])


def test_bounded_staleness_admits_no_more_than_its_bound_allows() -> None:
    stales, walls = [], []
    for eta in (0.0, 1.0, 2.0):
        spec = {"kind": "bounded_async", "staleness": eta}
        told = run("bounded_async", world(steps=8), **{"cluster.schedule": spec})
        rows = told.cluster.log.schedule_rows
        assert max(row["carried_responses"] for row in rows) <= eta * GROUPS * SAMPLES
        stales.append(np.mean([row["staleness_mean"] for row in rows]))
        walls.append(told.wall_s)
    assert stales[0] == 0 < stales[1] < stales[2]
    assert walls[0] > walls[1]


def test_a_batch_in_parts_is_trained_on_while_its_rest_is_generated() -> None:
    spec = {"kind": "bounded_async", "staleness": 0.0, "sync_every": 2}
    given = {"cluster.schedule": spec, "phases.trainer_scaling": 0.0}  # seconds of the trainers themselves
    jump, exact = (
        run("bounded_async", world(steps=6), **given, **{"run.mode": mode}) for mode in ("jump", "exact")
    )
    assert jump.steps["end_s"].tolist() == pytest.approx(exact.steps["end_s"].tolist(), rel=1e-9)
    check_books(jump, 4)
    synced = jump.intervals[jump.intervals["cause"] == "weight_sync"]
    assert sorted(set(synced["step"])) == [1, 3, 5]
    generated = jump.intervals[(jump.intervals["cause"] == "decode") & (jump.intervals["step"] == 0)]
    updated = jump.intervals[(jump.intervals["cause"] == "policy_update") & (jump.intervals["step"] == 0)]
    assert generated["end_s"].max() > updated["start_s"].min()


ASYNC: dict[str, dict[str, Any]] = {
    "kept caches": {"kv": "stale"},
    "drained": {"pause": "wait"},
    "asked again": {"pause": "abort", "staleness": 2.0},
    "in order": {"order": "admission", "staleness": 1.5},
    "dropped": {"max_lag": 1, "staleness": 2.0},
    "cancelled": {"max_lag": 1, "staleness": 2.0, "cancel": True},
    "few at once": {"inflight": 18, "staleness": 2.0},
    "streamed": {"enough": 0.4},
    "scored early": {"rewards": "overlapped", "pause": "wait"},
    "lent": {"lend": True, "trainer_share": 0.5},
    "parts": {"sync_every": 3, "pause": "abort", "staleness": 0.5},
    "all": {"pause": "abort", "max_lag": 1, "cancel": True, "inflight": 30, "enough": 0.5, "lend": True,
            "rewards": "overlapped", "staleness": 3.0, "trainer_share": 0.5},
}  # fmt: skip
SHORT_PHASES = {
    "phases.reward_s": 0.3, "phases.logprob_s": 0.0, "phases.policy_update_s": 0.4,
    "phases.trainer_scaling": 0.0, "phases.weight_sync_s": 0.2, "phases.sync_pause_s": 0.1,
    "phases.lend_s": 0.05,
}  # fmt: skip


def asynchronous(seed: int = 3, steps: int = 6, longest: int = 900, **spec: Any) -> Run:
    mode = spec.pop("mode", "jump")
    extra = {"cluster.schedule": {"kind": "bounded_async", **spec}, "run.mode": mode}
    return run("bounded_async", world(seed, steps, longest), **SHORT_PHASES, **extra)


@pytest.mark.parametrize("name", ASYNC)
def test_whatever_becomes_of_running_requests_the_books_close_and_nothing_is_lost(name: str) -> None:
    """No response is trained on twice, none beyond its bound: trained + dropped + alive are all begun."""
    told = asynchronous(**ASYNC[name])
    spec, rows = told.cluster.spec, told.cluster.log.schedule_rows
    check_books(told, 4)
    check_replay(told)
    assert not told.responses.duplicated("request").any()
    sizes = told.responses.groupby(["step", "group"]).size()
    assert (sizes == SAMPLES).all()
    bound = getattr(spec, "max_lag", -1)
    assert bound < 0 or max(row["staleness_max"] for row in rows) <= bound
    begun = told.records.count(b'"length_hint_tokens"') or len(told.cluster.requests.group)
    trained, dropped = len(told.responses), sum(row["dropped_responses"] for row in rows)
    assert trained + dropped + rows[-1]["carried_responses"] == begun == len(told.cluster.requests.group)
    for row in rows:
        assert row["staleness_mean"] == pytest.approx(row["in_flight_lag_mean"] + row["in_queue_lag_mean"])
        assert 0 <= row["dropped_tokens"] <= row["wasted_tokens"]


@pytest.mark.parametrize("name", ["kept caches", "asked again", "lent", "all"])
def test_without_drafts_jump_mode_is_exact_whatever_becomes_of_running_requests(name: str) -> None:
    jump, exact = (asynchronous(steps=4, mode=mode, **ASYNC[name]) for mode in ("jump", "exact"))
    assert jump.steps["end_s"].tolist() == pytest.approx(exact.steps["end_s"].tolist(), rel=1e-9)
    assert jump.responses["request"].tolist() == exact.responses["request"].tolist()
    for column in ("wasted_tokens", "dropped_tokens", "in_flight_lag_mean", "in_queue_lag_mean"):
        here, there = ([row[column] for row in each.cluster.log.schedule_rows] for each in (jump, exact))
        assert here == pytest.approx(there)


def spent(told: Run, cause: str) -> float:
    rows = told.intervals[told.intervals["cause"] == cause]
    return float((rows["end_s"] - rows["start_s"]).sum())


def test_what_a_pause_costs_depends_on_what_becomes_of_running_requests() -> None:
    plain, stale, drained, again = (
        asynchronous(**spec) for spec in ({}, {"kv": "stale"}, {"pause": "wait"}, {"pause": "abort"})
    )
    assert spent(plain, "recompute") > 0 == spent(stale, "recompute") == spent(drained, "recompute")
    assert spent(drained, "sync_pause") > 2 * spent(plain, "sync_pause") > 0
    wasted = [sum(row["wasted_tokens"] for row in told.cluster.log.schedule_rows)
              for told in (plain, stale, drained, again)]  # fmt: skip
    assert wasted[:3] == [0, 0, 0]
    assert wasted[3] > 0
    in_flight = [max(row["in_flight_lag_mean"] for row in told.cluster.log.schedule_rows)
                 for told in (plain, drained, again)]  # fmt: skip
    assert in_flight[0] > 0 == in_flight[1] == in_flight[2]


def test_trainers_that_wait_can_generate() -> None:
    alone, lent = (asynchronous(trainer_share=0.5, lend=lend) for lend in (False, True))
    assert spent(lent, "batch_wait") < spent(alone, "batch_wait") / 2
    assert spent(lent, "lend") > 0
    assert lent.wall_s < alone.wall_s
    on_trainers = lent.intervals[lent.intervals["worker"] >= 2]["cause"]
    assert {"decode", "policy_update"} <= set(on_trainers)


def test_rewards_beside_generation_take_no_time_of_the_step() -> None:
    phase, beside = (asynchronous(longest=90, rewards=rewards) for rewards in ("phase", "overlapped"))
    assert spent(phase, "reward") > 0 == spent(beside, "reward")
    assert beside.wall_s < phase.wall_s


def test_trainers_are_workers_of_the_books_that_never_generate() -> None:
    told = run("bounded_async", world())
    causes = told.intervals.groupby("worker")["cause"].agg(lambda rows: set(rows))
    assert told.simulation.trainers == 1
    assert causes[3] <= {"batch_wait", "reward", "logprob", "policy_update", "weight_sync"}
    assert "decode" in causes[0]
    assert "weight_sync" in causes[0]
    assert not causes[0] & {"reward", "logprob", "policy_update", "batch_wait"}


def test_a_trace_that_is_used_up_begins_anew_and_the_summary_says_so(tmp_path: Path) -> None:
    config = config_of(SMALL | {"cluster.schedule": "oversample_abort"}, "none")
    summary = run_into(Simulation(config, world(), PLAIN), tmp_path, "none@oversample_abort")
    assert any("began it anew" in text for text in summary.warnings)
    told = RunFolder(tmp_path).schedule()
    assert told is not None
    assert (told[0].name, told[0].keeps_order, told[0].on_policy) == ("oversample_abort", False, "yes")
    assert told[1]["trained_responses"].tolist() == [GROUPS * SAMPLES] * 4
    assert summary.response_tokens == told[1]["response_tokens"].sum()
    run_into(Simulation(config_of(SMALL, "none"), world(), PLAIN), tmp_path, "none")
    assert RunFolder(tmp_path).schedule() is None


def test_a_policy_may_name_its_schedule() -> None:
    policies = resolve_policies(
        {"hardware": {"gpus": 8}}, ["none", "none@tail_batching", "tlt@bounded_async"]
    )
    names = [type(config.cluster.schedule).__name__ for config in policies.values()]
    assert names == ["SynchronousConfig", "TailBatchingConfig", "BoundedAsyncConfig"]
    assert not policies["tlt@bounded_async"].cluster.spot.enabled
    with pytest.raises(InputError, match="tail_batching"):
        resolve_policies({}, ["none@tail_batchin"])


def test_a_comparison_over_schedules_writes_a_folder_each(tmp_path: Path) -> None:
    settings = {
        "hardware": {"gpus": 4, "tp": 1, "model": "Qwen2.5-7B"}, "cost": {"source": "roofline"},
        "workload": {"steps": 2, "prompts_per_step": 8, "samples_per_prompt": 2, "max_response_tokens": 500},
    }  # fmt: skip
    compare(policy_set(settings, ["none", "none@tail_batching"]), tmp_path, lambda *_: None)
    assert RunFolder(tmp_path / "none").schedule() is None
    assert RunFolder(tmp_path / "none-tail_batching").schedule() is not None
