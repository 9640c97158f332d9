"""Processes that are started afresh leave no word of what was taken away after them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tlt.traces.common.spawning import environment

KILLED = """
import os, signal
from tlt.traces.common.spawning import spawning

if __name__ == "__main__":
    lock = spawning().Lock()
    assert "multiprocessing" not in os.environ.get("PYTHONWARNINGS", "")
    print(lock._semlock.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("told", ["", "default", "always::UserWarning"])
def test_what_a_killed_process_held_goes_without_a_word(tmp_path: Path, told: str) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED, encoding="utf-8")
    variables = {**os.environ, "PYTHONWARNINGS": told}
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, env=variables)
    assert ended.returncode == -9
    assert ended.stderr == ""
    (name,) = ended.stdout.split()
    assert not Path("/dev/shm", f"sem.{name.lstrip('/')}").exists()  # noqa: S108


def test_variables_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    with environment({"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}):
        assert os.environ["GOMP_SPINCOUNT"] == "0"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "GOMP_SPINCOUNT" not in os.environ
