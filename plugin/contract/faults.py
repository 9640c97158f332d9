"""Breaks what the plugin stands on while an engine runs, on CPU: `python faults.py MODEL OUT`

Settings that are wrong, a policy that raises, a writer's thread that is killed, a folder that is removed,
and, where a small file system may be mounted, a disk that is full. Of each: do the requests end with the
tokens of an engine without the plugin, and is it said in one line? Prints a JSON line; exits with 1 where
one fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from one_engine import DRAFTS, FAILS, described, run

KILLED = """
import os
if os.environ.get("TLT_PLUGIN"):
    import itertools
    import tlt_vllm
    from tlt_vllm import writer
    calls, own = itertools.count(), writer.Writer._write_some
    def write_some(self):
        if next(calls) > 6:
            raise SystemExit
        return own(self)
    writer.Writer._write_some = write_some
"""
LINES, DISK_BYTES = 20, 24 << 10  # when the folder goes; what is left on the disk


@contextmanager
def folder_removed(folder: Path) -> Iterator[None]:
    """Remove a folder as soon as its facts have some lines."""
    over = threading.Event()

    def remove() -> None:
        facts = folder / "engines/0000/facts.jsonl"
        while not over.wait(0.1):
            if facts.is_file() and facts.read_bytes().count(b"\n") > LINES:
                shutil.rmtree(folder)
                return

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a file system of DISK_BYTES at a folder; gives whether that may be done here."""
    folder.mkdir(parents=True, exist_ok=True)
    mount, umount = shutil.which("mount"), shutil.which("umount")
    mounted = False
    if mount and umount and os.geteuid() == 0:
        command = [mount, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        mounted = subprocess.run(command, check=False).returncode == 0  # noqa: S603 -- arguments of our own
    try:
        yield mounted
    finally:
        if mounted and umount:
            subprocess.run([umount, str(folder)], check=True)  # noqa: S603 -- as above


def check(model: str, out: Path) -> dict[str, object]:
    """Return of each fault what was said, and whether the tokens are those of a stock engine."""
    out.mkdir(parents=True, exist_ok=True)
    plain, _ = run(model, out, "")
    found = {
        "settings wrong": run(model, out, "contrl"),
        "policy raises": run(model, out / "raises", "control", DRAFTS, FAILS),
        "writer killed": run(model, out / "killed", "control", DRAFTS, KILLED),
    }
    with folder_removed(out / "gone" / "control"):
        found["folder gone"] = run(model, out / "gone", "control", DRAFTS)
    with small_disk(out / "full") as mounted:
        if mounted:
            found["disk full"] = run(model, out / "full", "control", DRAFTS)
    faults = {
        name: {"same tokens": digest == plain, "said": said, "kept": digest == plain and len(said) == 1}
        for name, (digest, said) in found.items()
    }
    return {
        "model": described(model),
        "faults": faults,
        "passed": all(each["kept"] for each in faults.values()),
    }


if __name__ == "__main__":
    result = check(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps(result))  # noqa: T201
    sys.exit(0 if result["passed"] else 1)
