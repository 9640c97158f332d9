"""What carries out many calls of one function: this process, processes beside it, or a Ray cluster.

Calls know nothing of one another. Each is carried out once as far as its result goes: where a node of a
cluster dies, its calls are made again elsewhere, and what they had not returned counts for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

from tlt.sim.parallel.lengths import Lengths
from tlt.traces.lengths.schema import Trace

Item = TypeVar("Item")
Result = TypeVar("Result")
ExecutorName = Literal["processes", "ray"]
EXECUTORS: tuple[ExecutorName, ...] = ("processes", "ray")


class Executor(Protocol):
    """Carries out calls; used as long as `executor` is open."""

    def run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[int, Result]]:
        """Yield the number of each item and what `function` returned for it, in the order of completion.

        The function is one of a module. Raises what a call raises, and WorkerDied.
        """
        ...

    def share(self, trace: Trace) -> Lengths:
        """Return a handle of lengths that calls may take instead of them: they travel once."""
        ...

    def close(self) -> None:
        """End what was started."""


class Serial:
    """Calls in this process, in order."""

    def run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[int, Result]]:
        """Yield results in the order of the items."""
        for number, item in enumerate(items):
            yield number, function(item)

    def share(self, trace: Trace) -> Lengths:
        """Return the lengths themselves, in a handle."""
        return Lengths("", trace)

    def close(self) -> None:
        """Do nothing."""


SERIAL = Serial()


@contextmanager
def executor(name: ExecutorName = "processes", processes: int | None = None) -> Iterator[Executor]:
    """Open an executor; `processes` (None: one a CPU) bounds those of this machine.

    Raises InputError without Ray, or where no cluster answers.
    """
    opened: Any = SERIAL
    count = processes or os.cpu_count() or 1
    if name == "ray":
        from tlt.sim.parallel.on_ray import OnRay

        opened = OnRay()
    elif count > 1:
        from tlt.sim.parallel.processes import Processes

        opened = Processes(count)
    try:
        yield opened
    finally:
        opened.close()
