"""Two writers of one folder: the second one is told, and a death gives the folder back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tlt.traces.common.lock import holding
from tltsched.errors import InputError

HOLD = (
    "import sys, time; from pathlib import Path; from tlt.traces.common.lock import holding\n"
    "with holding(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


def test_the_second_writer_is_told_until_the_first_is_dead(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=r"for --out; allowed: a folder that no other command"), holding(out):
        pass
    other.kill()
    other.communicate()
    with holding(out), holding(tmp_path / "." / "out"):
        (out / "result").touch()
    assert [each.name for each in out.iterdir()] == ["result"], "a lock leaves nothing behind"


def test_a_folder_that_stays_empty_goes_again(tmp_path: Path) -> None:
    with holding(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert not (tmp_path / "a").exists()
    (tmp_path / "mine").mkdir()
    with holding(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir(), "nobody's own folder is taken away"


def test_a_folder_may_go_meanwhile(tmp_path: Path) -> None:
    with holding(tmp_path / "out"):
        (tmp_path / "out").rmdir()
