"""Do tests hold what was mended once? `python -m evidence.mends [--only WORD]`

Each row of mends.jsonl names a fault that users met, what is done about it, the place in the code that does
it, the same place without it, and a test. In a copy of the project the place is put back as it was, one at a
time, and the test must fail; before, it must pass. A test that is skipped, for want of a package, holds
nothing. `--only` takes the faults in whose title a word is; the others keep what came of them. Writes
mends.json, mends.points.jsonl and the table of docs/faults.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from evidence.mutants import copy_of_project
from evidence.recording import HERE, OTHERS, PROJECT, device, write, write_raw
from tltsched.errors import InputError

LIST, TIMEOUT_S = HERE.parent / "mends.jsonl", 120.0
PASSED, FAILED = 0, 1  # exit statuses of pytest
Outcome = Literal["fails", "hangs", "passes", "was skipped", "fails with it as well"]


class Mend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault: `mended` stands once in `file`; with `before` in its place the `test` fails."""

    fault: str
    done: str
    file: str
    mended: str
    before: str
    test: str


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What the test of a mend did without it."""

    fault: str
    done: str
    test: str
    without: Outcome

    @property
    def holds(self) -> bool:
        """Whether the test notices."""
        return self.without in ("fails", "hangs")


def read_mends() -> list[Mend]:
    """Return the list; raises InputError for a row whose place is not there once."""
    mends = [msgspec.json.decode(line, type=Mend) for line in LIST.read_bytes().splitlines()]
    for mend in mends:
        times = (PROJECT / mend.file).read_text(encoding="utf-8").count(mend.mended)
        if times != 1:
            got = f"{mend.mended!r}, {times} times in {mend.file}"
            fix = "the code has changed: name the place that does it now"
            raise InputError(f"mended ({mend.fault})", got, "a text that is there once", fix)
    return mends


def try_without(mend: Mend, copy: Path) -> Outcome:
    """Run the test of a mend in a copy of the project, with and without it."""
    status, said = run(mend.test, copy)
    if status != PASSED:
        return "fails with it as well"
    if " passed" not in said:
        return "was skipped"
    path = copy / mend.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(mend.mended, mend.before), encoding="utf-8")
    try:
        status, _ = run(mend.test, copy)
    finally:
        path.write_text(whole, encoding="utf-8")
    return "hangs" if status is None else "fails" if status == FAILED else "passes"


def run(test: str, copy: Path) -> tuple[int | None, str]:
    """Return the exit status of pytest, None if it takes too long, and what it said at the end."""
    options = ("-B", "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider")
    paths = os.pathsep.join(filter(None, (str(copy), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, *options, *test.split()], cwd=copy, env=os.environ | {"PYTHONPATH": paths},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        with suppress(ProcessLookupError):  # and what a test without the mend leaves behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, said.strip().rpartition("\n")[2]


def main() -> None:
    """Try all mends and write the record."""
    words = argparse.ArgumentParser()
    words.add_argument("--only", default="")
    given = words.parse_args()
    mends, raw = read_mends(), HERE / "mends.points.jsonl"
    lines = raw.read_bytes().splitlines() if raw.is_file() else []
    known = {(row.fault, row.test): row for row in (msgspec.json.decode(line, type=Tried) for line in lines)}
    with tempfile.TemporaryDirectory() as top:
        copy = copy_of_project(Path(top) / "copy")
        for mend in mends:
            if given.only in mend.fault:
                without = try_without(mend, copy)
                tried = Tried(fault=mend.fault, done=mend.done, test=mend.test, without=without)
                known[mend.fault, mend.test] = tried
                print(f"{tried.without}: {mend.fault} ({mend.test})", flush=True)
    _record([known[each.fault, each.test] for each in mends if (each.fault, each.test) in known], len(mends))


def _record(rows: list[Tried], wanted: int) -> None:
    head = "| What went wrong | What is done about it | Held by |\n|:--|:--|:--|\n"
    table = "".join(f"| {row.fault} | {row.done} | `{row.test}` |\n" for row in rows)
    (HERE / "mends.md").write_text(head + table, encoding="utf-8")
    held = sum(row.holds for row in rows)
    write(
        "mends",
        claim="Faults that users met do not come back unnoticed: without what mended one, its test fails",
        value={"mends": float(len(rows)), "their test fails or hangs without": float(held)},
        unit={OTHERS: ""},
        measured_on=device(),
        target="the named test passes with the mend and fails without it, each of them",
        met=held == len(rows) == wanted,
        how="measured: in a copy of the project the place that mends is put back, one at a time",
        command="python -m evidence.mends",
        raw=write_raw("mends.points.jsonl", [msgspec.to_builtins(row) for row in rows]),
    )


if __name__ == "__main__":
    main()
