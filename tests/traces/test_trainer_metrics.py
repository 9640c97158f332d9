"""Metrics of trainers that log means of a step: what a file states comes back, what it does not is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tlt.commands.trace.group import trace as trace_group
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.phases import read_phases
from tlt.traces.importers.reading.items import Options
from tltsched.errors import InputError


def of_slime(path: Path) -> Path:
    lines = []
    for step in (1, 2, 3):
        rollout = {
            "rollout/response_len/mean": 1800.0 + 10 * step, "rollout/response_len/median": 1500.0,
            "rollout/response_len/max": 9000, "rollout/response_len/min": 40, "rollout/truncated_ratio": 0.01,
            "rollout/spec_accept_length": 2.31, "perf/rollout_time": 200.0 + step,
            "perf/tokens_per_gpu_per_sec": 900.0,
        }  # fmt: skip
        train = {
            "perf/actor_train_time": 60.0, "perf/log_probs_time": 12.0, "perf/update_weights_time": 4.0,
            "perf/train_wait_time": 205.0 + step, "perf/train_time": 75.0, "perf/step_time": 280.0 + step,
        }  # fmt: skip
        lines.append(
            f"(RolloutManager pid=11) [2026-01-01 10:00:00] rollout.py:1000 - perf {step}: {rollout}"
        )
        lines.append(
            f"(MegatronTrainRayActor pid=12) [2026-01-01 10:04:00] utils.py:40 - perf {step}: {train}"
        )
    path.write_text("\n".join(lines))
    return path


def of_trl(step: int) -> dict[str, Any]:
    return {
        "loss": 0.01, "num_tokens": 400_000.0 * step, "completions/mean_length": 300.0 + step,
        "completions/min_length": 30.0, "completions/max_length": 1024.0, "completions/clipped_ratio": 0.06,
        "completions/mean_terminated_length": 250.0, "reward": 0.5, "step_time": 21.0, "epoch": 0.01 * step,
    }  # fmt: skip


def trl_file(kind: str, folder: Path) -> Path:
    path = folder / kind
    steps = [of_trl(step) for step in (1, 2)]
    if kind == "console.log":
        path.write_text(
            "".join(f"  1%|   | {n}/900 [00:20<5:00:00]\n{row}\n" for n, row in enumerate(steps, 1))
        )
    elif kind == "quoted.log":  # as transformers 5 and ms-swift print it
        rows = [
            {name: str(value) for name, value in row.items()} | {"global_step/max_steps": f"{number}/900"}
            for number, row in enumerate(steps, 1)
        ]
        path.write_text("".join(f"{row}\n" for row in rows))
    elif kind == "logging.jsonl":
        rows = [row | {"global_step/max_steps": f"{n}/900"} for n, row in enumerate(steps, 1)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "tracker.jsonl":
        rows = [
            {"_step": 7 * n, "train/global_step": n} | {f"train/{name}": value for name, value in row.items()}
            for n, row in enumerate(steps, 1)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        history = [row | {"step": n} for n, row in enumerate(steps, 1)]
        path.write_text(json.dumps({"global_step": 2, "log_history": history}, indent=1))
    return path


def test_slime_states_mean_median_longest_and_share_at_the_cap(tmp_path: Path) -> None:
    trace, report = import_trace(of_slime(tmp_path / "slime.log"), Options(responses=800))
    assert (report.format, report.steps, report.rows) == ("slime-metrics", 3, 2400)
    for step, rows in trace.rows.groupby("step"):
        lengths = rows["response_tokens"]
        assert lengths.mean() == pytest.approx(1800 + 10 * int(str(step)), rel=0.02)
        assert lengths.median() == pytest.approx(1500, rel=0.02)
        assert (lengths.max(), int(rows["truncated"].sum())) == (9000, 8)  # 1 % of 800


def test_slime_does_not_state_how_many_and_says_what_would_be_one_gpu(tmp_path: Path) -> None:
    # 900 tokens a second and GPU over 201 s and 1,810 tokens are 99.9 responses a GPU
    with pytest.raises(InputError, match=r"add --responses N.*: 100 a GPU that rolls out"):
        import_trace(of_slime(tmp_path / "slime.log"), Options())


def test_the_two_lines_of_a_slime_step_are_one_step(tmp_path: Path) -> None:
    times = read_phases(of_slime(tmp_path / "slime.log"))
    assert (times.framework, times.steps, times.lines) == ("slime", [1, 2, 3], 3)
    assert times.phases["gen"].values_s == [201.0, 202.0, 203.0]
    assert times.phases["step"].values_s == [281.0, 282.0, 283.0]


@pytest.mark.parametrize(
    "kind", ["console.log", "quoted.log", "logging.jsonl", "tracker.jsonl", "state.json"]
)
def test_trl_is_read_from_console_state_and_trackers(kind: str, tmp_path: Path) -> None:
    trace, report = import_trace(trl_file(kind, tmp_path), Options(responses=1024))
    assert (report.format, report.rows) == ("trl-metrics", 2048)
    assert sorted(trace.rows["step"].unique()) == [1, 2]
    assert trace.rows["response_tokens"].mean() == pytest.approx(301.5, rel=0.02)
    assert trace.rows["response_tokens"].max() == 1024
    assert int(trace.rows["truncated"].sum()) == 2 * round(0.06 * 1024)
    # num_tokens grows by 400,000 = 1,024 x (mean + prompt): a prompt of 390.6 - 302 in step 2
    assert trace.rows.loc[trace.rows["step"] == 2, "prompt_tokens"].unique().tolist() == [89]
    assert read_phases(trl_file(kind, tmp_path)).phases["step"].values_s == [21.0, 21.0]


def test_trl_asks_for_the_completions_and_refuses_more_than_its_tokens_hold(tmp_path: Path) -> None:
    path = trl_file("console.log", tmp_path)
    with pytest.raises(
        InputError, match=r"per_device_train_batch_size.*TRL does not log it: add --responses N"
    ):
        import_trace(path, Options())
    with pytest.raises(InputError, match="at most 1,328"):  # 400,000 / 301
        import_trace(path, Options(responses=1400))


@pytest.mark.parametrize(
    ("format_name", "metrics"),
    [
        ("skyrl-metrics", {"generate/avg_num_tokens": 500, "generate/max_num_tokens": 2000}),
        (
            "nemo-rl-metrics",
            {"train/gen_tokens_per_sample/mean": 500, "train/gen_tokens_per_sample/max": 2000},
        ),
        ("roll-metrics", {"tokens/response_length/mean": 500, "tokens/response_length/max": 2000}),
    ],
)
def test_metrics_of_other_trainers(format_name: str, metrics: dict[str, float], tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 4, **metrics}))
    trace, report = import_trace(path, Options(responses=256))
    assert report.format == format_name
    assert (len(trace.rows), trace.rows["response_tokens"].max()) == (256, 2000)
    assert trace.rows["response_tokens"].mean() == pytest.approx(500, rel=0.03)


def test_metrics_without_lengths_give_phase_times_alone(tmp_path: Path) -> None:
    path, out, phases = tmp_path / "m.jsonl", tmp_path / "x.parquet", tmp_path / "x.json"
    path.write_text(
        "".join(
            json.dumps({"step": s, "timing/train/total_step_time": 60 + s, "timing/train/generation": 33 + s})
            + "\n"
            for s in (1, 2, 3)
        )
    )
    for given in (["--out", str(out)], []):
        done = CliRunner().invoke(
            trace_group, ["import", str(path), "--phases", str(phases), "--force", *given]
        )
        assert done.exit_code == 0, done.output
        assert json.loads(phases.read_bytes())["phases"]["gen"]["values_s"] == [34.0, 35.0, 36.0]
        assert not out.exists()
        assert ("no lengths: m.jsonl holds metrics alone" in done.output) == bool(given)
    done = CliRunner().invoke(trace_group, ["import", str(path)])
    assert isinstance(done.exception, InputError)
