"""Processes of this machine that live as long as the executor is open, and no longer than who opened it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from tlt.sim.parallel.lengths import Lengths, encoded, key_of
from tlt.traces.common.spawning import spawning
from tlt.traces.lengths.schema import Trace
from tltsched.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 2  # calls a process that are handed over at once
PARENT_POLL_S = 1.0


class Processes:
    """An Executor over one pool, for all rounds of a study."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._folder = TemporaryDirectory(prefix="tlt-lengths-")
        self._pool = ProcessPoolExecutor(
            count,
            spawning(),
            initializer=_begin,
            initargs=(os.getpid(), self._folder.name),
        )

    def run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[int, Result]]:
        """Yield results as they are done; raises InputError where a process dies."""
        numbered = enumerate(items)
        open_calls: dict[Future[Any], int] = {}
        try:
            while True:
                for number, item in numbered:
                    open_calls[self._pool.submit(function, item)] = number
                    if len(open_calls) >= AHEAD * self._count:
                        break
                if not open_calls:
                    return
                done, _ = wait(open_calls, return_when=FIRST_COMPLETED)
                for call in sorted(done, key=open_calls.__getitem__):
                    yield open_calls.pop(call), call.result()
        except BrokenProcessPool:
            raise InputError(
                "processes", f"one of {self._count} died", "memory for all of them",
                "give fewer (--jobs 1), or smaller simulations",
            ) from None  # fmt: skip
        finally:
            for call in open_calls:
                call.cancel()

    def share(self, trace: Trace) -> Lengths:
        """Write lengths to a file that the processes read."""
        data = encoded(trace)
        path = Path(self._folder.name) / key_of(data)
        if not path.is_file():
            path.write_bytes(data)
        return Lengths(path.name, path, Path.read_bytes)

    def close(self) -> None:
        """End the processes; what they are at is dropped."""
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with suppress(OSError, ValueError):
                process.terminate()
        for process in processes:
            process.join()
        self._folder.cleanup()


def _begin(parent: int, folder: str) -> None:
    """Watch who opened the pool: one that is killed ends neither its processes nor its folder of lengths."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent watch").start()
