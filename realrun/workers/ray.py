"""Workers as actors of a Ray cluster: the same service, with orders and answers as bytes.

Each actor runs three methods at once: the service, a mailbox in, and a mailbox out. The driver keeps one call
for the next answer open at each actor; an actor that dies fails that call.
"""

from __future__ import annotations

import queue
from collections import deque
from contextlib import suppress
from time import perf_counter
from typing import Any, Self

from tlt.realrun.config import RealConfig
from tlt.realrun.messages import Close, Order, Ready, decode_answer, encode
from tlt.realrun.workers.local import Heard, Lost, judge, worker_environment
from tlt.realrun.workers.service import serve
from tltsched.errors import InputError

END = b""  # in a mailbox: the other side is gone


class QueueChannel:
    """A worker's end of two queues in its own process."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive(self) -> bytes:
        """Return the next order."""
        return self.orders.get()

    def waiting(self) -> bool:
        """Return at once whether an order is there."""
        return not self.orders.empty()

    def send(self, message: bytes) -> None:
        """Send an answer."""
        self.answers.put(message)


class Actor:
    """What a Ray actor runs."""

    def __init__(self) -> None:
        self._channel = QueueChannel()

    def serve(self) -> None:
        """Run the service until it is closed."""
        serve(self._channel)
        self._channel.answers.put(END)

    def order(self, message: bytes) -> None:
        """Take an order in."""
        self._channel.orders.put(message)

    def answer(self) -> bytes:
        """Wait for the next answer."""
        return self._channel.answers.get()


class RayExecutor:
    """One actor a worker, each with one GPU if the engines run on GPUs; used as a context manager."""

    def __init__(self, config: RealConfig, workers: tuple[int, ...]) -> None:
        """Start the actors; raises InputError without Ray."""
        try:
            import ray
        except ImportError:
            raise InputError(
                "workers.executor", "ray", "local, or ray where it is installed",
                "pip install ray in the environment of the engine",
            ) from None  # fmt: skip
        self._ray: Any = ray
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        gpus, threads = int(config.engine.device == "cuda"), config.engine.threads
        self._actors: dict[int, Any] = {}
        for worker in workers:
            variables = worker_environment(config, worker)
            variables.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hands the GPUs out
            variables.pop("VLLM_CPU_OMP_THREADS_BIND", None)  # these cores are of this machine
            options = {"num_cpus": threads, "num_gpus": gpus, "max_concurrency": 3,
                       "runtime_env": {"env_vars": variables}}  # fmt: skip
            self._actors[worker] = ray.remote(Actor).options(**options).remote()
        self._running = [actor.serve.remote() for actor in self._actors.values()]
        self._open = {actor.answer.remote(): worker for worker, actor in self._actors.items()}
        self._ready: deque[Any] = deque()
        self._offsets_s: dict[int, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, worker: int, order: Order) -> None:
        """Send an order; nothing happens if the worker is dead."""
        if worker in self._actors:
            self._actors[worker].order.remote(encode(order))

    def receive(self) -> tuple[int, Heard]:
        """Wait for the next answer."""
        if not self._ready:
            done, _ = self._ray.wait(list(self._open), num_returns=1)
            self._ready.extend(done)
        call = self._ready.popleft()
        worker = self._open.pop(call)
        try:
            message = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            del self._actors[worker]
            return worker, Lost("its actor died", str(error))
        if message == END:
            del self._actors[worker]
            return worker, Lost("its actor ended")
        answer = judge(decode_answer(message))
        if isinstance(answer, Lost):
            del self._actors[worker]
            return worker, answer
        if isinstance(answer, Ready):
            self._offsets_s[worker] = answer.clock_s - perf_counter()
        self._open[self._actors[worker].answer.remote()] = worker
        return worker, answer

    def clock_offset_s(self, worker: int) -> float:
        """Return the worker's clock minus the driver's, wrong by the time that its Ready took to arrive."""
        return self._offsets_s[worker]

    def close(self) -> None:
        """End all actors."""
        for worker, actor in self._actors.items():
            self.send(worker, Close())
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)
        self._actors.clear()
