"""Files in no known format: what they look like, columns that are named, one reason why they are refused."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from tlt.commands.trace.group import trace as trace_group
from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.peek import peek
from tlt.traces.importers.reading.items import Options
from tltsched.errors import InputError

ROWS: list[dict[str, Any]] = [
    {"uid": "a", "out_len": 55, "in_len": 7, "ids": [1] * 55, "reason": "stop", "at": 1500.0, "cut": False},
    {"uid": "a", "out_len": 90, "in_len": 7, "ids": [1] * 90, "reason": "length", "at": 1750.0, "cut": True},
    {"uid": "b", "out_len": 20, "in_len": 9, "ids": [1] * 20, "reason": "stop", "at": 2500.0, "cut": False},
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    elif path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        pd.DataFrame(rows).drop(columns=["ids"]).to_csv(
            path, index=False, sep="\t" if path.suffix == ".tsv" else ","
        )
    return path


@pytest.mark.parametrize("name", ["own.jsonl", "own.json", "own.parquet", "own.csv", "own.tsv"])
def test_named_columns_are_read_from_any_layout(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, ROWS)
    columns = (
        "response_tokens=out_len,prompt_tokens=in_len",
        "group=uid,truncated=reason:length,arrived_s=at:ms",
    )
    trace, report = import_trace(path, Options(columns=columns))
    assert (report.format, report.skips) == ("columns", 0)
    wanted = ["prompt_id", "sample", "prompt_tokens", "response_tokens", "truncated", "arrived_s"]
    assert [tuple(row) for row in trace.rows[wanted].itertuples(index=False)] == [
        (0, 0, 7, 55, False, 0.0), (0, 1, 7, 90, True, 0.25), (1, 0, 9, 20, False, 1.0),
    ]  # fmt: skip
    other, _ = import_trace(path, Options(columns=("response_tokens=out_len,truncated=cut",)))
    assert other.rows["truncated"].tolist() == [False, True, False]


def test_what_lies_within_and_lists_are_named_too(tmp_path: Path) -> None:
    rows = [{"usage": {"completion_tokens": 5}, "outputs": [{"ids": [1, 2, 3]}], "a.b": 9}]
    path = written(tmp_path / "own.jsonl", rows)
    for column, tokens in (("usage.completion_tokens", 5), ("outputs.0.ids:count", 3), ("a.b", 9)):
        trace, _ = import_trace(path, Options(columns=(f"response_tokens={column}",)))
        assert trace.rows["response_tokens"].tolist() == [tokens]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("out_len", "FIELD=COLUMN"),
        ("respons_tokens=out_len", "did you mean 'response_tokens'"),
        ("prompt_tokens=in_len", "response_tokens=COLUMN among them"),
        ("response_tokens=out_len,arrived_s=at", "a unit: s, ms, us, ns"),
        ("response_tokens=out_len,arrived_s=at:min", "unit of arrived_s"),
        ("response_tokens=ids", "ids is missing or no whole number"),
        ("response_tokens=nowhere", "nowhere is missing"),
        ("response_tokens=out_len,truncated=reason", "write truncated=reason:VALUE"),
    ],
)
def test_columns_that_cannot_be_are_refused(columns: str, told: str, tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", ROWS)
    with pytest.raises(InputError, match=re.escape(told)):
        import_trace(path, Options(columns=(columns,)))


def run(*arguments: str) -> str:
    done = CliRunner().invoke(trace_group, list(arguments))
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return done.output


def test_peek_proposes_a_command_that_runs(tmp_path: Path) -> None:
    path = written(
        tmp_path / "my own.jsonl", [{key: row[key] for key in ("uid", "out_len", "in_len")} for row in ROWS]
    )
    found = peek(path)
    assert (found.layout, found.rows, found.format) == ("JSON lines", 3, "")
    assert {field.name: (field.holds, field.example) for field in found.fields}["out_len"] == (
        "whole numbers", "20 to 90",
    )  # fmt: skip
    assert found.lacks == (
        "RL steps: all are step 0", "which responses were cut: --cap marks those that reach it",
    )  # fmt: skip
    (command,) = found.commands
    assert "--columns response_tokens=out_len,prompt_tokens=in_len,group=uid" in command
    words = shlex.split(command.replace("lengths.parquet", shlex.quote(str(tmp_path / "x.parquet"))))
    assert "3 responses, 2 prompts" in run(*words[2:])
    assert f"run: {command}" in run("peek", str(path))


def test_a_sum_is_not_proposed_as_a_length(tmp_path: Path) -> None:
    rows = [{"total_output_tokens": 900, "completed": 9, "mean_response_length": 100, "max_tokens": 5}]
    found = peek(written(tmp_path / "sums.jsonl", rows))
    assert found.commands == ()
    assert found.lacks == ("a column of response lengths in tokens: none is called so",)
    own = peek(written(tmp_path / "own.jsonl", [{"generated_tokens": 5, "n_prompt_tokens": 3}]))
    assert "--columns response_tokens=generated_tokens,prompt_tokens=n_prompt_tokens" in own.commands[0]


@pytest.mark.parametrize(
    ("text", "got", "todo"),
    [
        (json.dumps({"total_output_tokens": 9, "request_throughput": 1.0, "model_id": "m"}),
         "nearest to vllm-bench, but: no field output_lens, input_lens: saved without details", "peek"),
        ("x SpecDecoding metrics: Mean acceptance length: 2.0, Accepted: 5 tokens, Drafted: 9 tokens",
         "a server log that says how many drafts were accepted, and no lengths",
         "`tlt trace acceptance f.jsonl`"),
        (json.dumps({"step": 1, "timing/train/generation": 3.0}),
         "metrics of NeMo-RL with times of phases, and no lengths",
         "`tlt trace import f.jsonl --phases phases.json`"),
        (json.dumps({"step": 1, "rollout/response_length_mean": 9.0}),
         "rollout/response_length_mean is a mean alone", "peek"),
        ("response_tokens\n5\n", "a trace in this project's own columns already",
         "`tlt trace describe f.csv`"),
    ],
)  # fmt: skip
def test_a_refusal_says_the_nearest_format_and_one_reason(
    text: str, got: str, todo: str, tmp_path: Path
) -> None:
    path = tmp_path / ("f.csv" if todo.endswith("csv`") else "f.jsonl")
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        import_trace(path, Options())
    assert str(caught.value.got).startswith(got)
    assert todo in caught.value.fix
    assert len(str(caught.value)) < 450
    everything = run("peek", str(path), "--all")
    assert all(f"not {name}: " in everything for name in IMPORTERS)
