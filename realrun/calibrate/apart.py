"""One engine of a calibration in a process of its own, as `vllm serve` would run it."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.workers.executor import WorkerError
from tlt.realrun.workers.process import finish, start_child

Progress = Callable[[float, float, str], None]
"""Takes (work done, work in all, what is being done); work has no unit but is in proportion to time."""


class KindTask(msgspec.Struct, frozen=True):
    """What the process is told; the repeats go to the partial file of `out`."""

    config: RealConfig
    make_engine: str  # module:function
    out: str
    kind: Literal["plain", "speculating"]


class Done(msgspec.Struct, frozen=True):
    """How far it is; `over`: it has measured everything."""

    work: float
    of: float
    what: str
    over: bool = False


def run_apart(child: Callable[[Connection], None], task: KindTask, logs: Path, progress: Progress) -> None:
    """Run `child` in a process and wait for it; raises WorkerError if it ends before it is done."""
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{task.kind}.log"
    pipe, process = start_child(child, task.config, 0, log)
    try:
        pipe.send_bytes(msgspec.json.encode(task))
        while not (done := msgspec.json.decode(pipe.recv_bytes(), type=Done)).over:
            progress(done.work, done.of, done.what)
    except EOFError:
        raise WorkerError(
            f"the process of the {task.kind} engine ended; what it printed is in {log}"
        ) from None
    finally:
        pipe.close()
        finish(process)


def serve(pipe: Connection, measure: Callable[[KindTask, Progress], None]) -> None:
    """Do the task that comes through the pipe: the whole life of such a process."""
    task = msgspec.json.decode(pipe.recv_bytes(), type=KindTask)

    def progress(work: float, of: float, what: str) -> None:
        pipe.send_bytes(msgspec.json.encode(Done(work, of, what)))

    measure(task, progress)
    pipe.send_bytes(msgspec.json.encode(Done(1.0, 1.0, "", over=True)))
