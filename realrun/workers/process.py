"""Processes of this machine that do one task each, with their own cores, variables and log.

A process ends when its pipe closes or its parent is gone, so a driver that is killed leaves no orphan.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from pathlib import Path

from tlt.realrun.config import RealConfig
from tlt.realrun.workers.vital_signs import STOPPED, family, seen
from tlt.traces.common.spawning import environment, spawning
from tltsched.errors import InputError

LAST = -100  # priority of what is done at exit
PATIENCE_S = 10.0  # for a process that was told to end, before the next harder way


def start_child(
    task: Callable[[Connection], None], config: RealConfig, worker: int, log: Path
) -> tuple[Connection, SpawnProcess]:
    """Start a process that does `task` with a worker's cores and variables and prints to `log`."""
    context = spawning()
    ours, theirs = context.Pipe()
    with environment(worker_environment(config, worker)):
        process = context.Process(target=run_child, args=(task, theirs, cores_of(config, worker), str(log)))
        process.start()
    theirs.close()
    return ours, process


def finish(process: SpawnProcess) -> None:
    """Make sure that a process is gone: it may be deep in a computation, so wait, ask, then kill.

    One that is stopped hears nothing else.
    """
    if process.pid is not None and seen(process.pid)[0] in STOPPED:
        kill(process)
    process.join(PATIENCE_S)
    if process.is_alive():
        process.terminate()
        process.join(PATIENCE_S)
    if process.is_alive():
        kill(process)
        process.join()


def kill(process: SpawnProcess) -> None:
    """Kill a process and all that it started: a rank that is stopped does not hear that it is alone."""
    below = family(process.pid)[1:] if process.pid is not None else []
    process.kill()
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
    cores, threads = sorted(os.sched_getaffinity(0)), config.engine.threads * config.workers.tp
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
        per_rank = config.engine.threads
        ranks = (cores[first : first + per_rank] for first in range(0, len(cores), per_rank))
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, rank)) for rank in ranks)
    if config.engine.device == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(
            str(index) for index in range(len(glob.glob("/dev/nvidia[0-9]*")))
        )
        gpus, tp = [name for name in visible.split(",") if name], config.workers.tp
        if len(gpus) > 1:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus_of(gpus, worker, tp))
    return variables


def gpus_of(gpus: Sequence[str], worker: int, tp: int) -> Sequence[str]:
    """Return the GPUs of a worker, `tp` side by side; workers share them if there are too few for all.

    Raises InputError where not even one worker finds enough.
    """
    places = len(gpus) // tp
    if not places:
        raise InputError("workers.tp", tp, f"at most the {len(gpus)} GPUs that are visible", "lower it")
    first = worker % places * tp
    return gpus[first : first + tp]
