"""Tables, traces, records and unfinished work that version 1 wrote are read as if version 2 had."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from tlt.realrun.calibrate.progress_file import Header, PartialFile
from tlt.realrun.calibrate.time_steps import Block
from tlt.realrun.driver.step import decode_step
from tlt.traces.common.migrate import upgraded_line
from tlt.traces.lengths.files import length_histogram, read_trace
from tlt.traces.runs.engine_steps import ENGINE_STEP_COLUMNS, read_engine_steps
from tlt.traces.runs.records import read_records, record_lines
from tlt.traces.runs.runfolder import (
    STEP_COLUMNS,
    read_table,
)
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.events import DecisionEnded


def steps_table(**renamed: str) -> pd.DataFrame:
    return pd.DataFrame({renamed.get(name, name): [1] for name in STEP_COLUMNS})


def test_old_columns_are_read_and_a_missing_or_doubled_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "steps.parquet"
    steps_table(request_steps="request_cycles").to_parquet(path)
    old = read_table(path, STEP_COLUMNS)
    steps_table().to_parquet(path)
    pd.testing.assert_frame_equal(read_table(path, STEP_COLUMNS), old)
    steps_table().assign(request_cycles=1).to_parquet(path)
    with pytest.raises(InputError, match=r"request_cycles and request_steps of .*steps\.parquet"):
        read_table(path, STEP_COLUMNS)
    steps_table().drop(columns=["request_steps", "end_s"]).to_parquet(path)
    with pytest.raises(InputError, match=r"no end_s, request_steps"):
        read_table(path, STEP_COLUMNS)
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(InputError, match=r"steps\.parquet"):
        read_table(path, STEP_COLUMNS)
    with pytest.raises(InputError, match=r"a folder with none\.parquet"):
        read_table(tmp_path / "none.parquet", STEP_COLUMNS)


def test_engine_steps_are_found_under_their_old_name(tmp_path: Path) -> None:
    assert read_engine_steps(tmp_path) is None
    frame = pd.DataFrame({name: [1] for name in ENGINE_STEP_COLUMNS})
    frame.to_parquet(tmp_path / "cycles.parquet")
    read = read_engine_steps(tmp_path)
    assert read is not None
    assert list(read.columns) == list(ENGINE_STEP_COLUMNS)


def test_a_trace_with_the_old_column_and_origin_is_the_same_trace(tmp_path: Path) -> None:
    rows = {"response_tokens": [5, 9, 9], "truncated": [False, True, False]}
    for kind in ("csv", "jsonl", "parquet"):
        read = []
        for name in ("capped", "truncated"):
            frame = pd.DataFrame(rows).rename(columns={"truncated": name})
            path = tmp_path / f"{name}.{kind}"
            if kind == "csv":
                frame.to_csv(path, index=False)
            elif kind == "jsonl":
                frame.to_json(path, orient="records", lines=True)
            else:
                frame.to_parquet(path)
            cap = "cap_tokens" if name == "capped" else "max_response_tokens"
            origin = {"source": "x", "kind": "rollout", cap: 9}
            if kind != "parquet":
                beside = path.with_name(f"{path.name}.origin.json")
                beside.write_text(json.dumps({"rows": 3, "origin": origin}), encoding="utf-8")
                assert read_trace(path).origin.max_response_tokens == 9
            read.append(read_trace(path).rows)
            assert length_histogram(path).truncated_counts.sum() == 1
        pd.testing.assert_frame_equal(*read)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "response_tokens,capped,truncated\n5,true,true\n"),
        ("a.jsonl", '{"response_tokens": 5, "capped": true, "truncated": true}\n'),
    ],
)
def test_a_trace_with_both_names_of_a_column_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"capped and truncated in .*{name}.*keep truncated alone"):
        read_trace(tmp_path / name)


ENDED = (
    b'{"t_s":1.5,"seq":4,"owner":"worker/0","body":{"kind":"epoch_ended","t_s":1.5,"worker":0,"arm":'
    b'{"depth":2,"topk":1,"verify_tokens":3},"cycles":3,"request_cycles":6,"decode_s":0.1,'
    b'"accepted_by_position":[4,1],"finished":[],"requests":2,"context_tokens":40}}\n'
)
DRAFT = (
    b'{"t_s":1.5,"seq":5,"owner":"worker/0","body":{"kind":"draft","worker":0,"arm":'
    b'{"depth":0,"topk":1,"verify_tokens":1},"max_cycles":null,"min_requests":1,"entry":"drafter_fill"}}\n'
)
BEGAN = b'{"t_s":0.0,"seq":0,"owner":"worker/0","body":{"kind":"rollout_began","t_s":0.0,"worker":0,"step":0,"drafter_version":0}}\n'  # noqa: E501


def test_lines_of_a_record_are_translated_and_others_keep_their_bytes(tmp_path: Path) -> None:
    assert upgraded_line(ENDED) == (
        b'{"t_s":1.5,"seq":4,"owner":"worker/0","body":{"kind":"decision_ended","t_s":1.5,"worker":0,'
        b'"draft_config":{"depth":2,"topk":1,"verify_tokens":3},"engine_steps":3,"request_steps":6,'
        b'"decode_s":0.1,"accepted_by_position":[4,1],"finished":[],"requests":2,"context_tokens":40}}\n'
    )
    assert upgraded_line(DRAFT) == (
        b'{"t_s":1.5,"seq":5,"owner":"worker/0","body":{"kind":"set_draft_config","worker":0,'
        b'"draft_config":{"depth":0,"topk":1,"verify_tokens":1},"max_engine_steps":null,"min_requests":1,'
        b'"resume_cost":"draft_prefill"}}\n'
    )
    for line in (ENDED, DRAFT):
        assert upgraded_line(upgraded_line(line)) == upgraded_line(line)
        assert upgraded_line(line.rstrip()) == upgraded_line(line).rstrip()
    for line in (BEGAN, b"\n", b'{"arm":{', b'{"body":{"kind":"x","arm":{}}}', b'{"body":[],"arm":{}}'):
        assert upgraded_line(line) == line
    path = tmp_path / "records.jsonl"
    path.write_bytes(BEGAN + ENDED + b"\n" + DRAFT)
    ended = list(read_records(path))[1].body
    assert isinstance(ended, DecisionEnded)
    assert ended.draft_config == DraftConfig(2, 1, 3)
    assert len(list(record_lines(path))) == 4
    path.write_bytes(BEGAN + ENDED.replace(b'"cycles":3,', b""))
    with pytest.raises(InputError, match=r"line 2: .*engine_steps"):
        list(read_records(path))
    with pytest.raises(InputError, match=r"a folder with records\.jsonl"):
        list(read_records(tmp_path / "none" / "records.jsonl"))


def test_a_step_of_an_unfinished_run_is_refused() -> None:
    """Its responses do not say of which group they are, which today's schedules need."""
    for old in ({"rollout": {"arm": "static:2", "step": 3}}, {"responses": [[0, 1, 5, 1.0]]}):
        with pytest.raises(msgspec.ValidationError, match="an earlier version kept it"):
            decode_step(msgspec.msgpack.encode(old))


