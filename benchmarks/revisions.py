"""Two revisions side by side in one go: processor seconds of each case, alternating, and their ratio.

    python -m benchmarks.revisions OLD NEW [--cases none,tlt] [--repeats 3] [--steps N]

Machines are shared and their clocks move, so seconds of one run say little and ratios of one run much. `.`
stands for the working tree. Equal digests say that both simulated the same, to the last bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.cases import CASES

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "cases.py"


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Yield a folder with the files of a revision; of `.` the working tree."""
    if revision == ".":
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="tlt-revision-") as folder:
        place = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(place), revision], check=True, capture_output=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True, capture_output=True)


def measure(place: Path, case: str, steps: int | None) -> dict[str, Any]:
    """Run one case once under the files of a folder."""
    more = [str(steps)] if steps else []
    done = subprocess.run(
        [sys.executable, str(SCRIPT), case, "1", *more],
        cwd=place, env=os.environ | {"PYTHONPATH": str(place)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise click.ClickException(f"{case} under {place}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(case: str, places: tuple[Path, Path], repeats: int, steps: int | None) -> list[str]:
    """Measure a case under both, alternating; returns a row of the table."""
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for _ in range(repeats):
        for runs, place in zip(found, places, strict=True):
            runs.append(measure(place, case, steps))
    old_s, new_s = (median(run["cpu_s"] for run in runs) for runs in found)
    ratios = sorted(one["cpu_s"] / other["cpu_s"] for one, other in zip(*found, strict=True))
    digests = {run["digest"] for runs in found for run in runs}
    old, new = (runs[-1] for runs in found)
    return [
        case, str(new["steps"]), f"{old_s:.3f}", f"{new_s:.3f}", f"{median(ratios):.2f}",
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}", f"{new_s / new['steps'] * 1e3:.1f}",
        f"{old['peak_mb']} / {new['peak_mb']}", "the same" if len(digests) == 1 else "differ",
    ]  # fmt: skip


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--cases", default="none,tlt,goodput,tail_batching,bounded_async", show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), help="RL steps; default: those of the case.")
def main(old: str, new: str, cases: str, repeats: int, steps: int | None) -> None:
    """Print processor seconds of both revisions (medians), their ratio, and whether results are the same."""
    from tabulate import tabulate

    unknown = set(cases.split(",")) - set(CASES)
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    with ExitStack() as stack:
        places = stack.enter_context(checkout(old)), stack.enter_context(checkout(new))
        rows = []
        for case in cases.split(","):
            rows.append(compare(case, places, repeats, steps))
            click.echo(f"{case}: {rows[-1][4]} times as fast", err=True)
    headers = ["case", "steps", f"{old}, s", f"{new}, s", "ratio", "range", "ms/step", "peak MB", "results"]
    click.echo(tabulate(rows, headers, disable_numparse=True))


if __name__ == "__main__":
    main()
