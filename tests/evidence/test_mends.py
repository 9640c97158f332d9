"""The list of mends names places that are there, and tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidence.mends import PROJECT, Mend, read_mends


@pytest.mark.parametrize("mend", read_mends(), ids=lambda mend: mend.fault)
def test_each_mend_has_a_place_and_a_test(mend: Mend) -> None:
    path, _, name = mend.test.partition("::")
    text = (PROJECT / Path(path)).read_text(encoding="utf-8")
    assert f"def {name}(" in text or not name
    assert mend.before != mend.mended
