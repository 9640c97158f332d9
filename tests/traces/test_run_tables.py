"""Tables of run folders: a number that its type cannot hold is refused, never wrapped round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tlt.traces.runs.runfolder import read_table, write_table
from tltsched.errors import InputError

COLUMNS = {"step": "int32", "worker": "int16", "seconds": "float64"}


def table(**changes: object) -> pd.DataFrame:
    return pd.DataFrame({"step": [0, 1], "worker": [0, 1], "seconds": [0.5, 1.5]}).assign(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"step": [0, 2**32 + 1]}, "4294967297.* for step of .*32 bits"),  # it was step 1 once
        ({"worker": [0, 40_000]}, "40000.* for worker of .*16 bits"),
        ({"step": [0.0, 0.5]}, "0.5.* for step of .*32 bits"),
        ({"step": [0.0, np.nan]}, "x.parquet"),
        ({"step": ["a", "b"]}, "x.parquet"),
        ({"step": [[1], [2]]}, "x.parquet"),
    ],
)
def test_a_number_that_a_type_cannot_hold_is_refused(
    tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    path = tmp_path / "x.parquet"
    table(**changes).to_parquet(path, index=False)
    with pytest.raises(InputError, match=told):
        read_table(path, COLUMNS)
    table(step=np.array([0, 2], np.int64)).to_parquet(path, index=False)
    assert read_table(path, COLUMNS)["step"].tolist() == [0, 2]


@pytest.mark.parametrize("number", [2**40, 2**70])
def test_what_cannot_be_written_is_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(InputError, match=r"bits"):
        write_table(tmp_path / "x.parquet", table(step=[0, number]), COLUMNS)
    assert not list(tmp_path.iterdir())


def test_types_that_arrow_cannot_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a flipped bit in the schema of a table was: "Integers with more than 64 bits not implemented"."""

    def fail(_: object) -> None:
        raise pa.ArrowNotImplementedError("Integers with more than 64 bits not implemented")

    table().to_parquet(tmp_path / "x.parquet")
    monkeypatch.setattr(pq, "read_schema", fail)
    with pytest.raises(InputError, match="more than 64 bits"):
        read_table(tmp_path / "x.parquet", COLUMNS)
