import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlt.traces.lengths.files import length_histogram, read_trace, sidecar_path, write_trace
from tlt.traces.lengths.histogram import histogram_of
from tlt.traces.lengths.read_blocks import SUFFIXES
from tlt.traces.lengths.schema import INT32_MAX, INT64_MAX, Origin, Trace
from tlt.traces.lengths.validate import to_trace
from tltsched.errors import InputError

HEADER = b"prompt_tokens,response_tokens\n"


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(1, 30))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    top = draw(st.sampled_from([1, 1000, INT32_MAX]))
    frame = pd.DataFrame({"response_tokens": rng.integers(1, top, count, endpoint=True)})
    if draw(st.booleans()):
        frame["prompt_id"] = rng.integers(-INT64_MAX, INT64_MAX, count)
    if draw(st.booleans()):
        frame["step"] = rng.integers(0, INT32_MAX, count)
    if draw(st.booleans()):
        frame["truncated"] = rng.random(count) < 0.5
    if draw(st.booleans()):
        frame["arrived_s"] = rng.exponential(10.0 ** draw(st.integers(-9, 9)), count)
    cap = draw(st.sampled_from([None, top]))
    text = draw(st.text(max_size=20))
    return to_trace(frame, Origin(source=text, kind="rollout", max_response_tokens=cap, note=text[::-1]))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(trace=traces(), suffix=st.sampled_from(SUFFIXES))
def test_what_was_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("round") / f"trace{suffix}"
    write_trace(trace, path)
    back = read_trace(path)
    pd.testing.assert_frame_equal(back.rows, trace.rows, check_exact=True)
    assert back.origin == trace.origin
    streamed, whole = length_histogram(path), histogram_of(trace)
    assert streamed.values.tolist() == whole.values.tolist()
    assert streamed.counts.tolist() == whole.counts.tolist()
    assert streamed.truncated.tolist() == whole.truncated.tolist()
    assert [file.name for file in path.parent.iterdir() if file.name.startswith(".")] == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_csv_cut_anywhere_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("cut") / "trace.csv"
    frame = pd.DataFrame({"response_tokens": [100, 2000, 31], "prompt_tokens": [11, 12, 13]})
    write_trace(to_trace(frame, Origin(source="x", kind="rollout")), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])  # the last newline carries nothing
    for read in (read_trace, length_histogram):
        with pytest.raises(InputError):
            read(path)


BAD_FILES: list[tuple[str, bytes, list[str]]] = [
    ("a.csv", HEADER + b"1,5\n7", ["'1 columns: 7'", "line 3 of a.csv", "2 columns"]),
    ("a.csv", HEADER + b"1,5\n7,8,9\n", ["'3 columns: 7,8,9'", "line 3 of a.csv"]),
    ("a.csv", HEADER + b"1,5\n1,-7\n", ["'-7'", "response_tokens in line 3 of a.csv"]),
    ("a.csv", HEADER + b"1,0\n", ["'0'", "line 2"]),
    ("a.csv", HEADER + b"1,5\n1,NaN\n", ["'NaN'", "line 3"]),
    ("a.csv", HEADER + b"1,5\n1,\n", ["''", "line 3"]),
    ("a.csv", HEADER + b"1,5\n\n1,6\n", ["''", "line 3"]),
    ("a.csv", HEADER + b"1,1.5\n", ["'1.5'", "whole numbers"]),
    ("a.csv", HEADER + b"1,2147483648\n", ["'2147483648'", "1 to 2147483647"]),
    ("a.csv", HEADER + b"1,99999999999999999999999\n", ["'99999999999999999999999'"]),
    ("a.csv", HEADER + b"1,many\n", ["'many'", "line 2"]),
    (
        "a.csv",
        b"response_tokens,truncated\n5,perhaps\n",
        ["'perhaps'", "truncated in line 2", "true or false"],
    ),
    ("a.csv", b"respone_tokens\n5\n", ["'respone_tokens'", "did you mean 'response_tokens'?"]),
    ("a.csv", b"response_tokens,response_tokens\n5,5\n", ["each column once"]),
    ("a.csv", b"step\n5\n", ["response_tokens among them"]),
    ("a.csv", HEADER, ["got 0 for rows of a.csv", "1 or more responses"]),
    ("a.csv", b"", ["got 0 for rows of a.csv"]),
    ("a.csv", "response_tokens\n5\n".encode("utf-16"), ["contents of a.csv", ".csv in UTF-8"]),
    ("a.csv", b"response_tokens\n\xe9\n", ["invalid UTF8", "Row #2"]),
    ("a.csv.gz", b"hello", ["contents of a.csv.gz", "incorrect header"]),
    ("a.csv.gz", gzip.compress(HEADER + b"1,5\n" * 99, mtime=0)[:-20], ["Truncated", "the file is whole"]),
    ("a.jsonl.gz", b"hello", ["Not a gzipped file"]),
    ("a.jsonl.gz", gzip.compress(b'{"response_tokens":5}\n' * 99, mtime=0)[:-12], ["ended before"]),
    ("a.jsonl", b'{"response_tokens":5}\n{"respo', ["line 2 of a.jsonl", "truncated"]),
    ("a.jsonl", b'{"response_tokens":5}\n{"response_tokens":6.5}\n', ["6.5", "in line 2 of a.jsonl"]),
    ("a.jsonl", b'{"response_tokens":NaN}\n', ["line 1 of a.jsonl", "malformed"]),
    ("a.jsonl", b'{"response_tokens":null}\n', ["line 1 of a.jsonl", "null"]),
    ("a.jsonl", b'{"response_tokens":"6"}\n', ["line 1 of a.jsonl", "`str`"]),
    ("a.jsonl", b'{"response_tokens":true}\n', ["line 1 of a.jsonl", "`bool`"]),
    ("a.jsonl", b'{"response_tokens":5,"stp":1}\n', ["'stp'", "line 1 of a.jsonl", "did you mean 'step'?"]),
    ("a.jsonl", b'{"step":5}\n', ["line 1 of a.jsonl", "response_tokens among them"]),
    (
        "a.jsonl",
        b'{"response_tokens":5}\n{"response_tokens":5,"step":1}\n',
        ["'step' for line 2", "the fields of line 1: response_tokens"],
    ),
    ("a.jsonl", b'{"response_tokens":5,"step":1}\n{"response_tokens":5}\n', ["'no step' for line 2"]),
    ("a.jsonl", b'{"response_tokens":99999999999999999999999}\n', ["99999999999999999999999", "line 1"]),
    ("a.jsonl", b"[5]\n", ["line 1 of a.jsonl", "one JSON object a line"]),
    ("a.jsonl", b"\xff\xfe\n", ["line 1 of a.jsonl", "malformed"]),
    ("a.jsonl", b"", ["got 0 for rows of a.jsonl"]),
    ("a.parquet", b"hello", ["contents of a.parquet", "Parquet file size is 5 bytes"]),
    ("a.parquet", b"PAR1" + b"x" * 40 + b"PAR1", ["contents of a.parquet"]),
    ("a.cvs", HEADER, ["'a.cvs'", "did you mean '.csv'?"]),
]


