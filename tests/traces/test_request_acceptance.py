"""Acceptance by request: bins, the table's round trip, and what a reader refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.doctor_runs import healthy
from tlt.plugin.requests import bin_of, lower_edge
from tlt.traces.runs.request_acceptance import (
    ACCEPTANCE,
    ACCEPTANCE_COLUMNS,
    MOST_BINS,
    bins,
    from_tokens,
    read_acceptance,
    write_acceptance,
)
from tltsched.errors import InputError


def test_bins_double_from_128_on() -> None:
    positions = np.array([0, 1, 127, 128, 255, 256, 511, 512, 1023, 1024, 32_768])
    assert bins(positions).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 9]
    assert from_tokens(np.arange(6)).tolist() == [0, 128, 256, 512, 1024, 2048]


@given(st.integers(0, 2**31 - 1))
def test_a_position_lies_in_its_bin(position: int) -> None:
    (number,) = bins(np.array([position]))
    low, high = from_tokens(np.array([number, number + 1]))
    assert low <= position < high
    assert number < MOST_BINS
    assert (bin_of(position), lower_edge(bin_of(position))) == (number, low)


def _rows(**changed: object) -> pd.DataFrame:
    row = {"step": 0, "request": 0, "from_token": 128, "draft_config": "4", "request_steps": 5,
           "drafted_tokens": 20, "accepted_tokens": 11}  # fmt: skip
    return pd.DataFrame(
        [row, row | {"from_token": 0, "draft_config": "8_8_16"}, row | {"request": 1} | changed]
    )


def _with_engines_that_verified(folder: Path, drafted: int, accepted: int) -> None:
    """Make the engine steps of step 0 sum up to these."""
    engine_steps = pd.read_parquet(folder / "engine_steps.parquet").iloc[:1]
    engine_steps = engine_steps.assign(step=0, drafted_tokens=drafted, accepted_tokens=accepted)
    engine_steps.to_parquet(folder / "engine_steps.parquet", index=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return healthy().write(tmp_path)


def test_what_is_written_is_read(folder: Path) -> None:
    assert read_acceptance(folder) is None
    write_acceptance(folder, _rows())
    read = read_acceptance(folder)
    assert read is not None
    pd.testing.assert_frame_equal(read, _rows().astype(ACCEPTANCE_COLUMNS))
    write_acceptance(folder, _rows().iloc[:0])  # a run without drafts into the same folder
    assert not (folder / ACCEPTANCE).exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"request": 99_999}, "unknown requests"),
        ({"request_steps": -1}, "negative counts"),
        ({"accepted_tokens": 21}, "more accepted than drafted"),
        ({"from_token": 100}, "begins no bin"),
        ({"from_token": -128}, "begins no bin"),
        ({"request": 0}, "a request twice"),
        ({"from_token": 2**20}, "a bin past the end"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, changed: dict[str, object], told: str) -> None:
    write_acceptance(folder, _rows(**changed))
    with pytest.raises(InputError, match=told):
        read_acceptance(folder)


@pytest.mark.parametrize(("drafted", "accepted"), [(59, 33), (60, 32)])
def test_requests_have_no_more_than_the_engines_verified(folder: Path, drafted: int, accepted: int) -> None:
    write_acceptance(folder, _rows())  # 3 rows: 60 drafted, 33 accepted
    _with_engines_that_verified(folder, 60, 33)
    assert read_acceptance(folder) is not None
    _with_engines_that_verified(folder, drafted, accepted)
    with pytest.raises(InputError, match=f"60.*33.*in step 0.*{drafted}.*{accepted}"):
        read_acceptance(folder)
