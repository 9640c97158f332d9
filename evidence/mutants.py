"""Would the tests notice? `python -m evidence.mutants [MODULE ...] [--sample N] [--again]`

cosmic-ray (the extra `mutants`) changes one thing at a time in a copy of the project, such as an operator or
a number, and the tests of that module are run; a mutant that they pass has survived. Changes inside
annotations are left out: nothing reads them. Those that alter nothing that any caller could see are listed in
equivalent_mutants.jsonl, each with the reason, and told apart. Each module has its tests below. `--sample`
tries so many mutants a module, drawn by seed. `--again` tries only those that survived the last time, after
tests were added: the module must be as it was. Figures of modules that are not named stay. Writes
mutants.json, and what survived to mutants.points.jsonl.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec

from evidence.recording import HERE, OTHERS, PROJECT, Evidence, device, value_of, write, write_raw
from tlt.traces.runs.runfolder import read_struct

SEED, TIMEOUT_S, AIM = 21, 120.0, 0.9
LEFT_OUT, KEPT = ("evidence/runs/", "docs/pictures/"), ".points.json"  # calibrations are made from these
EQUIVALENT = HERE.parent / "equivalent_mutants.jsonl"
SCHED, SIM, ANALYSIS, TRACES = "tests/tltsched/", "tests/sim/", "tests/analysis/", "tests/traces/"
# module -> the tests that are to notice
MODULES: dict[str, tuple[str, ...]] = {
    "tltsched/worker.py": (
        SCHED + "test_worker.py", SCHED + "test_noticed.py", SCHED + "test_event_checks.py",
    ),
    "tltsched/cluster.py": (
        SCHED + "test_cluster.py", SCHED + "test_noticed.py", SCHED + "test_fallback.py",
        SCHED + "test_schedules.py", SCHED + "test_event_checks.py",
    ),
    "tltsched/event_checks.py": (
        SCHED + "test_event_checks.py", SCHED + "test_worker.py", SCHED + "test_cluster.py",
        SCHED + "test_sessions.py",
    ),
    "tltsched/policies/threshold.py": (
        SCHED + "test_noticed.py", SCHED + "test_policies.py", SCHED + "test_policy_laws.py"),
    "tltsched/policies/beg_mab.py": (
        SCHED + "test_beg_mab.py", SCHED + "test_noticed.py", SCHED + "test_policies.py"),
    "tltsched/policies/goodput.py": (
        SCHED + "test_goodput.py", SCHED + "test_noticed.py", SCHED + "test_policies.py"),
    "sim/model/phases.py": (SIM + "test_phases.py", SIM + "test_trainer_share.py"),
    "sim/steptimes/law.py": (SIM + "test_law_by_hand.py", SIM + "test_calibration.py"),
    "sim/acceptance/laws.py": (SIM + "test_laws_by_hand.py", SIM + "test_acceptance.py"),
    "sim/model/engines/decode_closed_form.py": (
        SIM + "test_trajectory_by_hand.py", SIM + "test_trajectory.py",
    ),
    "analysis/ledger.py": (ANALYSIS + "test_ledger_by_hand.py", ANALYSIS + "test_ledger.py"),
    "traces/common/intervals.py": (TRACES + "test_intervals_by_hand.py", TRACES + "test_intervals.py"),
    "traces/lengths/fit.py": (TRACES + "test_fit_by_hand.py", TRACES + "test_fit.py"),
    "traces/common/manifest.py": (TRACES + "test_manifest.py",),
    "traces/runs/stalls.py": (TRACES + "test_stalls.py",),
}  # fmt: skip


def annotated(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where annotations begin and end, as (line, column)."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            found = getattr(node, name, None)
            if isinstance(found, ast.expr):
                begin = (found.lineno, found.col_offset)
                spans.append((begin, (found.end_lineno or begin[0], found.end_col_offset or begin[1])))
    return spans


class Mutant(msgspec.Struct, frozen=True):
    """One change: which operator, and its how-manieth place."""

    operator: str
    occurrence: int
    line: int


def mutants(path: Path, most: int | None) -> list[Mutant]:
    """Return the mutants of a file outside annotations, or a sample of them, in an order drawn by seed."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    spans = annotated(path.read_text(encoding="utf-8"))
    tree, found = get_ast_from_path(path), list[Mutant]()
    for name in sorted(operator_names()):
        if get_operator(name).arguments():
            continue
        operator = get_operator(name)()
        places = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        found += [
            Mutant(name, number, begin[0])
            for number, (begin, end) in enumerate(places)
            if not any(low <= tuple(begin) and tuple(end) <= high for low, high in spans)
        ]
    return Random(SEED).sample(found, len(found) if most is None else min(most, len(found)))  # noqa: S311


