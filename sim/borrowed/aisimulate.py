"""AISimulate as a table of step times: asked in an environment of its own, which is never imported here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tlt.sim.borrowed.questions import Answer, Answers, Question, Subject, Table
from tltsched.errors import InputError

SCRIPT = Path(__file__).with_name("aisimulate_answers.py")
NEEDS = (
    "psutil pydantic numpy pandas scipy pyarrow pyyaml ijson tqdm munch jinja2 packaging matplotlib "
    "prettytable plotext plotly bokeh nvidia-ml-py"
)
SETUP = (
    "make one: `python3.11 -m venv ENV`, `ENV/bin/pip install --pre --no-deps aisimulate`, "
    f"`ENV/bin/pip install {NEEDS}`; then give ENV/bin/python"
)
# AISimulate's names of systems, by the names of tlt.traces.catalogue.gpus.
SYSTEMS = {
    "A100": "a100_sxm", "H100": "h100_sxm", "H100-PCIe": "h100_pcie", "H200": "h200_sxm", "B200": "b200_sxm",
    "GB200": "gb200", "L40S": "l40s", "RTX-PRO-6000": "rtx_pro_6000_server",
}  # fmt: skip
TOLD_LINES = 1  # of what it printed last, in the message of an error


class Asked(msgspec.Struct, frozen=True):
    """What the other interpreter reads."""

    subject: Subject
    questions: tuple[Question, ...]


def system_of(gpu: str, given: str | None) -> str:
    """Return AISimulate's name of a GPU, or the one given; raises InputError for one without tables."""
    if given:
        return given
    if gpu not in SYSTEMS:
        fix = "name one of AISimulate's systems: --system"
        raise InputError("hardware.gpu", gpu, f"{', '.join(SYSTEMS)}: GPUs with tables", fix)
    return SYSTEMS[gpu]


def ask(python: Path, subject: Subject, questions: Sequence[Question], script: Path = SCRIPT) -> Answers:
    """Ask AISimulate all questions in one process of the interpreter `python`.

    Raises InputError if that is no interpreter of an environment with AISimulate, or its process ends early.
    """
    if not python.is_file() or not os.access(python, os.X_OK):
        raise InputError("--python", str(python), "the interpreter of an environment with aisimulate", SETUP)
    asked = msgspec.json.encode(Asked(subject, tuple(questions)))
    command = [str(python), "-I", str(script)]
    done = subprocess.run(command, input=asked, capture_output=True, check=False)  # noqa: S603 -- no shell
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != len(questions) + 1:
        printed = done.stderr.decode(errors="replace").strip().splitlines()[-TOLD_LINES:]
        told = " | ".join(printed) or "it printed nothing"
        got = f"{python} ended with {done.returncode} after {len(lines)} answers: {told}"
        raise InputError("--python", got, "an environment in which AISimulate runs", SETUP)
    return Answers(
        table=msgspec.json.decode(lines[-1], type=Table),
        subject=subject,
        questions=tuple(questions),
        answers=tuple(msgspec.json.decode(line, type=Answer) for line in lines[:-1]),
    )
