"""Calls as tasks of a Ray cluster: Ray makes those of a node that dies again on another one.

Each call takes one CPU. Every node has to have this package and the files that settings name, under the same
paths; lengths travel through Ray's object store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tlt.sim.parallel.lengths import Lengths, encoded, key_of
from tlt.traces.common.ray_cluster import connected
from tlt.traces.lengths.schema import Trace
from tltsched.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 4  # calls a CPU that are handed over at once
RETRIES = 8  # of one call, after deaths of nodes or processes


class OnRay:
    """An Executor over the cluster that `connected` finds, or starts and ends again."""

    def __init__(self) -> None:
        was_open = _is_open()
        self._ray = connected()
        self._owned = not was_open
        self._shared: dict[str, Any] = {}

    def run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[int, Result]]:
        """Yield results as they are done; raises InputError where a call's nodes die again and again."""
        ray = self._ray
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(function)
        numbered = enumerate(items)
        open_calls: dict[Any, int] = {}
        try:
            while True:
                # The cluster may grow and shrink meanwhile.
                most = AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)
                while len(open_calls) < most and (following := next(numbered, None)) is not None:
                    open_calls[task.remote(following[1])] = following[0]
                if not open_calls:
                    return
                done, _ = ray.wait(list(open_calls), num_returns=1)
                for call in done:
                    number = open_calls.pop(call)
                    yield number, self._result(call)
        finally:
            for call in open_calls:
                ray.cancel(call, force=True)

    def _result(self, call: Any) -> Any:
        ray = self._ray
        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() if error.cause is None else error.cause from None
        except ray.exceptions.RayError as error:
            raise InputError(
                "--executor ray", " ".join(str(error).split())[:300], "nodes that live long enough",
                "look at their memory; what is done is kept",
            ) from None  # fmt: skip

    def share(self, trace: Trace) -> Lengths:
        """Put lengths into the object store."""
        data = encoded(trace)
        key = key_of(data)
        if key not in self._shared:
            self._shared[key] = self._ray.put(data)
        return Lengths(key, self._shared[key], _from_store)

    def close(self) -> None:
        """Leave the cluster, unless it was joined before."""
        self._shared.clear()
        if self._owned:
            self._ray.shutdown()


def _is_open() -> bool:
    """Return whether this process is connected already."""
    try:
        import ray
    except ImportError:
        return False
    return bool(ray.is_initialized())


def _from_store(reference: Any) -> bytes:
    import ray

    return bytes(ray.get(reference))
