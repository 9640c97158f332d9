"""Workers on the nodes of a Ray cluster, an actor each that keeps the worker's process beside it.

The actor starts the same process as on this machine (tlt.realrun.workers.local) and carries orders and
answers as bytes, so that cores, variables, logs and the reason of a death are those of local workers. The
folder that the driver stands in has to be there on every node, under the same name.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.workers.executor import Heard, Lost, WorkerError, judge
from tlt.realrun.workers.local import LocalExecutor
from tlt.realrun.workers.messages import Close, Failed, Order, decode_answer, decode_order, encode
from tlt.traces.common.ray_cluster import connected
from tltsched.errors import InputError

START_S = 120.0  # for actors to be placed: Ray itself waits for ever
CLOCK_READINGS = 5
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Actor:
    """What runs on a node: one worker's process, and the line to it."""

    def __init__(self, folder: str) -> None:
        """Stand in the driver's `folder`, so that relative folders of settings mean the same."""
        os.chdir(folder)
        self._executor: LocalExecutor | None = None

    def host(self) -> tuple[str, str]:
        """Return what tells machines apart, and the machine's name; nodes of one machine share its cores."""
        boot = BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.is_file() else ""
        return boot or socket.gethostname(), socket.gethostname()

    def clock_s(self) -> float:
        """Return the reading of this machine's clock."""
        return perf_counter()

    def start(self, config: bytes, worker: int, place: int, logs: str) -> None:
        """Start the process of a worker, the `place`-th on this machine."""
        settings = msgspec.msgpack.decode(config, type=RealConfig)
        self._executor = LocalExecutor(settings, (worker,), Path(logs), place=lambda _: place)

    def order(self, worker: int, message: bytes) -> None:
        """Take an order in."""
        assert self._executor is not None
        self._executor.send(worker, decode_order(message))

    def answer(self) -> bytes:
        """Wait for the next answer; a dead process answers Failed, with the reason."""
        assert self._executor is not None
        try:
            _, heard = self._executor.receive()
        except InputError as error:
            refused = (error.field, str(error.got), error.allowed, error.fix)
            return bytes(encode(Failed(str(error), refused)))
        except WorkerError as error:
            return bytes(encode(Failed(str(error))))
        return bytes(encode(Failed(heard.text or heard.reason) if isinstance(heard, Lost) else heard))

    def close(self) -> None:
        """End the process."""
        if self._executor is not None:
            self._executor.close()


