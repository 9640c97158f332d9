"""Some of what evidence.hostile_files tries: each case works or is refused by name."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from evidence.hostile_files import NonsenseError, Whole, damaged_folder, digest_of, fire, outcome
from tlt.traces.common.manifest import MANIFEST


@pytest.mark.parametrize(("kind", "count"), [("configurations", 30), ("calibrations", 15), ("folders", 12)])
def test_hostile_files_work_or_are_refused(kind: str, count: int, tmp_path: Path) -> None:
    assert not fire(kind, count, 3, tmp_path)["fault"]


def test_a_folder_that_reads_otherwise_would_be_found(tmp_path: Path) -> None:
    """Without its manifests some of the damage goes unseen, which is what they are for."""
    whole = Whole(tmp_path / "whole")
    for path in whole.folder.rglob(MANIFEST):
        path.unlink()
    whole.files = [path for path in whole.files if path.name == "responses.parquet"]
    assert digest_of(whole.folder) == whole.digest
    case = damaged_folder(whole)
    found = {outcome(case, Random(number), tmp_path).partition(":")[0] for number in range(25)}  # noqa: S311
    assert "fault" in found
    assert issubclass(NonsenseError, Exception)
