"""Workers as processes of this machine. One that dies is reported as Lost, once."""

from __future__ import annotations

import math
import select
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from time import monotonic
from typing import Self

from tlt.realrun.config import RealConfig
from tlt.realrun.workers import vital_signs
from tlt.realrun.workers.executor import Heard, Lost, WorkerError, judge
from tlt.realrun.workers.messages import Close, Order, Report, Work, decode_answer, encode
from tlt.realrun.workers.process import PATIENCE_S, finish, kill, start_child
from tlt.realrun.workers.service import MakeService, Service, serve
from tlt.realrun.workers.vital_signs import VitalSigns


class LocalExecutor:
    """One process a worker on this machine; used as a context manager, which ends them."""

    def __init__(
        self,
        config: RealConfig,
        workers: tuple[int, ...],
        logs: Path,
        make_service: MakeService = Service,
        place: Callable[[int], int] = lambda worker: worker,
    ) -> None:
        """Start the processes, each with a service of its own; what they print goes to files in `logs`.

        `place(worker)` is the worker whose cores and GPUs it has.
        """
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = {worker: logs / f"worker-{worker}.log" for worker in workers}
        self._connections: dict[int, Connection] = {}
        self._processes: dict[int, SpawnProcess] = {}
        self._ready: deque[int] = deque()
        self._signs = VitalSigns()
        self._working: set[int] = set()  # that have requests to generate
        try:
            for worker in workers:
                started = start_child(partial(work, make_service), config, place(worker), self._logs[worker])
                self._connections[worker], self._processes[worker] = started
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def pid(self, worker: int) -> int:
        """Return the process id of a worker."""
        pid = self._processes[worker].pid
        assert pid is not None
        return pid

    def send(self, worker: int, order: Order) -> None:
        """Send an order; nothing happens if the worker is dead."""
        if isinstance(order, Work):
            self._working.add(worker)
        with suppress(OSError, KeyError):
            self._connections[worker].send_bytes(encode(order))

    def receive(self) -> tuple[int, Heard]:
        """Wait for the next answer. Each worker gets its turn.

        A worker that shows no sign of life is ended and reported as Lost (vital_signs says when). Raises
        WorkerError if none is left.
        """
        heard = self.receive_within(None)
        assert heard is not None
        return heard

    def receive_within(self, seconds: float | None) -> tuple[int, Heard] | None:
        """Do the same for so long at most; None: nobody has said anything."""
        if not self._connections:
            raise WorkerError("no worker is left")
        end_s = math.inf if seconds is None else monotonic() + seconds
        while not self._ready:
            left_s = end_s - monotonic()
            readable = wait(list(self._connections.values()), max(0.0, min(left_s, vital_signs.LOOK_S)))
            self._ready.extend(worker for worker, pipe in self._connections.items() if pipe in readable)
            pids = {worker: self.pid(worker) for worker in self._connections if worker not in self._ready}
            for worker, why in self._signs.look(pids, self._working).items():
                kill(self._processes[worker])
                self._end(worker)
                return worker, Lost(f"{why} and was ended")
            if not self._ready and left_s <= 0:
                return None
        worker = self._ready.popleft()
        self._signs.forget(worker)
        try:
            answer = judge(decode_answer(self._connections[worker].recv_bytes()))
        except (EOFError, OSError):
            answer = Lost(self._end(worker))
        else:
            if isinstance(answer, Lost):
                self._end(worker)
            elif not isinstance(answer, Report) or answer.over or answer.resting:
                self._working.discard(worker)
        return worker, answer

    def close(self) -> None:
        """End all workers: those that rest at once, those that are at work by a signal."""
        for worker in list(self._connections):
            self.send(worker, Close())
        for pipe in self._connections.values():
            pipe.close()
        self._connections.clear()
        for process in self._processes.values():
            finish(process)

    def _end(self, worker: int) -> str:
        """Forget a worker whose pipe is closed or useless; returns how it ended."""
        self._connections.pop(worker).close()
        process = self._processes[worker]
        process.join(PATIENCE_S)
        code = process.exitcode
        finish(process)
        if code is not None and code < 0:
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        return f"its process ended with exit code {code}; what it printed is in {self._logs[worker]}"


class PipeChannel:
    """A worker's end of a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._poll = select.poll()  # Connection.poll builds a selector each time: too slow for engine steps
        self._poll.register(pipe.fileno(), select.POLLIN | select.POLLHUP)

    def receive(self) -> bytes:
        """Return the next order; raises EOFError if the driver is gone."""
        return self._pipe.recv_bytes()

    def waiting(self) -> bool:
        """Return at once whether an order, or the end of the pipe, is there."""
        return bool(self._poll.poll(0))

    def send(self, message: bytes) -> None:
        """Send an answer; raises EOFError if the driver is gone."""
        try:
            self._pipe.send_bytes(message)
        except OSError:
            raise EOFError from None


def work(make_service: MakeService, pipe: Connection) -> None:
    """Be a worker until the driver closes the pipe."""
    serve(PipeChannel(pipe), make_service)
