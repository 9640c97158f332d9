"""Would the tests notice? `python -m evidence.mutants [MODULE ...] [--sample N]`

cosmic-ray (the extra `mutants`) changes one thing at a time in a copy of the project, such as an operator or
a number, and runs the tests of that module; a mutant that they pass has survived. Changes inside annotations
are left out: nothing reads them. Each module has its tests below. `--sample` tries so many mutants a module,
drawn by seed. Figures of modules that are not named stay. Writes mutants.json, and what survived to
mutants.points.jsonl.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import msgspec

from evidence.recording import HERE, OTHERS, PROJECT, Evidence, device, value_of, write, write_raw
from tlt.traces.runs.runfolder import read_struct

SEED, TIMEOUT_S, AIM = 21, 120.0, 0.9
SCHED, SIM, ANALYSIS, TRACES = "tests/tltsched/", "tests/sim/", "tests/analysis/", "tests/traces/"
# module -> the tests that are to notice
MODULES: dict[str, tuple[str, ...]] = {
    "tltsched/worker.py": (SCHED + "test_worker.py", SCHED + "test_event_checks.py"),
    "tltsched/cluster.py": (
        SCHED + "test_cluster.py", SCHED + "test_event_checks.py", SCHED + "test_schedules.py",
    ),
    "tltsched/event_checks.py": (
        SCHED + "test_event_checks.py", SCHED + "test_worker.py", SCHED + "test_cluster.py",
    ),
    "tltsched/policies/threshold.py": (SCHED + "test_policies.py", SCHED + "test_policy_laws.py"),
    "tltsched/policies/beg_mab.py": (SCHED + "test_beg_mab.py", SCHED + "test_policies.py"),
    "tltsched/policies/goodput.py": (SCHED + "test_goodput.py", SCHED + "test_policies.py"),
    "sim/model/phases.py": (SIM + "test_phases.py", SIM + "test_trainer_share.py"),
    "sim/steptimes/law.py": (SIM + "test_calibration.py", SIM + "test_engines.py", TRACES + "test_bounds.py"),
    "sim/acceptance/laws.py": (SIM + "test_acceptance.py", SIM + "test_population.py"),
    "sim/model/engines/decode_closed_form.py": (SIM + "test_trajectory.py", SIM + "test_engines.py"),
    "analysis/ledger.py": (ANALYSIS + "test_ledger.py",),
    "traces/common/intervals.py": (TRACES + "test_intervals.py",),
    "traces/lengths/fit.py": (TRACES + "test_fit.py",),
    "traces/common/manifest.py": (TRACES + "test_manifest.py",),
    "traces/runs/stalls.py": ("tests/realrun/test_silence.py",),
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


def choose(session: Path, source: str, most: int | None) -> int:
    """Take mutants inside annotations, and those beyond a sample, out of a session; returns how many stay."""
    spans = annotated(source)
    with sqlite3.connect(session) as work:
        rows = work.execute(
            "select job_id, start_pos_row, start_pos_col, end_pos_row, end_pos_col from mutation_specs"
        ).fetchall()
        jobs = [
            job for job, *place in rows
            if not any(low <= tuple(place[:2]) and tuple(place[2:]) <= high for low, high in spans)
        ]  # fmt: skip
        kept = set(jobs if most is None else Random(SEED).sample(sorted(jobs), min(most, len(jobs))))  # noqa: S311
        gone = [(job,) for job, *_ in rows if job not in kept]
        for table in ("mutation_specs", "work_items"):
            work.executemany(f"delete from {table} where job_id = ?", gone)  # noqa: S608 -- of two names
    return len(kept)


def mutate(copy: Path, module: str, most: int | None) -> list[dict[str, object]]:
    """Try the mutants of one module in a copy of the project; returns a row each."""
    tool = shutil.which("cosmic-ray") or str(Path(sys.executable).with_name("cosmic-ray"))
    session, config = copy / "session.sqlite", copy / "session.toml"
    tests = " ".join(MODULES[module])
    command = f"{sys.executable} -m pytest -x -q -n 0 -p no:cacheprovider -m 'not slow' {tests}"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "{module}"\ntimeout = {TIMEOUT_S}\nexcluded-modules = []\n'
        f'test-command = "{command}"\n[cosmic-ray.distributor]\nname = "local"\n',
        encoding="utf-8",
    )
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    run = {"cwd": copy, "env": environment, "check": True}
    subprocess.run([*command.replace("'not slow'", "not_slow").split()[:3], "-x", "-q", "-n", "0", "-p",
                    "no:cacheprovider", "-m", "not slow", *MODULES[module]], stdout=subprocess.DEVNULL, **run)  # type: ignore[call-overload]  # fmt: skip
    subprocess.run([tool, "init", "--force", config, session], **run)  # type: ignore[call-overload]
    choose(session, (copy / module).read_text(encoding="utf-8"), most)
    subprocess.run([tool, "exec", config, session], **run)  # type: ignore[call-overload]
    with sqlite3.connect(session) as work:
        found = work.execute(
            "select s.operator_name, s.start_pos_row, r.test_outcome, r.diff from mutation_specs s "
            "join work_results r on r.job_id = s.job_id order by s.start_pos_row, s.operator_name"
        ).fetchall()
    session.unlink()
    return [
        {"module": module, "line": line, "operator": name, "killed": "SURVIVED" not in str(result).upper(),
         "change": [row for row in (diff or "").splitlines() if row.startswith(("+ ", "- "))]}
        for name, line, result, diff in found
    ]  # fmt: skip


def main() -> None:
    """Try the mutants and write the record."""
    words = argparse.ArgumentParser()
    words.add_argument("modules", nargs="*", metavar="MODULE")
    words.add_argument("--sample", type=int)
    given = words.parse_args()
    path = HERE / "mutants.json"
    before = read_struct(path, Evidence).value if path.is_file() else {}
    rates = {name: value_of(figure) for name, figure in before.items()}
    raw = HERE / "mutants.points.jsonl"
    survivors = [msgspec.json.decode(line) for line in raw.read_bytes().splitlines()] if raw.is_file() else []
    with tempfile.TemporaryDirectory() as top:
        copy = Path(top) / "copy"
        files = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, check=True, capture_output=True).stdout
        for name in files.decode().split("\0"):
            if name and not name.startswith(("evidence/runs/", "docs/pictures/")):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(PROJECT / name, copy / name, follow_symlinks=False)
        for module in given.modules or MODULES:
            rows = mutate(copy, module, given.sample)
            killed = sum(bool(row["killed"]) for row in rows)
            rates |= {module: round(killed / max(len(rows), 1), 3), f"{module}, tried": float(len(rows))}
            survivors = [row for row in survivors if row["module"] != module]
            survivors += [row for row in rows if not row["killed"]]
            print(f"{module}: {killed} of {len(rows)} killed", flush=True)
            _record(rates, survivors)


def _record(rates: dict[str, float], survivors: list[dict[str, object]]) -> None:
    shares = [rate for name, rate in rates.items() if not name.endswith("tried")]
    write(
        "mutants",
        claim="Of changes to modules that decide, count or estimate, their tests notice nine in ten",
        value=rates,
        unit={OTHERS: "share killed, or mutants tried"},
        measured_on=device(),
        target=f"{AIM:.0%} killed in each module",
        met=min(shares) >= AIM,
        how=f"measured: cosmic-ray, all its operators, annotations left out, samples drawn by seed {SEED}",
        command="python -m evidence.mutants",
        raw=write_raw("mutants.points.jsonl", survivors),
    )


if __name__ == "__main__":
    main()