class RayExecutor:
    """An Executor over actors of Ray; used as a context manager, which ends them."""

    def __init__(self, config: RealConfig, workers: tuple[int, ...], logs: Path) -> None:
        """Place an actor a worker and start their processes; each prints to a file in `logs` on its node.

        Raises InputError without Ray, without a cluster that answers, and where it has too few CPUs or GPUs.
        """
        self._ray: Any = connected()
        need = needs(config)
        check_room(self._ray.nodes(), need, len(workers), config)
        self._actors: dict[int, Any] = {}
        self._open: dict[Any, int] = {}  # calls for the next answer
        self._ready: deque[Any] = deque()
        try:
            for worker in workers:
                options = {"num_cpus": need["CPU"], "num_gpus": need["GPU"], "max_concurrency": 3}
                self._actors[worker] = self._ray.remote(Actor).options(**options).remote(os.getcwd())
            self._hosts = self._placed()
            self._offsets_s = {worker: self._offset_s(actor) for worker, actor in self._actors.items()}
            self._start(config, logs.resolve())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _placed(self) -> dict[int, tuple[str, str]]:
        """Return each worker's machine; raises InputError if Ray finds no place for an actor."""
        calls = {actor.host.remote(): worker for worker, actor in self._actors.items()}
        try:
            return dict(zip(calls.values(), self._ray.get(list(calls), timeout=START_S), strict=True))
        except self._ray.exceptions.GetTimeoutError:
            raise InputError(
                "--executor ray", f"no place for {len(calls)} workers in {START_S:.0f} s",
                f"free resources; now {self._ray.available_resources()}", "end what else runs there",
            ) from None  # fmt: skip
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"a worker could not be placed: {error}") from None

    def _start(self, config: RealConfig, logs: Path) -> None:
        on_host = Counter(host for host, _ in self._hosts.values())
        placed: Counter[str] = Counter()
        for worker, actor in self._actors.items():
            host = self._hosts[worker][0]
            count = msgspec.structs.replace(config.workers, count=on_host[host])
            mine = msgspec.msgpack.encode(msgspec.structs.replace(config, workers=count))
            # Ray lets an actor see its own GPUs alone, so it is the first on them.
            place = 0 if config.engine.device == "cuda" else placed[host]
            placed[host] += 1
            self._ray.get(actor.start.remote(mine, worker, place, str(logs)))
            self._open[actor.answer.remote()] = worker

    def _offset_s(self, actor: Any) -> float:
        """Return how far the clock of an actor's machine is ahead of this one, by the quickest answer."""
        readings = []
        for _ in range(CLOCK_READINGS):
            before_s = perf_counter()
            there_s = self._ray.get(actor.clock_s.remote())
            after_s = perf_counter()
            readings.append((after_s - before_s, there_s - (before_s + after_s) / 2))
        return float(min(readings)[1])

    def kill(self, worker: int) -> None:
        """Kill the actor of a worker, and with it the worker."""
        self._ray.kill(self._actors[worker])

    def send(self, worker: int, order: Order) -> None:
        """Send an order; nothing happens if the worker is dead."""
        if worker in self._actors:
            origin_s = getattr(order, "origin_s", None)
            if origin_s is not None:
                order = msgspec.structs.replace(order, origin_s=origin_s + self._offsets_s[worker])
            self._actors[worker].order.remote(worker, encode(order))

    def receive(self) -> tuple[int, Heard]:
        """Wait for the next answer. Raises WorkerError if no worker is left."""
        heard = self.receive_within(None)
        assert heard is not None
        return heard

    def receive_within(self, seconds: float | None) -> tuple[int, Heard] | None:
        """Do the same for so long at most; None: nobody has said anything."""
        if not self._open:
            raise WorkerError("no worker is left")
        if not self._ready:
            done, _ = self._ray.wait(list(self._open), num_returns=1, timeout=seconds)
            self._ready.extend(done)
        if not self._ready:
            return None
        call = self._ready.popleft()
        worker = self._open.pop(call)
        name = self._hosts[worker][1]
        try:
            answer = judge(decode_answer(self._ray.get(call)))
        except self._ray.exceptions.RayError as error:
            del self._actors[worker]
            why = " ".join(str(error).split())
            return worker, Lost(f"its actor on {name} died: {why[:300]}", str(error))
        if isinstance(answer, Lost):
            self._end(self._actors.pop(worker))
            return worker, Lost(f"on {name}: {answer.reason}", answer.text)
        self._open[self._actors[worker].answer.remote()] = worker
        return worker, answer

    def close(self) -> None:
        """End all workers: those that rest at once, those that are at work by a signal."""
        for worker in list(self._actors):
            self.send(worker, Close())
        actors, self._actors, self._open = self._actors, {}, {}
        for actor in actors.values():
            self._end(actor)

    def _end(self, actor: Any) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(actor.close.remote(), timeout=START_S)
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(actor)


def needs(config: RealConfig) -> dict[str, int]:
    """Return what a worker takes of a node."""
    tp = config.workers.tp
    return {"CPU": config.engine.threads * tp, "GPU": tp if config.engine.device == "cuda" else 0}


def check_room(nodes: list[dict[str, Any]], need: dict[str, int], workers: int, config: RealConfig) -> None:
    """Raise InputError if the living nodes, all of them free, do not hold the workers: Ray would wait."""
    alive = [node.get("Resources", {}) for node in nodes if node.get("Alive", True)]
    wanted = {name: count for name, count in need.items() if count}
    room = sum(min(int(node.get(name, 0) // count) for name, count in wanted.items()) for node in alive)
    if room >= workers:
        return
    each = " and ".join(f"{count} {name}" for name, count in wanted.items())
    have = "; ".join(", ".join(f"{node.get(name, 0):g} {name}" for name in wanted) for node in alive)
    raise InputError(
        "workers.count", f"{config.workers.count} that take {each} each",
        f"at most {room} on the {len(alive)} nodes of this Ray cluster (they have {have})",
        "lower it, or engine.threads, or add nodes",
    )  # fmt: skip
