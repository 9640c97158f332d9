"""Claims about the tool as one meets it: the demonstration, a fresh clone, a large file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from evidence.model_claims import PAPER
from evidence.recording import HERE, OTHERS, PICTURES, PROJECT, device, figure, load_all, tlt, value_of, write
from tlt.analysis.comparison.advice import advice_table
from tlt.analysis.comparison.tables import markdown
from tlt.analysis.drawing.tables import markdown_rows
from tlt.analysis.report import make_report
from tlt.traces.runs.runfolder import Advice, read_struct


def large_file() -> None:
    """Describing a trace of ten million rows in bounded memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.csv"
        rng = np.random.default_rng(0)
        with path.open("w", encoding="ascii") as file:
            file.write("response_tokens\n")
            for _ in range(1000):
                file.write("\n".join(map(str, rng.integers(1, 32_768, 10_000).tolist())) + "\n")
        program = (
            "import sys; from pathlib import Path; from tlt.traces.lengths.files import length_histogram; "
            "h = length_histogram(Path(sys.argv[1])); "
            "status = Path('/proc/self/status').read_text(); "
            "print(h.rows, status.split('VmHWM:')[1].split()[0])"
        )
        start_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
        )
        took_s = time.perf_counter() - start_s
    rows, kilobytes = (int(word) for word in done.stdout.split())
    write(
        "large_file",
        claim="a CSV of 10,000,000 responses is read for `tlt trace describe` in bounded memory",
        value={"rows": rows, "peak memory": round(kilobytes / 1024), "took": round(took_s, 1)},
        unit={"rows": "", "peak memory": "MB", "took": "s"},
        target="an answer, peak memory below 600 MB",
        met=rows == 10_000_000 and kilobytes / 1024 < 600,
        how="measured, peak resident memory (VmHWM) of a process of its own",
        measured_on=device(),
    )


def fresh_clone() -> None:
    """`make demo` in a fresh clone in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(clone)], check=True)
        environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
        start_s = time.perf_counter()
        done = subprocess.run(["make", "demo"], cwd=clone, env=environment, check=False)
        took_s = time.perf_counter() - start_s
        start_s = time.perf_counter()
        again = subprocess.run(["make", "demo"], cwd=clone, env=environment, check=False)
        again_s = time.perf_counter() - start_s
    write(
        "fresh_clone",
        claim="`make demo` in a fresh clone in a new folder ends in success",
        value={
            "exit code": done.returncode,
            "took with set-up": round(took_s),
            "second call": round(again_s),
        },
        unit={"exit code": "", OTHERS: "s"},
        target="exit code 0",
        met=done.returncode == 0 and again.returncode == 0,
        how="measured; set-up downloads about 150 MB of wheels, its share depends on the network",
        measured_on=device(),
    )


def with_ranges(table: str) -> str:
    """Return the demonstration's table with the range of each speedup over what demo_assumptions changes."""
    by_policy: dict[str, list[float]] = {}
    for name, value in load_all(HERE)["demo_assumptions"].value.items():
        by_policy.setdefault(name.partition(": ")[0], []).append(value_of(value))
    header, rule, *rows = table.strip().splitlines()
    told = [f"{header} Speedup, assumptions changed |", f"{rule}---:|"]
    for row in rows:
        found = by_policy.get(row.split("|")[1].strip(), [])
        told.append(f"{row} {f'{min(found):.2f}x to {max(found):.2f}x' if found else '-'} |")
    return "\n".join(told)


def demo() -> None:
    """The demonstration's tables and pictures, as README shows them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        tlt("sim", "recommend", "--config", "sim/presets/demo.toml", "--out", str(out))
        report = make_report(out)
        (HERE / "demo.md").write_text(with_ranges(markdown(report.table)) + "\n", encoding="utf-8")
        advice = read_struct(out / "advice.json", Advice)
        headers, cells, _ = advice_table(advice)
        rows = [row for row in cells if int(row[0].rstrip("*")) in (1, 4, 16, 64, 128)]
        (HERE / "demo_advice.md").write_text(markdown_rows(headers, rows) + "\n", encoding="utf-8")
        for name in ("gantt", "ledger", "running", "gain"):
            shutil.copy(out / "pictures" / f"{name}.png", PICTURES / f"{name}.png")
        best = next(row for row in report.table.rows if row.policy == report.answer.best)
    write(
        "demo",
        claim=f"demonstration: step speedup of {best.policy} over no speculation",
        value={"step speedup": figure(best.speedup)},
        unit={OTHERS: "x"},
        target="none: what the demonstration prints",
        met=None,
        measured_on=PAPER,
        how="modelled: published speedups over an assumed plain step, recorded serving lengths",
    )
