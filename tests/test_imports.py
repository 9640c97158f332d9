"""One name is installed beside the scheduler's: no generic one that another package could own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "tltsched", "tlt", "tlt.plugin", "tlt.sim", "tlt.traces", "tlt.realrun", "tlt.analysis", "tlt.commands"
)  # fmt: skip
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
    file = PROJECT.joinpath(*name.split("."), "__init__.py").resolve()
    assert Path(printed.stdout.strip()).resolve() == file


def test_a_source_tree_works_without_being_installed(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); import tlt.commands.main as m; m.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
