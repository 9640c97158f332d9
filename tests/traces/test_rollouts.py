"""The responses of a run folder as a trace: prompts, steps and where the lengths come from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tlt.traces.lengths.files import length_histogram, read_trace, write_trace
from tlt.traces.runs.runfolder import RESPONSE_COLUMNS, RunFolder, Summary, write_json
from tltsched.errors import InputError


def _write_run(path: Path, kind: str = "measured") -> Path:
    """Write two steps of two groups of two samples, in the order of the requests."""
    rows = [
        (step, request, request // 2, request % 2, 9, 10 * (step + 1) + request, request == 3, 0.0, 1.0)
        for step in range(2)
        for request in range(4)
    ]
    responses = pd.DataFrame(rows, columns=list(RESPONSE_COLUMNS)).astype(RESPONSE_COLUMNS)
    intervals = pd.DataFrame({"worker": [0], "cause": "decode", "step": 0, "start_s": 0.0, "end_s": 1.0})
    steps = pd.DataFrame({"step": [0, 1], "start_s": 0.0, "rollout_end_s": 1.0, "end_s": 1.0})
    steps = steps.assign(
        request_steps=0, accepted_tokens=0, drafter_version=0, drafter_age_steps=0, trained_tokens=0
    )
    summary = Summary(
        kind=kind, name="mine", policy="static:4", model="SmolLM2-135M", gpu="H100", workers=2,  # type: ignore[arg-type]
        gpus_per_worker=1, steps=2, wall_s=1.0, response_tokens=1, cost_source="a", lengths_source="natural.",
        acceptance_source="a", seed=0, tool_version="0",
    )  # fmt: skip
    RunFolder(path).write(summary, responses, intervals, steps)
    write_json(path / "resolved_config.json", {"rollout": {"max_response_tokens": 23}, "seed": 0})
    return path / "responses.parquet"


def test_a_training_run_is_a_trace_of_rl_rollouts(tmp_path: Path) -> None:
    path = _write_run(tmp_path)
    pd.DataFrame({"step": [0]}).to_parquet(tmp_path / "rewards.parquet")
    trace = read_trace(path)
    rows, origin = trace.rows, trace.origin
    assert (origin.kind, origin.model, origin.max_response_tokens) == ("rollout", "SmolLM2-135M", 23)
    assert origin.source == "measured run mine, policy static:4"
    assert origin.note == "natural."
    assert rows["step"].tolist() == [0] * 4 + [1] * 4
    assert rows["sample"].tolist() == [0, 1] * 4
    assert rows["response_tokens"].tolist() == [10, 11, 12, 13, 20, 21, 22, 23]
    assert rows["truncated"].tolist() == [False, False, False, True] * 2
    assert rows.groupby("prompt_id").size().tolist() == [2] * 4  # prompts of two steps stay apart


def test_any_other_run_does_not_claim_to_be_rl(tmp_path: Path) -> None:
    for kind in ("measured", "simulated"):
        path = _write_run(tmp_path / kind, kind)
        assert read_trace(path).origin.kind == "unstated"
    pd.DataFrame({"step": [0]}).to_parquet(tmp_path / "simulated" / "rewards.parquet")
    assert read_trace(tmp_path / "simulated" / "responses.parquet").origin.kind == "unstated"


def test_responses_on_their_own_can_be_read(tmp_path: Path) -> None:
    path = _write_run(tmp_path / "run").rename(tmp_path / "alone.parquet")
    assert length_histogram(path).rows == 8
    assert read_trace(path).origin.kind == "unstated"


def test_responses_are_checked_as_any_trace(tmp_path: Path) -> None:
    path = _write_run(tmp_path)
    write_json(tmp_path / "resolved_config.json", {"rollout": {"max_response_tokens": 22}})
    with pytest.raises(InputError, match="at most the stated cap, 22"):
        read_trace(path)


def test_settings_of_another_form_are_told(tmp_path: Path) -> None:
    path = _write_run(tmp_path)
    write_json(tmp_path / "resolved_config.json", {"rollout": {"max_response_tokens": "many"}})
    with pytest.raises(InputError, match=r"resolved_config\.json"):
        read_trace(path)


def test_a_trace_of_a_run_can_be_written_and_read_again(tmp_path: Path) -> None:
    trace = read_trace(_write_run(tmp_path))
    write_trace(trace, tmp_path / "out.parquet")
    again = read_trace(tmp_path / "out.parquet")
    assert again.rows.equals(trace.rows)
    assert again.origin == trace.origin
