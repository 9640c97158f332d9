"""What a training run keeps: nothing that was measured is thrown away by asking for something else."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest

from tests.realrun.test_replay import one_part
from tlt.realrun.driver.part_file import read_parts
from tlt.realrun.driver.plan import PolicyPlan
from tlt.realrun.driver.step import LiveStep
from tlt.realrun.training.checkpoints import PolicyLog
from tlt.realrun.training.plan import plan_training
from tlt.realrun.training.requests import RequestSource
from tlt.realrun.training.train import PolicyRun
from tlt.realrun.training_config import TrainConfig
from tlt.realrun.workers.executor import GOES_ON, Heard, Lost, WorkerError
from tlt.realrun.workers.messages import Order
from tltsched.errors import InputError


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> LiveStep:
    (found,) = [step for _, step in read_parts(*one_part(tmp_path_factory.mktemp("part")))]
    return found


def plan(config: TrainConfig) -> PolicyPlan:
    return plan_training(config, ["none"], None)[0]


def finished(folder: Path, step: LiveStep, checkpoint: bool) -> TrainConfig:
    """Leave a finished run of two steps."""
    config = TrainConfig(steps=2)
    log = PolicyLog(folder, config, plan(config))
    for number in range(2):
        log.keep(msgspec.structs.replace(step, step=number))
    if checkpoint:
        log.new_checkpoint()
        log.commit()
    log.finish()
    return config


@pytest.mark.parametrize("steps", [1, 3])
def test_a_finished_run_without_a_checkpoint_stays(tmp_path: Path, step: LiveStep, steps: int) -> None:
    """Asked for more steps, it was deleted once; asked for fewer, its stamp contradicted its summary."""
    config = finished(tmp_path / "none", step, checkpoint=False)
    other = msgspec.structs.replace(config, steps=steps)
    with pytest.raises(InputError, match="choose another --out"):
        PolicyLog(tmp_path / "none", other, plan(other))
    again = PolicyLog(tmp_path / "none", config, plan(config))
    assert again.complete
    assert [each.step for each in again.steps] == [0, 1]


class Deaf:
    """An executor whose workers are dead."""

    def send(self, worker: int, order: Order) -> None:
        """Take an order that nobody reads."""

    def receive(self) -> tuple[int, Heard]:
        """Return that a worker died."""
        return 1, Lost("killed by signal 9 (SIGKILL)")

    def receive_within(self, seconds: float | None) -> tuple[int, Heard] | None:
        """Do the same."""
        del seconds
        return self.receive()


def test_a_worker_that_dies_over_a_checkpoint_is_told_in_words(tmp_path: Path) -> None:
    config = TrainConfig(steps=2)
    log = PolicyLog(tmp_path / "none", config, plan(config))
    source = cast("RequestSource", None)  # nothing is asked any more
    with pytest.raises(WorkerError) as raised:
        PolicyRun(config, plan(config), log, source, tmp_path, "").save(Deaf())
    first, second = str(raised.value).splitlines()
    assert first == "worker 1 could not write its part of a checkpoint: killed by signal 9 (SIGKILL)"
    assert second == GOES_ON


def test_a_finished_run_with_a_checkpoint_grows(tmp_path: Path, step: LiveStep) -> None:
    config = finished(tmp_path / "none", step, checkpoint=True)
    longer = msgspec.structs.replace(config, steps=3)
    log = PolicyLog(tmp_path / "none", longer, plan(longer))
    assert not log.complete
    assert [each.step for each in log.steps] == [0, 1]


def test_the_newest_checkpoint_is_the_one_with_the_largest_number(tmp_path: Path, step: LiveStep) -> None:
    config = finished(tmp_path / "none", step, checkpoint=False)
    log = PolicyLog(tmp_path / "none", config, plan(config))
    for number in ("9999", "10000"):
        (tmp_path / "none" / "checkpoint" / number).mkdir(parents=True)
    found = log.checkpoint()
    assert found is not None
    assert found.name == "10000"
