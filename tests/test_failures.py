"""What ends a command from outside ends it in one line, and what was finished stays usable."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tlt.commands import main
from tlt.traces.runs.runfolder import RunFolder


def sets(**fields: object) -> list[str]:
    return [
        word for name, value in fields.items() for word in ("--set", f"{name.replace('__', '.')}={value}")
    ]


TINY = sets(workload__steps=2, workload__prompts_per_step=4, workload__samples_per_prompt=2, hardware__gpus=8)


def enter(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["tlt", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main.main()
    code = caught.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of stderr."""
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    return line


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x"), "error: no space is left for 'x': make room"),
        (OSError(errno.EDQUOT, "Quota", None), "error: no space is left: make room"),
        (PermissionError(errno.EACCES, "Permission denied", "a", None, "b"), "denied for 'a' and 'b': check"),
        (OSError("arrow says\nmuch \x1b[1m"), "error: arrow says: check"),
        (MemoryError("Unable to allocate 22. GiB"), "error: not enough memory (Unable to allocate 22. GiB)"),
        (MemoryError(), "error: not enough memory: ask for less"),
        (RuntimeError("[x] DefaultCPUAllocator: can't allocate memory: 4 bytes"), "error: not enough memory"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "error: not enough memory (CUDA out",
        ),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no"), "error: a name or text is not UTF-8"),
    ],
)
def test_what_fails_outside_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: Exception,
    told: str,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("tlt.sim.comparison.run_into", fail)
    assert enter(monkeypatch, "sim", "run", *TINY, "--policy", "none", "--out", tmp_path / "out") == 2
    assert told in said(capsys)


def test_a_fault_of_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tlt.sim.comparison.run_into", fail)
    monkeypatch.setattr(
        sys, "argv", ["tlt", "sim", "run", *TINY, "--policy", "none", "--out", str(tmp_path / "o")]
    )
    with pytest.raises(ZeroDivisionError):
        main.main()


@pytest.mark.parametrize("out", ["n" * 300, "/proc/none/out", os.fsdecode(b"\xff-out"), "file/out"])
def test_a_folder_that_cannot_be_written_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, out: str
) -> None:
    (tmp_path / "file").touch()
    assert enter(monkeypatch, "sim", "run", *TINY, "--policy", "none", "--out", tmp_path / out) == 2
    assert said(capsys).startswith("error: ")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("summary.json", "byte"),
        *((name, kind) for name in ("summary.json", "steps.parquet") for kind in ("folder", "loop")),
    ],
)
def test_a_file_that_cannot_be_read_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, kind: str
) -> None:
    out = tmp_path / "out"
    assert enter(monkeypatch, "sim", "run", *TINY, "--policy", "none", "--out", out, "--no-report") == 0
    capsys.readouterr()
    (out / "tlt-manifest.json").unlink()  # it would name a changed file before anybody reads it
    path = out / name
    content = bytearray(path.read_bytes())
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        content[60] ^= 0xFF  # no UTF-8 in a text
        path.write_bytes(content)
    assert enter(monkeypatch, "report", out) == 2
    assert name in said(capsys)


def test_a_second_command_on_a_folder_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One of two comparisons at once printed the other's answer as its own."""
    out = tmp_path / "out"
    with first_writer(out):
        for command in (["run", "--policy", "none"], ["compare", "--policies", "none,static:2"]):
            assert enter(monkeypatch, "sim", *command, *TINY, "--out", out) == 2
            assert "a folder that no other command writes to now" in said(capsys)
    assert not out.exists()
    assert enter(monkeypatch, "sim", "run", "--policy", "none", *TINY, "--out", out) == 0


HOLDING = """
import sys
from pathlib import Path
from tlt.traces.common.lock import holding
with holding(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def first_writer(out: Path) -> Iterator[None]:
    """Hold a folder in another process."""
    command = [sys.executable, "-c", HOLDING, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        yield
        first.communicate("")


def test_sigterm_ends_with_143_and_a_line(tmp_path: Path) -> None:
    """What schedulers and CI send; a run that is then asked for again is whole."""
    command = [
        sys.executable,
        "-m",
        "tlt",
        "sim",
        "run",
        *TINY,
        "--policy",
        "none",
        "--out",
        str(tmp_path / "out"),
    ]
    slow = "workload.steps=4000"
    process = subprocess.Popen(
        [*command, "--set", slow], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "out" / "scheduler.json").is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert (
        errors == "stopped by SIGTERM; what was finished is kept, and the same command goes on where it can\n"
    )
    assert not (tmp_path / "out" / "summary.json").is_file()
    # Fewer steps are another question: the unfinished one makes way only if it is told to.
    subprocess.run([*command, "--no-report", "--force"], check=True, capture_output=True)
    assert RunFolder(tmp_path / "out").summary().steps == 2