def test_a_calibration_in_progress_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "points.json.partial.jsonl"
    header = {"type": "header", "settings": json.dumps([0, {"cycles_per_repeat": 4}], separators=(",", ":"))}
    block = {
        "type": "block", "engine": "plain", "cell": {"batch": 2, "prompt_tokens": 32}, "k": 0, "repeat": 1,
        "before_k": 0, "settle_s": [0.1], "seconds": 0.1, "context_tokens": 33.0, "cycles": 4, "compiled": 0,
    }  # fmt: skip
    path.write_text(f"{json.dumps(header)}\n{json.dumps(block)}\n", encoding="utf-8")
    partial = PartialFile(path, '[0,{"engine_steps_per_repeat":4}]')
    assert [found.engine_steps for found in partial.blocks] == [4]
    partial.add(msgspec.structs.replace(partial.blocks[0], repeat=2))
    again = PartialFile(path, '[0,{"engine_steps_per_repeat":4}]')
    assert [found.repeat for found in again.blocks] == [1, 2]
    with pytest.raises(InputError, match="one of the same settings"):
        PartialFile(path, '[0,{"engine_steps_per_repeat":5}]')
    assert msgspec.json.encode(Header("x")) == b'{"type":"header","settings":"x"}'
    assert isinstance(partial.blocks[0], Block)
