"""Names of runs, files and models cannot act on a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from tlt.commands.harmless_console import console
from tlt.commands.terminal import HarmlessStream, harmless, harmless_streams

TITLE = "\x1b]0;PWN\x07"  # sets the title of a terminal's window
ERASE = "\x1b[1A\x1b[2K"  # goes up and erases a line
TURNED = "\u202ejson\u202c"  # reads as nosj


@pytest.mark.parametrize(
    "text", [TITLE, ERASE, "\x9b31m", "a\rb", "a\x08b", TURNED, "\u2066x", "\x7f", "\x00"]
)
def test_nothing_that_acts_is_left(text: str) -> None:
    cleaned = harmless(f"name {text} end")
    assert cleaned.isprintable()
    assert cleaned.startswith("name ")
    assert cleaned.endswith(" end")
    assert "?" in cleaned


@pytest.mark.parametrize("text", ["a\tb\nc\n", "Länge 長さ é ∑ 🙂", "日本語", "مرحبا", ""])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert harmless(text) == text


def test_streams_are_cleaned_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with harmless_streams():
        sys.stdout.write(f"out {TITLE}\n")
        sys.stderr.writelines([f"err {ERASE}", "\n"])
        assert isinstance(sys.stdout, HarmlessStream)
        assert not sys.stdout.isatty()
    assert sys.stdout is out
    assert (out.getvalue(), err.getvalue()) == ("out ?]0;PWN?\n", "err ?[1A?[2K\n")


def test_a_closed_stream_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with harmless_streams():
        assert sys.stdout is None


def test_tables_keep_their_colours_and_lose_what_cells_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with harmless_streams():
        table = Table("name")
        table.add_row(Text(f"mine{TITLE}", style="red"))
        table.add_row(f"other{ERASE}")
        console().print(table)
    text = out.getvalue()
    assert "\x1b[31m" in text
    assert TITLE not in text
    assert ERASE not in text
    assert "mine?]0;PWN" in text


def on_a_terminal(*arguments: str, cwd: Path) -> tuple[int, bytes]:
    """Run a command with a terminal for stdout and stderr; returns its status and what it printed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tlt", *arguments]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=cwd, env=environment
    )
    os.close(theirs)
    printed = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            more = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        printed += more
    os.close(ours)
    return child.wait(), printed


@pytest.mark.slow
def test_hostile_names_on_a_terminal(tmp_path: Path) -> None:
    """A run's name, a folder and a file, in a report, a description and an error."""
    name = f"run{TITLE}{ERASE}"
    (tmp_path / "job.toml").write_text(
        '[run]\nname = "run\\u001b]0;PWN\\u0007\\u001b[1A\\u001b[2K"\n'
        "[hardware]\ngpus = 4\n[workload]\nsteps = 1\n"
        "prompts_per_step = 2\nsamples_per_prompt = 2\nmax_response_tokens = 100\n",
        encoding="utf-8",
    )
    lengths = f"lengths{TITLE}.csv"
    (tmp_path / lengths).write_text("response_tokens\n5\n7\n9\n", encoding="utf-8")
    for arguments in (
        ("sim", "run", "--config", "job.toml", "--policy", "none", "--out", f"out{TITLE}"),
        ("trace", "describe", lengths),
        ("trace", "describe", f"absent{ERASE}"),
        ("report", f"out{TITLE}"),
    ):
        _, printed = on_a_terminal(*arguments, cwd=tmp_path)
        assert printed
        assert b"\x1b]0;" not in printed, arguments
        assert b"\x07" not in printed, arguments
        assert name.encode() not in printed
