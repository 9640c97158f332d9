"""To whom a result folder belongs: one command and one question, study.json.

The same command with the same question goes on in its folder. Another one is refused, unless it is told to
replace what is there, so that no command prints the table of another.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tlt.traces.common.manifest import MANIFEST, verify
from tlt.traces.results.answer import ANSWER
from tlt.traces.results.counterfactual import COUNTERFACTUAL
from tlt.traces.results.kstar import KSTAR
from tlt.traces.results.plan import PLAN
from tlt.traces.results.what_if import WHAT_IF
from tlt.traces.runs.runfolder import FORMAT_VERSION, read_struct, write_json
from tltsched.errors import InputError

STUDY = "study.json"
STAMP = "fingerprint.txt"  # of a finished run folder
SHOWN = 3  # fields in which two questions differ
# A file that a result has, and the command that writes it: for folders of versions without study.json.
MARKS = (
    (PLAN, "recommend --gpus-budget"),
    (COUNTERFACTUAL, "counterfactual"),
    (KSTAR, "kstar"),
    ("advice.json", "recommend"),
    ("comparison.json", "compare"),
    ("sweep.json", "sweep"),
    ("summary.json", "run"),
)
OWN = (
    *(STUDY, MANIFEST, ANSWER, WHAT_IF, STAMP, "cost_draws.parquet", "cost_error.json", "bounds.json"),
    *(
        "sweep.jsonl",
        "sweep.parquet",
        "sweep.csv",
        "plan.parquet",
        "report.html",
        "counterfactual.html",
        "trace.json",
        "schedule.json",
    ),
    *(mark for mark, _ in MARKS),
)


class Study(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The command, and what it was asked: settings by dotted name, and arguments."""

    format_version: int = FORMAT_VERSION
    command: str
    question: dict[str, str]


def claim(folder: Path, command: str, question: Mapping[str, Any], *, force: bool = False) -> None:
    """Take a folder for one command and question, and make it if it does not exist.

    Raises InputError if it holds another result; with `force` that is removed. A study.json that is damaged
    says no question: the same command makes it anew.
    """
    study = Study(command=command, question=_flat(question))
    held = _held(folder)
    if held is not None and held != study and not _same(held, study):
        if not force:
            raise InputError(
                "--out", str(folder), "a folder of its own for each question",
                f"it holds {_told(held, study)}: choose another folder, or add --force to replace it",
            )  # fmt: skip
        _clear(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STUDY, study)


def wrote(folder: Path) -> str:
    """Return which command's result a folder holds, such as `tlt sim sweep`; "" if it is none."""
    held = _held(folder)
    return "" if held is None else f"tlt sim {held.command}"


def _held(folder: Path) -> Study | None:
    path = folder / STUDY
    if path.is_file() and _is_readable(path):
        return read_struct(path, Study)
    return next((Study(command=name, question={}) for mark, name in MARKS if (folder / mark).is_file()), None)


def _is_readable(path: Path) -> bool:
    """Return whether a file is the JSON that was written, of this version or another."""
    try:
        verify(path)
        msgspec.json.decode(path.read_bytes())
    except (InputError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _same(held: Study, study: Study) -> bool:
    """Return whether a folder of an earlier version, which says no question, is of the same command."""
    return not held.question and held.command == study.command


def _told(held: Study, study: Study) -> str:
    if held.command != study.command:
        return f"what `tlt sim {held.command}` wrote"
    names = sorted({*held.question, *study.question})
    unlike = [name for name in names if held.question.get(name) != study.question.get(name)]
    shown = ", ".join(
        f"{name} = {held.question.get(name, 'not set')} (now {study.question.get(name, 'not set')})"
        for name in unlike[:SHOWN]
    )
    more = f" and {len(unlike) - SHOWN} more" if len(unlike) > SHOWN else ""
    return f"the same command with {shown}{more}"


def _clear(folder: Path) -> None:
    """Remove what studies write: their files, and the run folders that they finished."""
    for name in OWN:
        (folder / name).unlink(missing_ok=True)
    for stamp in folder.glob(f"*/{STAMP}"):
        shutil.rmtree(stamp.parent)


def _flat(question: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in question.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return found
