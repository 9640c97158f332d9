"""A live run that may shoot itself: `python -m evidence.fire.driver ENGINE TASK FOLDER [MOMENT]`

ENGINE is `tests` (10 ms a step) or `vllm` (on CPU, a tiny model), MOMENT is JSON. The same call without a
moment starts the run or goes on with it. Prints `shot PID LAST_ORDER`, and `noticed` when a worker is known
to be lost.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import msgspec

from evidence.fire.moments import Moment
from tlt.commands.failures import Terminated, ended_by_sigterm
from tlt.realrun.config import CalibrationConfig, RealConfig, WorkloadConfig
from tlt.realrun.engine.factory import MAKE_ENGINE
from tlt.realrun.workers.executor import Heard, Lost, WorkerError
from tlt.realrun.workers.local import LocalExecutor
from tlt.realrun.workers.messages import Order, Phase
from tlt.traces.common.lock import holding

SLOW = "tests.realrun.fakes:make_slow"
STEPS, LONGEST_TOKENS = 3, 150


def say(*words: object) -> None:
    """Tell whoever started this."""
    print(*words, flush=True)


class Gun:
    """Fires once, at its moment."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.seen = 0
        self.last: dict[int, str] = {}  # by process

    def order(self, name: str, pid: int) -> None:
        """Take in that a process was given an order."""
        self.last[pid] = name
        self.seen += name == self.moment.order
        if name == self.moment.order and self.seen == self.moment.count:
            timer = threading.Timer(self.moment.after_s, self.fire, (pid,))
            timer.daemon = True
            timer.start() if self.moment.after_s else self.fire(pid)

    def fire(self, pid: int) -> None:
        """Shoot a worker, or this process."""
        target = pid if self.moment.whom == "worker" else os.getpid()
        say("shot", target, self.last[pid])
        os.kill(target, self.moment.number())


class WatchedExecutor(LocalExecutor):
    """Tells the gun which orders are sent, and the world who is lost."""

    gun: Gun | None = None

    def send(self, worker: int, order: Order) -> None:
        """Send an order."""
        super().send(worker, order)
        if self.gun and worker in self._connections:
            name = order.phase if isinstance(order, Phase) else type(order).__name__
            self.gun.order(name, self.pid(worker))

    def receive_within(self, seconds: float | None) -> tuple[int, Heard] | None:
        """Wait for the next answer; `receive` does it this way too."""
        heard = super().receive_within(seconds)
        if heard and isinstance(heard[1], Lost):
            say("noticed")
        return heard


def replay(engine: str, folder: Path) -> None:
    """Replay 24 responses under each of two policies."""
    from tests.realrun import fakes, small_models
    from tlt.realrun.replay import replay as module

    work = WorkloadConfig(requests=12, rollouts=2, longest_tokens=LONGEST_TOKENS, prompt_tokens=12)
    config = small_models.tiny_config(folder) if engine == "vllm" else fakes.config_of(folder)
    config = msgspec.structs.replace(config, workload=work)
    with patch.object(module, "LocalExecutor", WatchedExecutor):
        module.replay(config, ("none", "static:2"), folder / "out", say, None, _factory(engine))


def train(engine: str, folder: Path, policy: str) -> None:
    """Train a tiny policy for three steps; the drafter as well where the policy says `online`."""
    from tests.realrun.training.test_training_run import long_tail, tiny
    from tlt.realrun.training import train as module

    config = tiny(folder, STEPS)
    if "online" in policy:  # long responses on one worker, so that the other one trains meanwhile
        rollout = msgspec.structs.replace(config.rollout, forced_lengths=long_tail(folder, config))
        config = msgspec.structs.replace(config, rollout=rollout)
    with patch.object(module, "LocalExecutor", WatchedExecutor):
        module.train(config, [policy], folder / "out", say, None, _factory(engine))


def calibrate(engine: str, folder: Path) -> None:
    """Calibrate beside one neighbour."""
    from tests.realrun import fakes, small_models
    from tlt.realrun.calibrate.sweep import calibrate as measure

    config: RealConfig = small_models.tiny_config(folder) if engine == "vllm" else fakes.config_of(folder)
    swept = CalibrationConfig(batches=(1, 2, 4), contexts_tokens=(32, 64), neighbours=1)
    config = msgspec.structs.replace(config, calibration=swept)
    gun = WatchedExecutor.gun

    def progress(done: float, work: float, what: str) -> None:
        del work, what
        if gun and done:
            child = next(each for each in multiprocessing.active_children() if each.pid)
            gun.order("measured", child.pid or 0)

    try:
        measure(config, folder / "out" / "points.json", progress, _factory(engine))
    except WorkerError:
        say("noticed")
        raise


def _factory(engine: str) -> str:
    return MAKE_ENGINE if engine == "vllm" else SLOW


def main(engine: str, task: str, folder: Path, moment: Moment | None) -> int:
    """Run a task; returns the exit status."""
    WatchedExecutor.gun = Gun(moment) if moment else None
    with suppress(Terminated), ended_by_sigterm(), holding(folder / "out"):
        try:
            match task:
                case "replay":
                    replay(engine, folder)
                case "train_policy":
                    train(engine, folder, "none")
                case "train_drafter":
                    train(engine, folder, "static:2/online")
                case _:
                    calibrate(engine, folder)
        except WorkerError as error:
            say("ended:", str(error).strip().rpartition("\n")[2])
            return 1
        return 0
    return 143


if __name__ == "__main__":
    given = sys.argv[1:]
    at = msgspec.json.decode(given[3], type=Moment) if len(given) > 3 else None
    sys.exit(main(given[0], given[1], Path(given[2]), at))
