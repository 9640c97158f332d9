"""Workers as processes of this machine, and what a driver asks of an executor.

Each worker is a spawned process with a pipe. It ends when its pipe closes or its parent is gone, so a driver
that is killed leaves no orphan. A worker that dies is reported as Lost, once.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Protocol, Self

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.workers.messages import (
    Answer,
    Close,
    EngineInfo,
    Failed,
    Order,
    PhaseDone,
    Ready,
    Report,
    Saved,
    Trained,
    decode_answer,
    encode,
)
from tlt.realrun.workers.service import MakeService, Service, serve
from tltsched.errors import InputError

LAST = -100  # priority of what is done at exit
PATIENCE_S = 10.0  # for a process that was told to end, before the next harder way


class Lost(msgspec.Struct, frozen=True, gc=False):
    """A worker is dead. `reason` is one line, `text` all that it said."""

    reason: str
    text: str = ""


Heard = Ready | Report | Trained | PhaseDone | Saved | Lost
"""What a driver may hear of a worker."""


class WorkerError(RuntimeError):
    """No worker is left, or one could not be prepared. Its text is what the worker said."""


class Executor(Protocol):
    """Runs workers somewhere."""

    def send(self, worker: int, order: Order) -> None:
        """Send an order; nothing happens if the worker is dead, which `receive` tells."""

    def receive(self) -> tuple[int, Heard]:
        """Wait for the next answer; raises InputError if a worker refuses the configuration."""

    def close(self) -> None:
        """End all workers."""


def judge(answer: Answer) -> Heard:
    """Return an answer; one that failed is a lost worker, unless it refused what the user asked for."""
    if not isinstance(answer, Failed):
        return answer
    if answer.refused:
        raise InputError(*answer.refused)
    return Lost(answer.text.strip().rpartition("\n")[2], answer.text)


class LocalExecutor:
    """One process a worker on this machine; used as a context manager, which ends them."""

    def __init__(
        self, config: RealConfig, workers: tuple[int, ...], logs: Path, make_service: MakeService = Service
    ) -> None:
        """Start the processes, each with a service of its own; what they print goes to files in `logs`."""
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = {worker: logs / f"worker-{worker}.log" for worker in workers}
        self._connections: dict[int, Connection] = {}
        self._processes: dict[int, SpawnProcess] = {}
        self._ready: deque[int] = deque()
        try:
            for worker in workers:
                started = start_child(partial(work, make_service), config, worker, self._logs[worker])
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
        with suppress(OSError, KeyError):
            self._connections[worker].send_bytes(encode(order))

    def receive(self) -> tuple[int, Heard]:
        """Wait for the next answer. Each worker gets its turn. Raises WorkerError if none is left."""
        if not self._connections:
            raise WorkerError("no worker is left")
        if not self._ready:
            readable = wait(list(self._connections.values()))
            self._ready.extend(worker for worker, pipe in self._connections.items() if pipe in readable)
        worker = self._ready.popleft()
        try:
            answer = judge(decode_answer(self._connections[worker].recv_bytes()))
        except (EOFError, OSError):
            answer = Lost(self._end(worker))
        else:
            if isinstance(answer, Lost):
                self._end(worker)
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


def start_child(
    task: Callable[[Connection], None], config: RealConfig, worker: int, log: Path
) -> tuple[Connection, SpawnProcess]:
    """Start a process that does `task` with a worker's cores and variables and prints to `log`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with _environment(worker_environment(config, worker)):
        process = context.Process(target=run_child, args=(task, theirs, cores_of(config, worker), str(log)))
        process.start()
    theirs.close()
    return ours, process


def finish(process: SpawnProcess) -> None:
    """Make sure that a process is gone: it may be deep in a computation, so wait, ask, then kill."""
    process.join(PATIENCE_S)
    if process.is_alive():
        process.terminate()
        process.join(PATIENCE_S)
    if process.is_alive():
        process.kill()
        process.join()


def await_ready(executor: Executor, workers: int) -> tuple[EngineInfo, float]:
    """Return what the engines are and the longest warm-up; raises WorkerError if one cannot start."""
    infos: dict[int, EngineInfo] = {}
    warm_up_s = 0.0
    while len(infos) < workers:
        worker, answer = executor.receive()
        if isinstance(answer, Lost):
            raise WorkerError(f"worker {worker} could not start: {answer.text or answer.reason}")
        assert isinstance(answer, Ready)
        infos[worker], warm_up_s = answer.info, max(warm_up_s, answer.warm_up_s)
    devices = sorted({info.device for info in infos.values()})
    if len(devices) > 1:
        raise InputError("workers", devices, "one kind of device", "give all workers the same device")
    return infos[min(infos)], warm_up_s


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


def run_child(task: Callable[[Connection], None], pipe: Connection, cores: tuple[int, ...], log: str) -> None:
    """Do `task` and print to the file `log`.

    Ctrl-C is the driver's business; the death of the driver ends this process wherever it is.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    printed = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):  # of the process, so that native code prints there as well
        os.dup2(printed, stream)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_die_with, args=(parent.sentinel,), daemon=True).start()
    if cores:
        os.sched_setaffinity(0, cores)
    with suppress(EOFError):
        task(pipe)
    # Left to itself the interpreter takes seconds to collect what an engine leaves. So the last thing that
    # multiprocessing does at exit, after it has given its semaphores back, is to end the process.
    Finalize(None, _leave, exitpriority=LAST)


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _die_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def cores_of(config: RealConfig, worker: int) -> tuple[int, ...]:
    """Return the CPU cores of a worker; none (no pinning) on a GPU or if there are not enough for all."""
    cores, threads = sorted(os.sched_getaffinity(0)), config.engine.threads
    if config.engine.device != "cpu" or threads * config.workers.count > len(cores):
        return ()
    return tuple(cores[worker * threads : (worker + 1) * threads])


def worker_environment(config: RealConfig, worker: int) -> dict[str, str]:
    """Return the variables that must stand before a worker imports its engine."""
    threads = str(config.engine.threads)
    # Threads that wait must sleep: with several processes on the same cores, spinning ones starve the rest.
    variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads,
                 "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}  # fmt: skip
    cores = cores_of(config, worker)
    if cores:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in cores)
    if config.engine.device == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(
            str(index) for index in range(len(glob.glob("/dev/nvidia[0-9]*")))
        )
        if "," in visible:
            gpus = visible.split(",")
            variables["CUDA_VISIBLE_DEVICES"] = gpus[worker % len(gpus)]
    return variables


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started inside; those of this process come back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
