import numpy as np
import pandas as pd
import pytest

from tlt.traces.lengths.schema import COLUMNS, Origin, Trace
from tlt.traces.lengths.validate import to_trace
from tltsched.errors import InputError

ORIGIN = Origin(source="table", kind="rollout", max_response_tokens=100)


def test_response_tokens_alone_get_the_stated_defaults() -> None:
    rows = to_trace(pd.DataFrame({"response_tokens": [7, 100]}), ORIGIN).rows
    assert {name: str(kind) for name, kind in rows.dtypes.items()} == COLUMNS
    assert rows["step"].tolist() == [0, 0]
    assert rows["prompt_id"].tolist() == [0, 1]
    assert rows["sample"].tolist() == [0, 0]
    assert rows["prompt_tokens"].tolist() == [0, 0]
    assert rows["truncated"].tolist() == [False, True]


def test_samples_are_numbered_within_the_prompt_of_a_step() -> None:
    frame = pd.DataFrame({"response_tokens": [1, 2, 3, 4], "prompt_id": [5, 6, 5, 5], "step": [0, 0, 0, 1]})
    assert to_trace(frame, ORIGIN).rows["sample"].tolist() == [0, 0, 1, 0]


def test_a_stated_flag_is_kept_even_where_it_disagrees_with_the_cap() -> None:
    frame = pd.DataFrame({"response_tokens": [50, 100], "truncated": [True, False]})
    assert to_trace(frame, ORIGIN).rows["truncated"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("frame", "parts"),
    [
        ({"response_tokens": [5, -1]}, ["-1", "response_tokens in row 2", "from 1 to 2147483647"]),
        ({"response_tokens": [0]}, ["got 0", "row 1"]),
        ({"response_tokens": [5, float("nan")]}, ["no value", "row 2"]),
        ({"response_tokens": [5, 1.5]}, ["1.5", "row 2"]),
        ({"response_tokens": [5, float("inf")]}, ["inf", "row 2"]),
        ({"response_tokens": [5, 2**31]}, ["2147483648", "row 2"]),
        ({"response_tokens": [5, 2**70]}, [str(2**70), "row 2"]),
        ({"response_tokens": np.array([2**64 - 1], np.uint64)}, [str(2**64 - 1), "row 1"]),
        ({"response_tokens": [5, "x"]}, ["'x'", "row 2"]),
        ({"response_tokens": [True]}, ["type bool"]),
        ({"response_tokens": [101]}, ["101", "row 1", "the stated cap, 100"]),
        ({"response_tokens": [5], "prompt_tokens": [-3]}, ["-3", "prompt_tokens in row 1"]),
        ({"response_tokens": [5], "prompt_id": [2.0**63]}, ["prompt_id in row 1"]),
        ({"response_tokens": [5], "truncated": [2]}, ["got 2", "truncated in row 1", "true or false"]),
        ({"response_tokens": [5], "arrived_s": [-0.5]}, ["-0.5", "arrived_s in row 1"]),
        ({"response_tokens": [5], "promt_id": [1]}, ["'promt_id'", "did you mean 'prompt_id'?"]),
        ({"step": [5]}, ["['step']", "response_tokens among them"]),
        ({"response_tokens": []}, ["got 0 for rows", "1 or more responses"]),
        (
            {"response_tokens": [5, 6], "prompt_id": [1, 1], "sample": [2, 2]},
            ["row 2", "step 0, prompt_id 1, sample 2", "each of these once"],
        ),
    ],
)
def test_bad_tables_name_field_row_and_value(frame: dict[str, list[object]], parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        to_trace(pd.DataFrame(frame), ORIGIN)
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_trace_of_wrong_columns_cannot_be_made() -> None:
    with pytest.raises(InputError, match="columns of a trace"):
        Trace(pd.DataFrame({"response_tokens": [5]}), ORIGIN)


def test_an_origin_with_a_bad_cap_cannot_be_made() -> None:
    with pytest.raises(InputError, match="got 0 for max_response_tokens"):
        Origin(source="x", kind="rollout", max_response_tokens=0)


def test_serving_lengths_say_that_they_are_no_rollouts() -> None:
    text = Origin(source="somewhere", kind="serving", note="A note.").text()
    assert "serving lengths, not RL rollouts" in text
    assert text.endswith("A note.")
