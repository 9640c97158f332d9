"""The wheel: one import name beside the scheduler's, with every file that the code opens."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).resolve().parents[1]
FOLDERS = ("tltsched", "sim", "traces", "realrun", "analysis", "plugin/tlt_vllm")
CHEAP = ("workload.steps=1", "workload.prompts_per_step=4", "hardware.gpus=8", "run.records=false")


def tracked() -> set[str]:
    """Return the files of the libraries under the names that they are imported by."""
    if not (PROJECT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS, "tlt"], cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    links = {f"tlt/{folder.partition('/')[0]}" for folder in FOLDERS}
    return {
        name if name.startswith(("tlt/", "tltsched/")) else f"tlt/{name.replace('/tlt_vllm', '', 1)}"
        for name in listed
        if name not in links
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed: install the extra dev")
    source, out = tmp_path_factory.mktemp("source") / "tlt", tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(
        ".git",
        ".venv",
        "out",
        "build",
        "*.egg-info",
        "__pycache__",
        ".*_cache",
    )
    shutil.copytree(PROJECT, source, symlinks=True, ignore=ignored)
    build = [
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(out),
        str(source),
    ]
    subprocess.run([sys.executable, "-m", *build], check=True)
    (made,) = out.glob("*.whl")
    return made


def test_it_holds_every_file_of_the_libraries_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert names == tracked()
    assert {name.partition("/")[0] for name in names} == {"tlt", "tltsched"}


def test_what_it_holds_runs_without_the_source(wheel: Path, tmp_path: Path) -> None:
    site, out = tmp_path / "site", tmp_path / "out"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    settings = [word for each in CHEAP for word in ("--set", each)]
    command = [sys.executable, "-c", "from tlt.commands.main import main; main()"]
    done = subprocess.run(
        [*command, "sim", "run", "--policy", "tlt", "--out", str(out), *settings],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (out / "report.html").is_file()
