"""Who kills what in a live run, and what is lost: `python -m evidence.kills [vllm] [--only WORD]`

Replays, trainings and calibrations of two workers (of an engine and a neighbour) are shot at: a worker by
SIGKILL in prefill, decode, drafter training, update, weight sync or checkpoint, or stopped; the driver by
SIGKILL, SIGTERM or Ctrl-C (evidence.fire.moments). Then the same command is given again. For each moment: how
long until the driver knew of a worker, or until nothing of a killed driver ran; what was lost or changed in
the end; what was left behind (processes, ports, files in /dev/shm, half-written files). Without `vllm` the
engine is one of the tests that takes 10 ms a step; with it, vLLM on CPU and a tiny model. `--only` takes the
moments whose title holds a word; the others keep their rows. Runs that nobody shot at stay in `--folder`, for
the next call. Writes kills.json (kills_vllm.json).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec

from evidence.fire.moments import MOMENTS, Moment, Task
from evidence.fire.processes import alive, descendants, listening, orphaned, ports, shared_memory
from evidence.fire.results import Row, results
from evidence.recording import HERE, OTHERS, PROJECT, device, write, write_raw
from tltsched.errors import InputError

GONE_S = 30.0  # in which what was left behind has to be gone
KILLED_S, STOPPED_S = 30.0, 60.0  # until a death, or a process that is stopped, is noticed
LIMIT_S = 1_200.0  # of one run


class Shot(msgspec.Struct, frozen=True):
    """What came of one moment."""

    moment: str
    noticed_s: float
    lost_or_changed: int
    half_written: int
    left: tuple[str, ...]  # processes, ports and shared memory that stayed
    said: str  # by the driver at its end


class Range:
    """Where the shots are fired."""

    def __init__(self, top: Path, engine: str) -> None:
        self.top, self.engine = top, engine
        top.mkdir(parents=True, exist_ok=True)
        self._references: dict[Task, Counter[Row]] = {}

    def start(self, task: Task, folder: Path, moment: Moment | None = None) -> subprocess.Popen[str]:
        """Start a driver."""
        folder.mkdir(exist_ok=True)
        more = [msgspec.json.encode(moment).decode()] if moment else []
        with (folder / "stderr").open("a") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "evidence.fire.driver", self.engine, task, str(folder), *more],
                stdout=subprocess.PIPE, stderr=errors, text=True, cwd=PROJECT,
                env=os.environ | {"PYTHONPATH": str(PROJECT)},
            )  # fmt: skip

    def whole(self, task: Task, folder: Path) -> Counter[Row]:
        """Run a task to its end; returns its results."""
        driver = self.start(task, folder)
        said, _ = driver.communicate(timeout=LIMIT_S)
        if driver.returncode:
            errors = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"{said[-500:]}\n{errors[-3000:]}")
        return Counter(results(task, folder / "out"))

    def reference(self, task: Task) -> Counter[Row]:
        """Return the results of a run that nobody shot at."""
        if task not in self._references:
            self._references[task] = self.whole(task, self.top / f"{task}")
        return self._references[task]

    def fire(self, moment: Moment, folder: Path) -> Shot:
        """Shoot once, look, go on, and compare with a run that was left in peace."""
        noticed_s, left, said = self._shoot(moment, folder)
        half = len(list((folder / "out").rglob("*.part")))
        again, reference = self.whole(moment.task, folder), self.reference(moment.task)
        wrong = (again - reference).total() + (reference - again).total()
        return Shot(moment.title(), round(noticed_s, 1), wrong, half, tuple(left), said)

    def _shoot(self, moment: Moment, folder: Path) -> tuple[float, list[str], str]:
        """Start a run that shoots; returns the seconds until it was noticed, what was left, the last word."""
        before = shared_memory()
        driver = self.start(moment.task, folder, moment)
        ender = threading.Timer(LIMIT_S, driver.kill)
        ender.start()
        assert driver.stdout is not None
        shot_s, noticed_s, last = -1.0, -1.0, ""
        below, held = list[int](), dict[str, str]()
        for line in driver.stdout:
            last = line.strip()
            if last.startswith("shot "):
                shot_s = time.monotonic()
                if last.split()[2] != moment.order:
                    raise RuntimeError(f"{moment.title()}: {last}")
            elif last == "noticed" and noticed_s < 0:
                noticed_s = time.monotonic()
            if shot_s < 0:
                below = descendants(driver.pid)
                held = ports([driver.pid, *below])
        driver.wait()
        driver.stdout.close()
        ender.cancel()
        if shot_s < 0:
            raise RuntimeError(f"{moment.title()}: nothing was shot, {last}")
        deadline = time.monotonic() + GONE_S
        while alive(below) and time.monotonic() < deadline:
            time.sleep(0.05)
        if moment.whom == "driver":
            noticed_s = time.monotonic()
        if noticed_s < 0:
            raise RuntimeError(f"{moment.title()}: nobody noticed, {last}")
        while orphaned(shared_memory() - before) and time.monotonic() < deadline:
            time.sleep(0.5)  # a tracker of resources ends after those that it cleans up behind
        still = listening()
        left = [f"process {pid}" for pid in alive(below)]
        left += [f"port {place}" for inode, place in held.items() if inode in still]
        left += [f"shared memory {name}" for name in orphaned(shared_memory() - before)]
        return noticed_s - shot_s, left, last if driver.returncode else ""


def main() -> None:
    """Shoot at every moment and write the record."""
    words = argparse.ArgumentParser()
    words.add_argument("engine", nargs="?", choices=("tests", "vllm"), default="tests")
    words.add_argument("--only", default="")
    words.add_argument("--folder", type=Path)
    given = words.parse_args()
    name = "kills_vllm" if given.engine == "vllm" else "kills"
    raw = HERE / f"{name}.points.jsonl"
    lines = raw.read_bytes().splitlines() if raw.is_file() else []
    shots = {shot.moment: shot for shot in (msgspec.json.decode(line, type=Shot) for line in lines)}
    chosen = [moment for moment in MOMENTS if given.only in moment.title()]
    if not chosen:
        raise InputError("--only", given.only, "a word of a moment's title", "see evidence/fire/moments.py")
    with tempfile.TemporaryDirectory() as top:
        place = Range(given.folder or Path(top), given.engine)
        for number, moment in enumerate(chosen):
            shot = place.fire(moment, Path(top) / str(number))
            shots[shot.moment] = shot
            print(shot, flush=True)
            _record(name, given.engine, shots)


def _record(name: str, engine: str, shots: dict[str, Shot]) -> None:
    """Write the record of all shots, in the order of the moments, and their table."""
    titles = [moment.title() for moment in MOMENTS]
    rows = [shots[title] for title in titles if title in shots]
    stopped = [row.noticed_s for row in rows if "SIGSTOP" in row.moment]
    killed = [row.noticed_s for row in rows if "SIGSTOP" not in row.moment]
    value = {
        "moments": float(len(rows)),
        "results lost or changed": float(sum(row.lost_or_changed for row in rows)),
        "left behind": float(sum(len(row.left) for row in rows)),
        "half-written files": float(sum(row.half_written for row in rows)),
        "a death noticed, or all over, within": max(killed, default=0.0),
        "a stopped process noticed within": max(stopped, default=0.0),
    }
    bad = value["results lost or changed"] + value["left behind"] + value["half-written files"]
    head = "| Moment | Noticed after (s) | Lost or changed | Left behind |\n|:--|--:|--:|--:|\n"
    table = "".join(
        f"| {row.moment} | {row.noticed_s:.1f} | {row.lost_or_changed or 'nothing'} | "
        f"{', '.join(row.left) or 'nothing'} |\n"
        for row in rows
    )
    (HERE / f"{name}.md").write_text(head + table, encoding="utf-8")
    write(
        name,
        claim="A live run that is shot at loses no result and leaves nothing; the same command ends it",
        value=value,
        unit={OTHERS: "", **{figure: "s" for figure in value if figure.endswith("within")}},
        measured_on=device(),
        target=f"nothing lost, changed or left at any of {len(titles)} moments; a stopped process found "
        f"within {STOPPED_S:.0f} s, a death within {KILLED_S:.0f} s",
        met=not bad and len(rows) == len(titles)
        and max(stopped, default=0.0) <= STOPPED_S and max(killed, default=0.0) <= KILLED_S,
        how="measured: a replay of 24 responses under each of two policies, a training of three steps and a "
        "calibration, of two workers each; engine "
        + ("vLLM on CPU, a tiny model" if engine == "vllm" else "of the tests, 10 ms a step; trainers real"),
        command="python -m evidence.kills" + (" vllm" if engine == "vllm" else ""),
        raw=write_raw(f"{name}.points.jsonl", [msgspec.to_builtins(row) for row in rows]),
    )  # fmt: skip


if __name__ == "__main__":
    main()
