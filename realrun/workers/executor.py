"""What a driver asks of whatever runs its workers, and what it may hear of them."""

from __future__ import annotations

from typing import Protocol

import msgspec

from tlt.realrun.workers.messages import (
    Answer,
    EngineInfo,
    Failed,
    Order,
    PhaseDone,
    Ready,
    Reloaded,
    Report,
    Saved,
    Trained,
    Withdrawn,
)
from tltsched.errors import InputError

GOES_ON = "start the same command again: it goes on from the last checkpoint, if there is one"


class Lost(msgspec.Struct, frozen=True, gc=False):
    """A worker is dead. `reason` is one line, `text` all that it said."""

    reason: str
    text: str = ""

    @property
    def told(self) -> str:
        """All that it said, or else the line."""
        return self.text or self.reason


Heard = Ready | Report | Withdrawn | Reloaded | Trained | PhaseDone | Saved | Lost
"""What a driver may hear of a worker."""


class WorkerError(RuntimeError):
    """No worker is left, or one could not be prepared. Its text is what the worker said."""


class Executor(Protocol):
    """Runs workers somewhere."""

    def send(self, worker: int, order: Order) -> None:
        """Send an order; nothing happens if the worker is dead, which `receive` tells."""

    def receive(self) -> tuple[int, Heard]:
        """Wait for the next answer; raises InputError if a worker refuses the configuration."""

    def receive_within(self, seconds: float | None) -> tuple[int, Heard] | None:
        """Do the same for so long at most (None: without end); None: nobody has said anything."""

    def close(self) -> None:
        """End all workers."""


def judge(answer: Answer) -> Heard:
    """Return an answer; one that failed is a lost worker, unless it refused what the user asked for."""
    if not isinstance(answer, Failed):
        return answer
    if answer.refused:
        raise InputError(*answer.refused)
    return Lost(answer.text.strip().rpartition("\n")[2], answer.text)


def await_ready(executor: Executor, workers: int) -> tuple[EngineInfo, float]:
    """Return what the engines are and the longest warm-up; raises WorkerError if one cannot start."""
    infos: dict[int, EngineInfo] = {}
    warm_up_s = 0.0
    while len(infos) < workers:
        worker, answer = executor.receive()
        if isinstance(answer, Lost):
            raise WorkerError(f"worker {worker} could not start: {answer.told}")
        assert isinstance(answer, Ready)
        infos[worker], warm_up_s = answer.info, max(warm_up_s, answer.warm_up_s)
    devices = sorted({info.device for info in infos.values()})
    if len(devices) > 1:
        raise InputError("workers", devices, "one kind of device", "give all workers the same device")
    return infos[min(infos)], warm_up_s
