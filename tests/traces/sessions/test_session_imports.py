"""Sessions out of what frameworks and serving systems write: turns as written, waits only if stated."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tlt.commands.trace.group import trace
from tlt.traces.importers.importing import Imported, import_all
from tlt.traces.importers.reading.items import Options, Request, Response
from tlt.traces.importers.turns.requests import HeldRequests
from tlt.traces.lengths.files import read_trace
from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.files import read_sessions
from tlt.traces.sessions.schema import Sessions
from tltsched.errors import InputError

SAMPLES = Path(__file__).resolve().parents[3] / "traces" / "importers" / "samples"
UNKNOWN = -1.0  # stands for NaN below, which equals nothing

# file -> sessions of turns (input, kept, response tokens, wait, end)
Told = list[list[tuple[int, int, int, float, str]]]
CASES: dict[str, Told] = {
    # a1 waits 250 + 1,750 ms; a2 shares one block of 64 with a1 and waits for another session as well
    "sessions/agentic_mooncake.jsonl": [
        [(100, 0, 20, 2.0, "not_known"), (30, 120, 30, 0.5, "not_known"), (56, 64, 40, 0.0, "not_known")],
        [(64, 0, 5, 0.0, "not_known")],
        [(90, 0, 9, 0.0, "not_known")],
    ],
    "sessions/agentic_mooncake_v2.jsonl": [[(128, 0, 10, 1.5, "not_known"), (62, 138, 12, 0.0, "not_known")]],
    # r1 ends at 3,000 ms, r2 is received at 4,500; r4 runs beside r2, so it is a session of its own
    "sessions/dynamo-request-trace.jsonl": [
        [(100, 0, 20, 1.5, "tool"), (40, 120, 30, 0.0, "stop")],
        [(70, 0, 7, 0.0, "length")],
        [(80, 0, 4, 0.0, "stop")],
    ],
    "sessions/applied_compute.jsonl": [
        [(320, 0, 16, 0.5, "tool"), (80, 336, 20, 12.25, "tool"), (12, 436, 64, 0.0, "stop")],
        [(100, 0, 8, 0.0, "stop")],
    ],
    "sessions/agentx.jsonl": [[(128, 0, 10, 1.5, "not_known"), (54, 138, 12, 0.0, "not_known")]],
    # times of arrival alone: the wait between two turns is not known
    "requests/qwen_bailian.jsonl": [
        [(300, 0, 120, UNKNOWN, "not_known"), (60, 420, 90, 0.0, "not_known")],
        [(200, 0, 700, 0.0, "not_known")],
    ],
}


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def imported(path: Path) -> Imported:
    return import_all(path, Options(tokenise=words))


def told(sessions: Sessions | None) -> Told:
    assert sessions is not None
    return [
        [
            (
                turn.input_tokens,
                turn.kept_tokens or 0,
                turn.response_tokens,
                UNKNOWN if math.isnan(turn.wait_s) else round(turn.wait_s, 6),
                turn.end,
            )
            for turn in session.turns
        ]
        for session in sessions
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_sample_has_these_turns(name: str) -> None:
    read = imported(SAMPLES / name)
    assert told(read.sessions) == CASES[name]
    assert read.report.sessions == len(CASES[name])
    known = [turn[3] >= 0 for session in CASES[name] for turn in session[:-1]]
    assert (read.report.waits_known, read.report.waits) == (sum(known), len(known))


def test_what_others_do_meanwhile_is_told() -> None:
    agentic = imported(SAMPLES / "sessions/agentic_mooncake.jsonl")
    assert "1 requests wait for requests of other sessions too" in " ".join(agentic.report.notes)
    dynamo = imported(SAMPLES / "sessions/dynamo-request-trace.jsonl")
    assert "1 requests ran beside another of their session" in " ".join(dynamo.report.notes)
    assert dynamo.sessions is not None
    assert dynamo.sessions.arrived_s is not None
    assert dynamo.sessions.arrived_s.tolist() == pytest.approx([0.0, 1.0, 3.6])
    assert dynamo.sessions.blocks is not None
    assert dynamo.sessions.blocks.ids.tolist() == [0, 1, 0, 1, 2, 0, 3, 0, 4]


def write_lines(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_verl_turns_are_told_apart_by_what_tools_said(tmp_path: Path) -> None:
    said = "user\n<tool_response>\na b c\n</tool_response>\nassistant\n"
    base = {"input": "user\nquestion\nassistant\n", "gts": "4", "score": 1.0, "step": 1}
    path = write_lines(
        tmp_path / "1.jsonl",
        base | {"output": f"think of it {said}again {said}so four", "num_turns": 6},
        base | {"output": "four at once", "num_turns": 2},
    )
    read = imported(path)
    observed = len(said.split())
    assert told(read.sessions) == [
        [
            (3, 0, 3, UNKNOWN, "tool"),
            (observed, 6, 1, UNKNOWN, "tool"),
            (observed, 7 + observed, 2, 0.0, "not_known"),
        ],
        [(3, 0, 3, 0.0, "not_known")],
    ]
    assert read.trace.rows["response_tokens"].tolist() == [6, 3]
    assert (read.report.waits_known, read.report.waits) == (0, 2)


def test_skyrl_keeps_special_tokens_and_its_turns_are_those_of_the_template(tmp_path: Path) -> None:
    said = "\n<|im_start|>user\nfound it<|im_end|>\n<|im_start|>assistant\n"
    output = f"look it up<|im_end|>{said}done now<|im_end|>"
    record = {"input_prompt": "a question", "output_response": output, "score": 1.0, "stop_reason": "stop"}
    read = imported(write_lines(tmp_path / "x.jsonl", record | {"env_class": "search", "env_extras": {}}))
    # "look it up<|im_end|>" is 3 words; "<|im_start|>user found it<|im_end|> <|im_start|>assistant" 4
    assert told(read.sessions) == [[(2, 0, 3, UNKNOWN, "tool"), (4, 5, 2, 0.0, "stop")]]


def test_chat_messages_are_turns(tmp_path: Path) -> None:
    path = tmp_path / "completions_00003.parquet"
    completion = [
        {"role": "assistant", "content": "one two"},
        {"role": "tool", "content": "a b c"},
        {"role": "assistant", "content": "three"},
    ]
    pd.DataFrame({"step": [3], "prompt": ["say it"], "completion": [completion]}).to_parquet(path)
    assert told(imported(path).sessions) == [[(2, 0, 2, UNKNOWN, "tool"), (3, 4, 1, 0.0, "not_known")]]


@pytest.mark.parametrize(
    ("mask", "outside_s", "turns"),
    [
        # prompt of 4; 3 decoded, 2 put in, 1 decoded: the one wait is all that was outside of generation
        ([1, 1, 1, 0, 0, 1], 2.5, [(4, 0, 3, 2.5, "tool"), (2, 7, 1, 0.0, "stop")]),
        ([1, 1, 1, 0, 0, 1], 0.0, [(4, 0, 3, UNKNOWN, "tool"), (2, 7, 1, 0.0, "stop")]),  # 0: not measured
        ([1, 0, 1, 0, 1, 1], 9.0, [
            (4, 0, 1, UNKNOWN, "tool"), (1, 5, 1, UNKNOWN, "tool"), (1, 7, 2, 0.0, "stop"),
        ]),
        ([0, 1, 1, 0, 1, 0], 1.5, [(5, 0, 2, 1.5, "tool"), (1, 7, 1, 0.0, "stop")]),  # ends in an observation
    ],
)  # fmt: skip
def test_slime_turns_are_runs_of_the_loss_mask(
    mask: list[int], outside_s: float, turns: list[tuple[int, int, int, float, str]], tmp_path: Path
) -> None:
    sample = {
        "group_index": 0, "index": 0, "prompt": "x", "tokens": list(range(50, 54 + len(mask))),
        "response": "y", "response_length": len(mask), "loss_mask": mask, "status": "completed",
        "reward": 1.0, "non_generation_time": outside_s,
    }  # fmt: skip
    path = tmp_path / "7.pt"
    torch.save({"rollout_id": 7, "samples": [sample]}, path)
    read = imported(path)
    assert told(read.sessions) == [turns]
    assert read.trace.rows["response_tokens"].tolist() == [sum(mask)]


def test_single_turns_are_no_sessions() -> None:
    assert imported(SAMPLES / "verl/12.jsonl").sessions is None
    assert imported(SAMPLES / "mooncake/conversation_trace.jsonl").sessions is None


def test_mooncake_with_sessions_and_delays(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 512, "output_length": 5, "hash_ids": [1]},
        {"session_id": "a", "delay": 1500, "input_length": 600, "output_length": 6, "hash_ids": [1, 2]},
    ]
    read = imported(write_lines(tmp_path / "t.jsonl", *(row | {"timestamp": 0} for row in rows)))
    assert told(read.sessions) == [[(512, 0, 5, 1.5, "not_known"), (83, 517, 6, 0.0, "not_known")]]
    assert read.sessions is not None
    assert read.sessions.blocks is not None
    assert read.sessions.blocks.block_tokens == 512


def test_a_branch_of_a_chat_is_a_session_of_its_own(tmp_path: Path) -> None:
    rows = [
        {
            "chat_id": one,
            "parent_chat_id": of,
            "timestamp": float(one),
            "input_length": 10 * one,
            "output_length": 5,
        }
        for one, of in ((1, -1), (2, 1), (3, 1), (4, 2))
    ]
    read = imported(write_lines(tmp_path / "t.jsonl", *rows))
    assert read.sessions is not None
    assert read.sessions.turns.tolist() == [3, 1]
    assert "branched off" in " ".join(read.report.notes)


def test_many_chats_take_no_longer_each() -> None:
    held = HeldRequests()
    for number in range(20_000):
        request = Request(session="", id=str(number), after=(str(number - 10_000),))
        held.add(
            Response(line=number, group=number, response_tokens=1, prompt_tokens=number + 1, request=request)
        )
    sessions = held.sessions(Origin(source="many", kind="serving"), step=0)
    assert sessions is not None
    assert sessions.turns.tolist() == [2] * 10_000


def test_import_writes_sessions_beside_the_lengths(tmp_path: Path) -> None:
    out = tmp_path / "lengths.csv"
    command = ["import", str(SAMPLES / "requests/qwen_bailian.jsonl"), "--out", str(out)]
    result = CliRunner().invoke(trace, command)
    assert result.exit_code == 0, result.output
    assert "waits known: 0 of 1" in result.output
    assert "Nothing stands for a wait that is not known" in result.output
    assert len(read_trace(out).rows) == 3
    sessions = read_sessions(tmp_path / "lengths.sessions.csv")
    assert sessions.turns.tolist() == [2, 1]
    assert np.isnan(sessions.wait_s[0])
    assert "Waits are not known" in sessions.origin.note


FIELDS = {
    "agentic-mooncake": [
        "request_id", "session_id", "input_length", "output_length", "hash_ids", "timestamp", "wait_for",
        "delay", "tool_wait_ms", "dependencies", "not_before_ms", "schema", "block_size",
    ],
    "dynamo-trace": ["event_type", "event_time_unix_ms", "agent_context", "request", "event"],
    "applied-compute": [
        "num_turns", "input_prompt_length", "assistant_response_length", "tool_call_output_length",
        "tool_call_latency", "final_assistant_response_length",
    ],
    "agentx": ["id", "block_size", "hash_id_scope", "requests"],
    "mooncake": ["timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay"],
    "qwen-bailian": ["timestamp", "input_length", "output_length", "hash_ids", "chat_id", "parent_chat_id"],
}  # fmt: skip
INNER = [
    "request_id",
    "replay",
    "input_length",
    "trace_block_size",
    "output_tokens",
    "in",
    "out",
    "t",
    "trigger",
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5_000),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=3),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_values_are_read_or_refused_with_a_reason(name: str, data: st.DataObject, tmp_path: Path) -> None:
    records = data.draw(
        st.lists(st.dictionaries(st.sampled_from(FIELDS[name]), VALUES), min_size=1, max_size=4)
    )
    path = write_lines(tmp_path / "any.jsonl", *records)
    try:
        read = import_all(path, Options(), name)
    except InputError:
        return
    assert read.report.rows == len(read.trace.rows)
