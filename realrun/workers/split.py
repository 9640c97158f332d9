"""Workers whose plain and drafting engines live in processes of their own, as `vllm serve` has them.

Two engines of one process share vLLM's graph memory, and the second clears piecewise graphs of the first.
Here each worker is a process an engine on the same cores and GPUs. Policies take turns, so that one of them
works at a time. The engines of a worker start one after the other: vLLM measures the free memory while it
starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Self

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.workers.executor import Heard, Lost
from tlt.realrun.workers.local import LocalExecutor
from tlt.realrun.workers.messages import Abandon, Close, Order, Prepare, Ready, Reload, Withdraw, Work


def _slot(worker: int, speculating: bool) -> int:
    return 2 * worker + int(speculating)


class SplitExecutor:
    """An Executor over two processes a worker; used as a context manager, which ends them."""

    def __init__(
        self, config: RealConfig, workers: tuple[int, ...], logs: Path, kinds: Collection[bool]
    ) -> None:
        """Start a process of each worker for each of `kinds`: whether speculation is configured in it."""
        self._kinds = sorted(set(kinds))
        slots = tuple(_slot(worker, kind) for worker in workers for kind in self._kinds)
        self._inner = LocalExecutor(config, slots, logs, place=lambda slot: slot // 2)
        self._speculating: dict[str, bool] = {}  # by policy
        self._prepares: dict[int, deque[tuple[int, Prepare]]] = {}  # of each worker, still to be sent
        self._ready: dict[int, list[Ready]] = {}
        self._lost: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, worker: int, order: Order) -> None:
        """Send an order to the process whose policy it is of; nothing happens if the worker is dead."""
        match order:
            case Prepare():
                self._prepares[worker], self._ready[worker] = self._parts(worker, order), []
                self._inner.send(*self._prepares[worker].popleft())
            case Work() | Withdraw() | Reload() | Abandon():
                self._inner.send(_slot(worker, self._speculating[order.policy]), order)
            case Close():
                for kind in self._kinds:
                    self._inner.send(_slot(worker, kind), order)
            case _:
                raise AssertionError(f"a replay has no such order: {order}")

    def _parts(self, worker: int, order: Prepare) -> deque[tuple[int, Prepare]]:
        self._speculating |= {name: policy.speculating for name, policy in order.policies.items()}
        parts: deque[tuple[int, Prepare]] = deque()
        for kind in self._kinds:
            mine = {name: policy for name, policy in order.policies.items() if policy.speculating == kind}
            parts.append((_slot(worker, kind), msgspec.structs.replace(order, policies=mine)))
        return parts

    def receive(self) -> tuple[int, Heard]:
        """Wait for the next answer; a worker is ready with its last engine and lost with its first."""
        heard = self.receive_within(None)
        assert heard is not None
        return heard

    def receive_within(self, seconds: float | None) -> tuple[int, Heard] | None:
        """Do the same for so long at most; None: nobody has said anything."""
        while True:
            heard = self._inner.receive_within(seconds)
            if heard is None:
                return None
            slot, answer = heard
            worker = slot // 2
            if worker in self._lost:
                continue
            if isinstance(answer, Lost):
                self._lost.add(worker)
                self.send(worker, Close())
                return worker, answer
            if not isinstance(answer, Ready):
                return worker, answer
            self._ready[worker].append(answer)
            if not self._prepares[worker]:
                return worker, _joined(self._ready[worker])
            self._inner.send(*self._prepares[worker].popleft())

    def close(self) -> None:
        """End all processes."""
        self._inner.close()


def _joined(parts: list[Ready]) -> Ready:
    """Return what a worker says whose engines have all started: the smaller cache, the time of all."""
    kv_tokens = min(part.info.kv_tokens for part in parts)
    info = msgspec.structs.replace(parts[0].info, kv_tokens=kv_tokens)
    return Ready(info, sum(part.warm_up_s for part in parts))
