"""Runs the tests of one mutant after the other, in a copy of the project: `python mutant_runner.py`

Reads lines of JSON, {"arguments": [...], "limit_s": 60, "cache": false}, from stdin, and answers each with
the exit status of pytest on stdout, or "timeout". What is slow to import is imported once here and each run
is a fork; nothing of the project is imported here, so that each run reads the mutant.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress

PRELOADED = (
    "numpy", "pandas", "pyarrow.parquet", "scipy.stats", "scipy.optimize", "simpy", "msgspec", "hypothesis",
    "pytest", "_pytest.assertion.rewrite",
)  # fmt: skip


def run(arguments: list[str], cache: bool) -> int:
    """Run pytest in this process, in silence; returns its exit status."""
    import pytest

    sys.dont_write_bytecode = not cache
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    # hypothesis is here already: its own asserts are not rewritten, and nothing is lost
    return int(pytest.main(["-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments]))


def wait(child: int, limit_s: float) -> str:
    """Return how a child ended, which is killed with all it started when its time is up."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def main() -> None:
    """Serve until stdin ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            status = 3  # as pytest says of an error of its own
            with suppress(BaseException):
                status = run(asked["arguments"], asked["cache"])
            os._exit(status)
        print(wait(child, asked["limit_s"]), flush=True)


if __name__ == "__main__":
    main()
