"""Who kills what in a live replay, and what is lost: `python -m evidence.kills [vllm]`

A replay of two policies on two workers is shot at: a worker by SIGKILL in prefill or decode, or stopped; the
driver by SIGKILL, SIGTERM or Ctrl-C. Then the same command is given again. For each moment: how long until
the victim or, for the driver, all was over, how many responses were lost, repeated or changed in the end, and
what was left behind (processes and so their ports, files in /dev/shm, half-written files). Without `vllm` the
engine is one of the tests that takes 10 ms a step; with it, vLLM on CPU and a tiny model. Writes kills.json
(kills_vllm.json).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd

from evidence.recording import OTHERS, PROJECT, device, write

FAKE = "tests.realrun.fakes:make_slow"
DRIVER = """
import sys
from pathlib import Path
from tlt.commands.failures import Terminated, ended_by_sigterm
from tlt.realrun.engine.factory import MAKE_ENGINE
from tlt.realrun.replay.replay import replay
from tlt.traces.common.lock import holding

if __name__ == "__main__":
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    if kind == "vllm":
        import msgspec
        from tests.realrun.small_models import tiny_config
        from tlt.realrun.config import WorkloadConfig
        work = WorkloadConfig(requests=12, rollouts=2, longest_tokens=150, prompt_tokens=12)
        config, factory = msgspec.structs.replace(tiny_config(folder), workload=work), MAKE_ENGINE
    else:
        from tests.realrun.fakes import config_of
        config, factory = config_of(folder), kind
    show = lambda what: print(what, flush=True)
    try:
        with ended_by_sigterm(), holding(folder / "out"):
            replay(config, ("none", "static:2"), folder / "out", show, None, factory)
    except Terminated:
        sys.exit(143)
"""
# moment -> (whom, signal, seconds after the warm-up)
MOMENTS: dict[str, tuple[str, signal.Signals, float]] = {
    "worker, SIGKILL, prefill": ("worker", signal.SIGKILL, 0.01),
    "worker, SIGKILL, decode": ("worker", signal.SIGKILL, 0.5),
    "worker, SIGKILL, second policy": ("worker", signal.SIGKILL, 2.0),
    "worker, SIGSTOP, decode": ("worker", signal.SIGSTOP, 0.5),
    "driver, SIGKILL, warm-up": ("driver", signal.SIGKILL, -1.0),
    "driver, SIGKILL, decode": ("driver", signal.SIGKILL, 0.5),
    "driver, SIGTERM, decode": ("driver", signal.SIGTERM, 0.5),
    "driver, Ctrl-C, decode": ("driver", signal.SIGINT, 0.5),
}
GONE_S = 30.0  # in which what was left behind has to be gone


def descendants(pid: int) -> list[int]:
    """Return the processes below one, as the kernel lists them."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                found += [int(child), *descendants(int(child))]
    return found


def workers(pid: int) -> list[int]:
    """Return the worker processes of a driver: its children that are no resource tracker."""
    named = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in descendants(pid)}
    return [child for child, command in named.items() if b"spawn_main" in command]


def alive(pids: list[int]) -> list[int]:
    """Return those of some processes that still run."""
    found = []
    for pid in pids:
        with suppress(OSError):
            state = (
                Path(f"/proc/{pid}/stat")
                .read_text(encoding="ascii", errors="replace")
                .rpartition(")")[2]
                .split()[0]
            )
            found += [pid] if state != "Z" else []
    return found


