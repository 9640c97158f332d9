"""What a run holds of the machine: processes, shared memory, ports."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

LISTENING = "0A"  # a state in /proc/net/tcp


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
            status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            found += [pid] if status.rpartition(")")[2].split()[0] != "Z" else []
    return found


def ended(pids: list[int], limit_s: float = 20.0) -> list[int]:
    """Wait for processes to end; returns those that did not in time, which are killed."""
    deadline_s = time.monotonic() + limit_s
    while alive(pids) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    left = alive(pids)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


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


def listening() -> dict[str, str]:
    """Return where anybody listens: address by the socket's inode."""
    found: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = row.split()
            if fields[3] == LISTENING:
                found[fields[9]] = fields[1]
    return found


def ports(pids: list[int]) -> dict[str, str]:
    """Return the addresses at which some processes listen, by inode."""
    held: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            held.update(os.readlink(handle) for handle in Path(f"/proc/{pid}/fd").iterdir())
    return {inode: place for inode, place in listening().items() if f"socket:[{inode}]" in held}
