"""Other workers that decode while an engine is calibrated, as they do in a replay.

On CPU the workers of one machine share its memory bandwidth, so an engine step takes longer while others run.
A calibration without them would predict a machine that no worker ever has. On GPUs nothing is shared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.engine.factory import engine_factory
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.workers.process import cores_of, finish, start_child

PROMPT_TOKENS = 32


class Task(msgspec.Struct, frozen=True):
    """What a neighbour is told."""

    config: RealConfig
    make_engine: str  # module:function


@contextmanager
def neighbours(config: RealConfig, make_engine: str, logs: Path) -> Iterator[None]:
    """Keep `calibration.neighbours` engines decoding, each in a process of its own, while inside."""
    count = config.calibration.neighbours
    if count:
        logs.mkdir(parents=True, exist_ok=True)
    others = range(1, count + 1)
    children = [start_child(keep_busy, config, n, logs / f"neighbour-{n}.log") for n in others]
    allowed, own = os.sched_getaffinity(0), cores_of(config, 0)
    try:
        if children and own:
            os.sched_setaffinity(0, own)
        for pipe, _ in children:
            pipe.send_bytes(msgspec.json.encode(Task(config, make_engine)))
        for pipe, _ in children:
            pipe.recv_bytes()  # raises EOFError if it could not start
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        for pipe, process in children:
            pipe.close()
            finish(process)


def keep_busy(pipe: Connection) -> None:
    """Decode one batch after the other until the other end of the pipe is closed."""
    task = msgspec.json.decode(pipe.recv_bytes(), type=Task)
    engine = engine_factory(task.make_engine)(task.config, False)
    settings = task.config.engine
    tokens = settings.max_context_tokens - PROMPT_TOKENS
    prompt = tuple(range(1, PROMPT_TOKENS + 1))
    ready = False
    while not pipe.poll():
        if not engine.pending():
            engine.submit(
                [EngineRequest(n, prompt, tokens) for n in range(max(1, settings.max_running // 2))]
            )
        engine.step(0)
        if not ready:
            pipe.send_bytes(b"ready")
            ready = True
