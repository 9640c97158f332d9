"""Observed runs whose files say that they drafted, and requests that are no RL: what is simulated of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tlt.commands.trace.group import trace as trace_group
from tlt.sim.counterfactual.observed_run import observe
from tlt.sim.counterfactual.settings import Replay, replay_of
from tlt.sim.model.phases import PHASES
from tlt.traces.importers.reading.items import Options
from tltsched.errors import InputError

GIVEN: dict[str, Any] = {
    "hardware": {"gpus": 2, "tp": 1, "gpu": "H100", "model": "Qwen2.5-7B"}, "cost": {"source": "roofline"},
}  # fmt: skip


def bench(**more: Any) -> dict[str, Any]:
    return {
        "model_id": "m", "request_rate": "inf", "max_concurrency": 16, "duration": 20.5, "completed": 3,
        "input_lens": [300, 300, 300], "output_lens": [411, 234, 484],
    } | more  # fmt: skip


DRAFTED = {
    "spec_decode_num_drafts": 9000, "spec_decode_draft_tokens": 27000, "spec_decode_accepted_tokens": 13014,
    "spec_decode_acceptance_length": 2.446, "spec_decode_per_position_acceptance_rates": [0.7, 0.46, 0.286],
}  # fmt: skip


def replayed(path: Path, text: str, observed: str | None = None, responses: int | None = None) -> Replay:
    path.write_text(text)
    run = observe(path, None, Options(responses=responses))
    return replay_of(run, GIVEN, path.parent / "lengths.parquet", ["none", "goodput"], observed)


def test_a_benchmark_states_its_drafts_its_times_and_how_many_ran(tmp_path: Path) -> None:
    replay = replayed(tmp_path / "bench.json", json.dumps(bench(**DRAFTED)))
    assert list(replay.configs) == ["static:3", "none", "goodput"]
    config = replay.configs["static:3"]
    assert config.acceptance.survival_by_position == (0.7, 0.46, 0.286)
    assert "9,000 drafts of 3" in config.acceptance.measured
    assert config.engine.max_running == 8  # 16 at once on two workers
    logged = replay.observed.logged
    assert logged is not None
    assert {name: time.mean_s for name, time in logged.times.items()} == {"step": 20.5, "gen": 20.5}
    assert all(not any(seconds) for seconds in config.phases.by_step_s.values())


@pytest.mark.parametrize("rate", [4.0, None])
def test_a_duration_of_arrivals_is_no_time_of_the_engine(rate: float | None, tmp_path: Path) -> None:
    replay = replayed(tmp_path / "bench.json", json.dumps(bench(request_rate=rate)))
    assert replay.observed.logged is None
    assert replay.configs["none"].phases.by_step_s == dict.fromkeys(PHASES, (0.0,) * 8)
    assert "no RL phases: none are added" in " ".join(replay.assumptions)


def test_requests_of_a_service_have_no_rl_phases(tmp_path: Path) -> None:
    rows = [{"timestamp": 1000 * n, "input_length": 5, "output_length": 50 + n} for n in range(4)]
    replay = replayed(tmp_path / "mooncake.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert not any(any(seconds) for seconds in replay.configs["none"].phases.by_step_s.values())


def slime(length: float) -> str:
    lines = []
    for step in (1, 2):
        values = {
            "rollout/response_len/mean": 500.0, "rollout/response_len/max": 2000, "perf/rollout_time": 20.0,
            "rollout/spec_accept_length": length, "perf/step_time": 30.0,
        }  # fmt: skip
        lines.append(f"perf {step}: {values}\n")
    return "".join(lines)


def test_a_mean_length_needs_the_number_of_drafts_and_then_is_a_law(tmp_path: Path) -> None:
    path = tmp_path / "slime.log"
    for observed in (None, "none"):
        with pytest.raises(InputError, match=r"static:K.*2\.31 tokens a verification with the bonus token"):
            replayed(path, slime(2.31), observed, 64)
    config = replayed(path, slime(2.31), "static:3", 64).configs["static:3"]
    rate = config.acceptance.rate
    assert rate + rate**2 + rate**3 == pytest.approx(1.31)
    assert "acceptance length 2.31 with bonus" in config.acceptance.measured


def test_a_run_that_drafted_is_not_observed_under_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="static:3"):
        replayed(tmp_path / "bench.json", json.dumps(bench(**DRAFTED)), "none")
    plain = replayed(tmp_path / "plain.json", json.dumps(bench()))
    assert next(iter(plain.configs)) == "none"


def sim_rows(gap_s: float, count: int = 8) -> str:
    rows = [
        {"input_toks": 200, "output_toks": 50 * (n + 1), "scheduled_ts": 500 + gap_s * n,
         "last_token_ts": 500 + gap_s * n + 1.0 + n}
        for n in range(count)
    ]  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_requests_that_were_sent_at_once_state_what_they_took_together(tmp_path: Path) -> None:
    replay = replayed(tmp_path / "requests.jsonl", sim_rows(0.05))
    assert replay.observed.logged is not None
    # the last is scheduled at 0.35 s and takes 8 s
    assert replay.observed.logged.times["gen"].mean_s == pytest.approx(8.35)
    spread = replayed(tmp_path / "spread.jsonl", sim_rows(5.0))
    assert spread.observed.logged is None  # they waited for their arrivals


def test_a_closed_loop_states_how_many_ran_at_once(tmp_path: Path) -> None:
    rows = [
        {"metadata": {"request_start_ns": 10**9 * start, "request_end_ns": 10**9 * (start + 2)},
         "error": None, "metrics": {"output_sequence_length": {"value": 50, "unit": "tokens"}}}
        for start in (0, 2, 4, 6) for _ in range(4)
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    replay = replayed(tmp_path / "profile_export.jsonl", text)
    assert replay.observed.concurrency == 4
    assert replay.observed.logged is not None
    assert replay.observed.logged.times["gen"].mean_s == pytest.approx(8.0)
    assert replay.configs["none"].engine.max_running == 2  # on two workers


def test_sources_that_may_count_the_same_give_no_law_and_a_server_without_drafts_none(tmp_path: Path) -> None:
    line = "SpecDecoding metrics: Mean acceptance length: 2.00, Accepted: {0} tokens, Drafted: {1} tokens, " \
           "Per-position acceptance rate: {2}\n"  # fmt: skip
    path = tmp_path / "run.log"
    both = slime(2.0) + line.format(50, 100, "0.800, 0.200")
    assert (
        next(iter(replayed(path, both, responses=64).configs)) == "static:2"
    )  # the engine counts its drafts
    idle = slime(0.0) + line.format(0, 0, "nan, nan")
    assert next(iter(replayed(path, idle, responses=64).configs)) == "none"
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "trainer.log").write_text(slime(2.0))
    (folder / "server.log").write_text(line.format(50, 100, "0.800, 0.200"))
    run = observe(folder, None, Options(responses=64))
    with pytest.raises(InputError, match="static:K"):
        replay_of(run, GIVEN, tmp_path / "lengths.parquet", ["none"], None)


def test_an_imported_trace_keeps_that_the_run_drafted(tmp_path: Path) -> None:
    path, out, phases = tmp_path / "bench.json", tmp_path / "x.parquet", tmp_path / "x.json"
    path.write_text(json.dumps(bench(**DRAFTED)))
    done = CliRunner().invoke(trace_group, ["import", str(path), "--out", str(out), "--phases", str(phases)])
    assert done.exit_code == 0, done.output
    with pytest.raises(InputError, match="static:K"):
        replay_of(observe(out, None, Options()), GIVEN, tmp_path / "lengths.parquet", ["none"], None)
    whole = replay_of(observe(out, phases, Options()), GIVEN, tmp_path / "lengths.parquet", ["none"], None)
    assert list(whole.configs) == ["static:3", "none"]
    assert whole.configs["none"].engine.max_running == 8
