"""The distribution tlt-vllm carries the scheduler, needs msgspec alone, and shares no file with tlt-sim."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
import tlt_vllm
from tlt_vllm import observer, settings
import tltsched
heavy = {"vllm", "torch", "numpy", "pandas"} & set(sys.modules)
print(tltsched.__file__, heavy, tlt_vllm.register())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the unpacked wheel."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed: install the extra dev")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for folder in ("plugin", "tltsched"):
        shutil.copytree(PROJECT / folder, source / folder, ignore=ignored)
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", *build, str(source / "plugin")], check=True)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(out / "site")
    return out / "site"


def scheduler_of(*paths: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SCRIPT, *map(str, paths)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    file, rest = done.stdout.split(maxsplit=1)
    assert rest.strip() == "set() None"
    return file


def test_it_holds_every_file_of_the_plugin_and_the_scheduler(site: Path) -> None:
    def modules(folder: Path) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}

    carried = site / "tlt_vllm" / "carried" / "tltsched"
    assert modules(carried) == modules(PROJECT / "tltsched")
    own = {name for name in modules(site / "tlt_vllm") if not name.startswith("carried/")}
    assert own == modules(PROJECT / "plugin" / "tlt_vllm")
    top = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert top == {"tlt_vllm"}  # no name, and so no file, of tlt-sim
    (points,) = site.glob("*.dist-info/entry_points.txt")
    assert "[vllm.general_plugins]\ntlt = tlt_vllm:register" in points.read_text()


def test_it_runs_with_msgspec_alone_and_beside_tlt_sim(site: Path, tmp_path: Path) -> None:
    assert msgspec.__file__ is not None
    (tmp_path / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    assert scheduler_of(site, tmp_path).startswith(str(site / "tlt_vllm" / "carried"))
    other = tmp_path / "tlt-sim"
    other.mkdir()
    (other / "tltsched").symlink_to(PROJECT / "tltsched")
    assert scheduler_of(site, tmp_path, other).startswith(str(other))
