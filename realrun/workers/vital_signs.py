"""Whether the process of a worker still does anything: the system says so, whatever its engine is at.

A process that is stopped (a debugger, a signal, a frozen container), as each of its ranks may be, or that
uses no processor time while it has requests to generate is taken as lost: nobody would wait for it, and its
time is not that of a policy.
Silence counts only while this process looks, so that a machine that was paused as a whole accuses nobody.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from time import monotonic

STOPPED_S = 30.0  # stopped for so long: lost
SILENT_S = 120.0  # requests to generate, and no processor time for so long: lost
LOOK_S = 1.0  # between two looks
STOPPED = ("T", "t")  # states of a process: by a signal, by a debugger
BUSY_SHARE = 0.005  # of the time; what threads that only wait use is less
PROC = Path("/proc")


class VitalSigns:
    """What is seen of the processes of workers."""

    def __init__(self) -> None:
        self._looked_s = monotonic()
        self._stopped_s: dict[int, float] = {}
        self._silent_s: dict[int, float] = {}
        self._used_s: dict[int, float] = {}

    def look(self, pids: dict[int, int], working: Collection[int]) -> dict[int, str]:
        """Return the workers to give up, with the reason; those `working` have requests to generate."""
        now_s = monotonic()
        passed_s = min(now_s - self._looked_s, 2 * LOOK_S)
        if passed_s < LOOK_S / 2:
            return {}
        self._looked_s = now_s
        lost: dict[int, str] = {}
        for worker, pid in pids.items():
            state, used_s = seen(pid)
            stopped = state in STOPPED
            self._stopped_s[worker] = self._stopped_s.get(worker, 0.0) + passed_s if stopped else 0.0
            idle = used_s - self._used_s.get(worker, -1.0) < BUSY_SHARE * passed_s
            self._used_s[worker] = used_s
            silent = idle and worker in working and state != ""
            self._silent_s[worker] = self._silent_s.get(worker, 0.0) + passed_s if silent else 0.0
            if self._stopped_s[worker] >= STOPPED_S:
                lost[worker] = f"its process was stopped for {STOPPED_S:.0f} s"
            elif self._silent_s[worker] >= SILENT_S:
                lost[worker] = f"it had requests and used no processor time for {SILENT_S:.0f} s"
        return lost

    def forget(self, worker: int) -> None:
        """Begin anew with a worker that showed itself."""
        self._stopped_s.pop(worker, None)
        self._silent_s.pop(worker, None)


def seen(pid: int) -> tuple[str, float]:
    """Return the state of a process ("" if not told) and processor seconds, those of its children too.

    Its state is stopped if that of a child is: the ranks of an engine wait for each other.
    """
    state, seconds = "", 0.0
    for each in family(pid):
        with suppress(OSError, ValueError, IndexError):
            fields = _stat(each)
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            state = fields[0] if not state or fields[0] in STOPPED else state
    return state, seconds


def family(pid: int) -> list[int]:
    """Return a process and all below it, as the system lists them."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for task in (PROC / str(each) / "task").iterdir():
                found += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
    return found


def _stat(pid: int) -> list[str]:
    """Return what the system says of a process, from its state on."""
    text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    return text.rpartition(")")[2].split()