def shared_memory() -> set[str]:
    """Return the files of shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108


def orphaned(names: set[str]) -> list[str]:
    """Return those files of shared memory that no process uses: the machine may have other work."""
    used = b""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            used += (process / "maps").read_bytes()
        with suppress(OSError):
            used += b" ".join(os.readlink(handle).encode() for handle in (process / "fd").iterdir())
    return [name for name in names if name.encode() not in used]


def lengths(out: Path) -> list[list[int]]:
    """Return the response tokens of each policy, by rollout and request."""
    tables = [pd.read_parquet(out / name / "responses.parquet") for name in ("none", "static-2")]
    return [table.sort_values(["step", "request"])["response_tokens"].tolist() for table in tables]


class Shot:
    """One moment: shoot, see what is noticed and left, go on, compare."""

    def __init__(self, top: Path, kind: str) -> None:
        self.top, self.kind = top, kind
        self.script = top / "driver.py"
        self.script.write_text(DRIVER, encoding="utf-8")
        self.environment = os.environ | {"PYTHONPATH": str(PROJECT)}

    def start(self, folder: Path) -> subprocess.Popen[str]:
        """Start the driver."""
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, str(self.script), str(folder), self.kind], stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("w"), text=True, env=self.environment, cwd=PROJECT,
        )  # fmt: skip

    def whole(self, folder: Path) -> list[list[int]]:
        """Run the driver to its end; returns the lengths."""
        driver = self.start(folder)
        driver.communicate()
        if driver.returncode:
            raise RuntimeError((folder / "stderr").read_text(encoding="utf-8")[-3000:])
        return lengths(folder / "out")

    def fire(self, moment: str, folder: Path) -> dict[str, float]:
        """Shoot once and go on; returns seconds until it was noticed, and what was left behind."""
        whom, number, after_s = MOMENTS[moment]
        before = shared_memory()
        driver = self.start(folder)
        assert driver.stdout is not None
        if after_s >= 0:
            assert driver.stdout.readline().strip() == "warm-up"
            time.sleep(after_s)
        else:
            while not workers(driver.pid):
                time.sleep(0.01)
        below = descendants(driver.pid)
        victim = driver.pid if whom == "driver" else workers(driver.pid)[0]
        shot_s = time.monotonic()
        os.kill(victim, number)
        while alive([victim]) if whom == "worker" else driver.poll() is None:
            time.sleep(0.05)
        noticed_s = time.monotonic() - shot_s
        driver.communicate()
        deadline = time.monotonic() + GONE_S
        while alive(below) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [*alive(below), *orphaned(shared_memory() - before)]  # a port goes with its process
        print(*left, file=sys.stderr)
        return {"noticed after": round(noticed_s, 1), "left behind": float(len(left))}


def main(kind: str) -> None:
    """Shoot at every moment and write the record."""
    value: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        shot = Shot(top, kind)
        reference = shot.whole(top / "reference")
        for number, moment in enumerate(MOMENTS):
            folder = top / str(number)
            found = shot.fire(moment, folder)
            again = shot.whole(folder)
            wrong = sum(a != b for mine, theirs in zip(again, reference, strict=True)
                        for a, b in zip(mine, theirs, strict=True))  # fmt: skip
            found["responses lost or changed"] = float(wrong)
            found["half-written files"] = float(len(list((folder / "out").rglob("*.part"))))
            value |= {f"{moment}: {what}": figure for what, figure in found.items()}
            print(moment, found, flush=True)
    bad = sum(figure for name, figure in value.items() if not name.endswith("noticed after"))
    late = [
        name for name, figure in value.items()
        if name.endswith("noticed after") and figure > (60 if "SIGSTOP" in name else 30)
    ]  # fmt: skip
    write(
        "kills_vllm" if kind == "vllm" else "kills",
        claim="A live replay that is shot at loses no response and leaves nothing; the same command ends it",
        value=value,
        unit={OTHERS: "", **{name: "s" for name in value if name.endswith("noticed after")}},
        measured_on=device(),
        target="nothing lost, changed or left; a stopped worker found within 60 s, a death within 30 s",
        met=not bad and not late,
        how="measured: two workers, 24 responses of forced lengths under each of two policies; engine "
        + ("vLLM on CPU, a tiny model" if kind == "vllm" else "of the tests, 10 ms a step"),
        command="python -m evidence.kills" + (" vllm" if kind == "vllm" else ""),
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else FAKE)
