"""What a training run keeps: nothing that was measured is thrown away by asking for something else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.realrun.test_replay import one_part
from tlt.realrun.driver.part_file import read_parts
from tlt.realrun.driver.plan import PolicyPlan
from tlt.realrun.driver.step import LiveStep
from tlt.realrun.training.checkpoints import PolicyLog
from tlt.realrun.training.plan import plan_training
from tlt.realrun.training_config import TrainConfig
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
