"""Session files: what is written comes back, whole, in every format; what cannot be right is refused."""

from dataclasses import fields
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.traces.sessions.session_cases import session_sets
from tlt.traces.lengths.files import length_histogram, read_trace
from tlt.traces.sessions.files import is_session_file, read_sessions, write_sessions
from tlt.traces.sessions.schema import Blocks, Sessions
from tlt.traces.sessions.turns import LENGTH, NOT_KNOWN, STOP, TOOL
from tltsched.errors import InputError

SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
TWO = """turn,input_tokens,response_tokens,wait_s,end
0,500,80,2.5,tool
1,120,200,,stop
0,400,60,0,length
"""


def assert_same(one: Sessions, other: Sessions) -> None:
    for field in fields(Sessions):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, Blocks):
            assert left.block_tokens == right.block_tokens
            assert left.ids.tolist() == right.ids.tolist()
            assert left.offsets.tolist() == right.offsets.tolist()
        elif isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype, field.name
        else:
            assert left == right


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sessions=session_sets())
def test_what_is_written_comes_back(suffix: str, sessions: Sessions, tmp_path: Path) -> None:
    path = tmp_path / f"sessions{suffix}"
    write_sessions(sessions, path, force=True)
    assert is_session_file(path)
    assert_same(read_sessions(path), sessions)
    # Read as lengths: a response a session.
    trace = read_trace(path)
    assert trace.rows["response_tokens"].tolist() == sessions.per_session(sessions.response_tokens).tolist()
    assert trace.rows["prompt_tokens"].tolist() == sessions.per_session(sessions.input_tokens).tolist()
    assert trace.rows["truncated"].tolist() == (sessions.end[sessions.last] == LENGTH).tolist()
    assert length_histogram(path).rows == len(sessions)


def test_columns_that_lack_are_filled_without_inventing_waits(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("turn,response_tokens\n0,5\n1,6\n0,7\n")
    sessions = read_sessions(path)
    assert sessions.turns.tolist() == [2, 1]
    assert sessions.prompt_id.tolist() == [0, 1]
    assert np.isnan(sessions.wait_s).tolist() == [True, False, False]
    assert sessions.end.tolist() == [NOT_KNOWN] * 3
    assert sessions.kept_tokens.tolist() == [0, 5, 0]


def test_an_empty_wait_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text(TWO)
    sessions = read_sessions(path)
    assert sessions.wait_s[[0, 2]].tolist() == [2.5, 0.0]
    assert np.isnan(sessions.wait_s[1])
    assert sessions.end.tolist() == [TOOL, STOP, LENGTH]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (("1,120", "2,120"), "got 2 for turn in row 2 of two.csv"),
        (("0,500", "1,500"), "got 1 for turn in row 1 of two.csv"),
        ((",2.5,", ",-1,"), "got '-1' for wait_s in line 2 of two.csv"),
        ((",2.5,", ",soon,"), "got 'soon' for wait_s in line 2 of two.csv"),
        ((",80,", ",0,"), "got '0' for response_tokens in line 2 of two.csv"),
        (("tool", "tools"), "did you mean 'tool'?"),
        (("wait_s", "waits_s"), "did you mean 'wait_s'?"),
        (("wait_s", "truncated"), "got 'truncated' for column of two.csv"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(changed: tuple[str, str], told: str, tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text(TWO.replace(*changed, 1))
    with pytest.raises(InputError) as refused:
        read_sessions(path)
    assert told in str(refused.value)


def test_a_file_cut_between_two_sessions_is_found(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text(TWO)
    write_sessions(read_sessions(path), path, force=True)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(InputError, match="got 1 for sessions of two"):
        read_sessions(path)


def test_lengths_are_no_sessions(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("response_tokens\n5\n")
    assert not is_session_file(path)
    with pytest.raises(InputError, match="this file holds responses"):
        read_sessions(path)


def test_blocks_need_their_size(tmp_path: Path) -> None:
    path = tmp_path / "blocks.jsonl"
    line = {"turn": 0, "input_tokens": 3, "response_tokens": 1, "blocks": [7]}
    path.write_bytes(msgspec.json.encode(line) + b"\n")
    with pytest.raises(InputError, match="block_tokens"):
        read_sessions(path)
