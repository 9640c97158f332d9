"""A rank ends with the process that started it, also before vLLM looks for that itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evidence.fire.processes import alive, ended, workers
from tlt.realrun.engine.ranks import LOOK_S, NAME, end_with_parent


def load() -> None:
    """Be a process that loads for long."""
    end_with_parent()
    os.write(1, b"loading\n")
    time.sleep(60.0)


@pytest.mark.parametrize(("name", "ends"), [(f"{NAME}-1", True), ("Process-1", False)])
def test_a_rank_that_loads_ends_with_its_parent(name: str, ends: bool, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing\nfrom tests.realrun.test_ranks import load\n\n"
        "if __name__ == '__main__':\n"
        f"    child = multiprocessing.get_context('spawn').Process(target=load, name={name!r})\n"
        "    child.start()\n    child.join()\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "loading\n"
        children = workers(parent.pid)
        assert len(alive(children)) == 1
        parent.kill()
    assert (ended(children, limit_s=10 * LOOK_S if ends else 2 * LOOK_S) == []) is ends