@pytest.mark.parametrize(("name", "content", "parts"), BAD_FILES)
def test_bad_files_name_line_and_value(tmp_path: Path, name: str, content: bytes, parts: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for read in (read_trace, length_histogram):
        with pytest.raises(InputError) as caught:
            read(path)
        assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("column", "parts"),
    [
        (pa.array([5, None]), ["no value", "response_tokens in row 2 of a.parquet"]),
        (pa.array([5.0, float("nan")]), ["nan", "row 2"]),
        (pa.array([5, -5]), ["-5", "row 2"]),
        (pa.array([["5"], ["6"]]), ["type list", "convert the column to numbers"]),
    ],
)
def test_bad_parquet_columns_name_the_row(tmp_path: Path, column: pa.Array, parts: list[str]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"response_tokens": column}), path)
    for read in (read_trace, length_histogram):
        with pytest.raises(InputError) as caught:
            read(path)
        assert [part for part in parts if part not in str(caught.value)] == []


def test_the_line_of_an_error_is_right_far_into_a_file(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    rows = [b"10,20\n"] * 1_500_000  # two blocks of text
    for broken, part in ((b"10,-20\n", "'-20' for response_tokens"), (b"10\n", "'1 columns: 10' for")):
        rows[1_400_000] = broken
        path.write_bytes(HEADER + b"".join(rows))
        with pytest.raises(InputError) as caught:
            length_histogram(path)
        assert part in str(caught.value)
        assert "line 1400002 of long.csv" in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbfresponse_tokens\r\n5\r\n6.0\r\n", b"response_tokens\n5\n6"]
)
def test_harmless_differences_are_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    trace = read_trace(path)
    assert trace.rows["response_tokens"].tolist() == [5, 6]
    assert trace.origin.kind == "unstated"


def test_a_length_above_the_stated_cap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"response_tokens\n5\n11\n")
    origin = Origin(source="x", kind="rollout", max_response_tokens=10)
    for read in (read_trace, length_histogram):
        with pytest.raises(
            InputError, match=r"got 11 for response_tokens in line 3 of a.csv.*stated cap, 10"
        ):
            read(path, origin)


def test_a_broken_origin_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"response_tokens\n5\n")
    sidecar_path(path).write_text('{"rows": 1, "origin": {"source": "x", "kind": "guess"}}')
    with pytest.raises(InputError, match=r"origin of a.csv"):
        read_trace(path)


def _one(length: int) -> Trace:
    return to_trace(pd.DataFrame({"response_tokens": [length]}), Origin(source="x", kind="rollout"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_existing_output_is_replaced_only_with_force(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    write_trace(_one(5), path)
    with pytest.raises(InputError, match="--force"):
        write_trace(_one(6), path)
    assert read_trace(path).rows["response_tokens"].tolist() == [5]
    write_trace(_one(6), path, force=True)
    assert read_trace(path).rows["response_tokens"].tolist() == [6]


@pytest.mark.parametrize("name", ["no/such/folder.csv", "folder.csv", "out.txt"])
def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError):
        write_trace(_one(5), tmp_path / name, force=True)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for read in (read_trace, length_histogram):
        with pytest.raises(InputError, match=r"absent.csv.*a file that exists"):
            read(tmp_path / "absent.csv")
