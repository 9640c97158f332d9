"""Other workers that decode while an engine is calibrated, as they do in a replay.

On CPU the workers of one machine share its memory bandwidth, so an engine step takes longer while others run.
A calibration without them would predict a machine that no worker ever has. On GPUs nothing is shared.

Each neighbour leaves in a file when it last ran an engine step and the longest time between two of them: one
that died or stood still was no neighbour, and what was measured beside it is forgotten.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.engine.factory import engine_factory
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.workers.executor import WorkerError
from tlt.realrun.workers.process import cores_of, finish, start_child

PROMPT_TOKENS = 32
SILENCE_S = 30.0  # in which a neighbour runs an engine step
FRESH_S = 0.25  # a step that is no older shows that it runs; else the next one is awaited
BEAT = struct.Struct("<dd")  # when the last engine step ended (time.monotonic), longest time between two


class Task(msgspec.Struct, frozen=True):
    """What a neighbour is told."""

    config: RealConfig
    make_engine: str  # module:function
    beat: str  # the file for its signs of life


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One other engine."""

    number: int
    pipe: Connection
    process: SpawnProcess
    log: Path
    beat: Path

    def await_start(self) -> None:
        """Wait until it decodes; raises WorkerError if it cannot start."""
        try:
            self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._error("could not start") from None

    def check(self, silence_s: float) -> None:
        """Raise WorkerError unless it runs now and never stood still for `silence_s`."""
        asked_s = time.monotonic()
        while self.process.is_alive():
            last_s, longest_s = BEAT.unpack(self.beat.read_bytes())
            if longest_s > silence_s:
                raise self._error(f"stood still for {longest_s:.0f} s")
            if last_s > asked_s - FRESH_S:
                return
            if time.monotonic() - last_s > silence_s:
                raise self._error(f"has stood still for {silence_s:.0f} s")
            time.sleep(0.05)
        raise self._error("died")

    def _error(self, what: str) -> WorkerError:
        last = (
            self.log.read_text(errors="replace").strip().rpartition("\n")[2][:300]
            if self.log.is_file()
            else ""
        )
        said = f": {last!r}" if last else ""
        return WorkerError(
            f"neighbour {self.number} of the calibration {what}{said}; all that it said is in {self.log}"
        )


class Neighbours:
    """All of them, and the file of repeats that were measured beside them."""

    def __init__(self, others: Sequence[Neighbour], measured: Path, silence_s: float) -> None:
        self._others = others
        self._measured = measured
        self._silence_s = silence_s
        self._trusted = self._size()

    def check(self) -> None:
        """Trust what was measured so far if all neighbours ran; else forget it and raise WorkerError."""
        try:
            for other in self._others:
                other.check(self._silence_s)
        except WorkerError:
            if self._size() > self._trusted:
                os.truncate(self._measured, self._trusted)
            raise
        self._trusted = self._size()

    def _size(self) -> int:
        return self._measured.stat().st_size if self._measured.is_file() else 0


@contextmanager
def neighbours(
    config: RealConfig, make_engine: str, logs: Path, measured: Path, silence_s: float = SILENCE_S
) -> Iterator[Neighbours]:
    """Keep `calibration.neighbours` engines decoding, each in a process of its own, while inside.

    `measured` is the file of repeats, of which what was added beside a neighbour that did not run is cut off.
    Raises WorkerError if one cannot start.
    """
    count = config.calibration.neighbours
    if count:
        logs.mkdir(parents=True, exist_ok=True)
    others: list[Neighbour] = []
    allowed, own = os.sched_getaffinity(0), cores_of(config, 0)
    try:
        for number in range(1, count + 1):
            log, beat = logs / f"neighbour-{number}.log", logs / f"neighbour-{number}.beat"
            pipe, process = start_child(keep_busy, config, number, log)
            others.append(Neighbour(number, pipe, process, log, beat))
        if others and own:
            os.sched_setaffinity(0, own)
        for other in others:
            other.pipe.send_bytes(msgspec.json.encode(Task(config, make_engine, str(other.beat))))
        for other in others:
            other.await_start()
        yield Neighbours(others, measured, silence_s)
    finally:
        os.sched_setaffinity(0, allowed)
        for other in others:
            other.pipe.close()
            finish(other.process)
            other.beat.unlink(missing_ok=True)


def keep_busy(pipe: Connection) -> None:
    """Decode one batch after the other until the other end of the pipe is closed."""
    task = msgspec.json.decode(pipe.recv_bytes(), type=Task)
    engine = engine_factory(task.make_engine)(task.config, False)
    settings = task.config.engine
    tokens = settings.max_context_tokens - PROMPT_TOKENS
    prompt = tuple(range(1, PROMPT_TOKENS + 1))
    last_s, longest_s = 0.0, 0.0
    beat = os.open(task.beat, os.O_WRONLY | os.O_CREAT, 0o644)
    while not pipe.poll():
        if not engine.pending():
            engine.submit(
                [EngineRequest(n, prompt, tokens) for n in range(max(1, settings.max_running // 2))]
            )
        engine.step(0)
        now_s = time.monotonic()
        longest_s = max(longest_s, now_s - last_s) if last_s else 0.0
        ready, last_s = last_s == 0.0, now_s
        os.pwrite(beat, BEAT.pack(last_s, longest_s), 0)  # in one piece: it is read meanwhile
        if ready:
            pipe.send_bytes(b"ready")
