"""Every package is ours, wherever it is imported from: the name `traces` is taken on the public index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("tltsched", "tltsched.speculation", "traces", "traces.doctor", "traces.importers"),
    *("sim", "realrun", "analysis", "tlt"),
)
SCRIPT = """
import importlib, sys
print(importlib.import_module(sys.argv[1]).__file__)
"""


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_come_from_this_project(name: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    printed = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, name],
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        check=True,
    )
    *folders, last = name.split(".")
    file = PROJECT.joinpath(*folders, "tlt.py" if last == "tlt" else f"{last}/__init__.py")
    assert Path(printed.stdout.strip()).resolve() == file