class Runner:
    """A process that runs tests in a copy of the project, each time in a fork."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        self.process = subprocess.Popen(
            [sys.executable, copy / "evidence" / "mutant_runner.py"], cwd=copy, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(copy)},
        )  # fmt: skip

    def run(self, tests: tuple[str, ...], limit_s: float, cache: bool = False) -> str:
        """Return the exit status of the tests, or "timeout"; cache: leave byte code for later runs."""
        arguments = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"--hypothesis-seed={SEED}",
                     "-m", "not slow", *tests]  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = {"arguments": arguments, "limit_s": limit_s, "cache": cache}
        self.process.stdin.write(msgspec.json.encode(asked).decode() + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one mutant; `equivalent` is the reason why nothing could notice it, if that is known."""

    module: str
    operator: str
    line: int
    change: tuple[str, ...]
    killed: bool
    occurrence: int = -1  # -1: not known
    equivalent: str = ""

    def same_change(self, other: Row) -> bool:
        """Return whether two are the same change of the same line of code, wherever it stands now."""
        mine, theirs = ([text.replace(" ", "") for text in row.change] for row in (self, other))
        return (self.module, self.operator, mine) == (other.module, other.operator, theirs)


def mutate(runner: Runner, module: str, chosen: Sequence[Mutant]) -> Iterator[Row]:
    """Try mutants of one module in a copy of the project; raises RuntimeError if tests fail without one."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    path = runner.copy / module
    source, began_s = path.read_text(encoding="utf-8"), time.monotonic()
    status = runner.run(MODULES[module], TIMEOUT_S, cache=True)
    if status != "0":
        raise RuntimeError(f"the tests of {module} fail without a mutant: {status}")
    limit_s = min(TIMEOUT_S, 10 + 5 * (time.monotonic() - began_s))
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        stale.unlink()
    known = read_rows(EQUIVALENT)
    try:
        for mutant in chosen:
            changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
            assert changed is not None
            path.write_text(changed, encoding="utf-8")
            killed = runner.run(MODULES[module], limit_s) != "0"
            lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0)
            change = tuple(line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---"))
            row = Row(module=module, operator=mutant.operator, occurrence=mutant.occurrence, line=mutant.line,
                      change=change, killed=killed)  # fmt: skip
            why = "" if killed else next((each.equivalent for each in known if each.same_change(row)), "")
            yield msgspec.structs.replace(row, equivalent=why)
    finally:
        path.write_text(source, encoding="utf-8")


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file, none if there is none."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


def main() -> None:
    """Try the mutants and write the record."""
    words = argparse.ArgumentParser()
    words.add_argument("modules", nargs="*", metavar="MODULE")
    words.add_argument("--sample", type=int)
    words.add_argument("--again", action="store_true")
    given = words.parse_args()
    path = HERE / "mutants.json"
    before = read_struct(path, Evidence).value if path.is_file() else {}
    value = {name: value_of(figure) for name, figure in before.items()}
    survivors = read_rows(HERE / "mutants.points.jsonl")
    with tempfile.TemporaryDirectory() as top:
        runner = Runner(copy_of_project(Path(top) / "copy"))
        for module in given.modules or MODULES:
            mine = [row for row in survivors if row.module == module]
            others = [row for row in survivors if row.module != module]
            chosen, killed = mutants(runner.copy / module, given.sample), 0
            if given.again:
                chosen = [Mutant(row.operator, row.occurrence, row.line) for row in mine]
                killed = round(value[f"{module}, tried"]) - len(chosen)
            alive: list[Row] = []
            for tried, row in enumerate(mutate(runner, module, chosen), killed + 1):
                alive += [] if row.killed else [row]
                equal = sum(bool(row.equivalent) for row in alive)
                value |= {
                    module: round(1 - (len(alive) - equal) / max(tried - equal, 1), 3),
                    f"{module}, tried": float(tried),
                    f"{module}, equivalent": float(equal),
                }
                survivors = others + alive
                _record(value, survivors)  # so that what ends early is kept
        runner.close()


def _taken(name: str) -> bool:
    return not name.startswith(LEFT_OUT) or name.endswith(KEPT)


def copy_of_project(copy: Path) -> Path:
    """Copy what git knows of or may learn of, pictures and runs left out; returns the copy."""
    listed = ["git", "ls-files", "-coz", "--exclude-standard"]
    files = subprocess.run(listed, cwd=PROJECT, check=True, capture_output=True).stdout
    for name in files.decode().split("\0"):
        if os.path.lexists(PROJECT / name) and name and _taken(name):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, copy / name, follow_symlinks=False)
    return copy


def _record(value: dict[str, float], survivors: list[Row]) -> None:
    counts = {name for name in value if name.endswith((", tried", ", equivalent"))}
    write(
        "mutants",
        claim="Of changes to modules that decide, count or estimate, their tests notice nine in ten",
        value=value,
        unit={OTHERS: "share killed"} | dict.fromkeys(counts, "mutants"),
        measured_on=device(),
        target=f"{AIM:.0%} killed in each module, of those that can be noticed",
        met=min(share for name, share in value.items() if name not in counts) >= AIM,
        how=f"measured: cosmic-ray, all its operators, samples drawn by seed {SEED}; annotations left out, "
        "and of the share those that nothing can notice, whose reasons are listed",
        command="python -m evidence.mutants",
        raw=write_raw("mutants.points.jsonl", [msgspec.to_builtins(row) for row in survivors]),
    )


if __name__ == "__main__":
    main()
