"""What a training run keeps: nothing that was measured is thrown away by asking for something else."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest

from tests.realrun.test_replay import one_part
from tlt.realrun.config import ModelConfig, TasksConfig, WorkersConfig
from tlt.realrun.driver.engine_record import EngineRecord, engine_record
from tlt.realrun.driver.part_file import read_parts
from tlt.realrun.driver.plan import PolicyPlan
from tlt.realrun.driver.step import LiveStep
from tlt.realrun.models.target import prepare_model
from tlt.realrun.training.checkpoints import PolicyLog
from tlt.realrun.training.plan import plan_training
from tlt.realrun.training.requests import RequestSource
from tlt.realrun.training.train import PolicyRun, train
from tlt.realrun.training.write_run import write_run
from tlt.realrun.training_config import RolloutConfig, TrainConfig
from tlt.realrun.workers.executor import GOES_ON, Heard, Lost, WorkerError
from tlt.realrun.workers.messages import EngineInfo, Order
from tlt.traces.common.manifest import is_whole
from tltsched.errors import InputError


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> LiveStep:
    (found,) = [step for _, step in read_parts(*one_part(tmp_path_factory.mktemp("part")))]
    return found


def plan(config: TrainConfig) -> PolicyPlan:
    return plan_training(config, ["none"], None)[0]


def engine_of(config: TrainConfig) -> EngineRecord:
    info = EngineInfo("made", "0", "none", "0", {})
    return engine_record(info, 0.0, config.engine_settings())


def no_kinds(step: int) -> tuple[str, ...]:
    del step
    return ()


def finished(folder: Path, step: LiveStep, checkpoint: bool, ended: bool = True) -> TrainConfig:
    """Leave a run of two steps, of which one is missing unless it `ended`."""
    config = TrainConfig(
        steps=2,
        checkpoint_every=int(checkpoint),
        model=ModelConfig(folder=str(prepare_model("tiny", folder.parent / "tiny", vocab=512))),
        workers=WorkersConfig(count=2),
        tasks=TasksConfig(random_prompt_tokens=8),
        rollout=RolloutConfig(max_response_tokens=96),
    )
    log = PolicyLog(folder, config, plan(config))
    for number in range(2 if ended else 1):
        rewards = {response.request: 1.0 for response in step.responses}
        log.keep(msgspec.structs.replace(step, step=number, rewards=rewards))
        if checkpoint:
            (log.new_checkpoint() / "policy.safetensors").write_bytes(b"weights %d" % number)
            log.commit()
        write_run(log, config, plan(config), engine_of(config), no_kinds)
    if ended:
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
    again.read()
    assert [each.step for each in again.steps] == [0, 1]


STAMPS = {
    "cut": lambda whole: whole[:20],
    "gone": None,
    "a folder's": lambda _: b"{}",
    "of other settings": lambda whole: whole.replace(b'"seed": 0', b'"seed": 1'),
    "of fewer steps": lambda whole: whole.replace(b'"steps": 2', b'"steps": 3'),
}


@pytest.mark.parametrize("damage", STAMPS)
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_finished_run_outlives_its_stamp(
    tmp_path: Path, step: LiveStep, damage: str, checkpoint: bool
) -> None:
    """The same command was refused each time, with the advice to check the stamp."""
    config = finished(tmp_path / "none", step, checkpoint)
    files = {path: path.read_bytes() for path in (tmp_path / "none").rglob("*") if path.is_file()}
    spoil(tmp_path / "none" / "training.json", damage)
    assert PolicyLog(tmp_path / "none", config, plan(config)).complete
    assert {path: path.read_bytes() for path in (tmp_path / "none").rglob("*") if path.is_file()} == files
    spoil(tmp_path / "none" / "training.json", damage)
    longer = msgspec.structs.replace(config, steps=3)
    if checkpoint:
        log = PolicyLog(tmp_path / "none", longer, plan(longer))
        assert (log.complete, [each.step for each in log.steps]) == (False, [0, 1])
    else:
        with pytest.raises(InputError, match="choose another --out, with checkpoint_every above 0"):
            PolicyLog(tmp_path / "none", longer, plan(longer))


def spoil(path: Path, damage: str) -> None:
    change, whole = STAMPS[damage], path.read_bytes()
    path.unlink()
    if change is not None:
        assert change(whole) != whole
        path.write_bytes(change(whole))


@pytest.mark.parametrize("damage", [each for each in STAMPS if each != "of fewer steps"])
def test_a_run_that_was_stopped_outlives_its_stamp(tmp_path: Path, step: LiveStep, damage: str) -> None:
    config = finished(tmp_path / "none", step, checkpoint=True, ended=False)
    spoil(tmp_path / "none" / "training.json", damage)
    log = PolicyLog(tmp_path / "none", config, plan(config))
    assert (log.complete, [each.step for each in log.steps]) == (False, [0])
    other = msgspec.structs.replace(config, seed=2)
    spoil(tmp_path / "none" / "training.json", damage)
    with pytest.raises(InputError, match="measurements are not overwritten"):
        PolicyLog(tmp_path / "none", other, plan(other))


@pytest.mark.parametrize("lacking", ["tables", "seal", "checkpoint"])
def test_a_run_without_its_stamp_has_ended_only_if_all_of_its_last_step_is_there(
    tmp_path: Path, step: LiveStep, lacking: str
) -> None:
    """It is killed after the second of two steps: in mid-table, with a manifest to come, or earlier."""
    folder = tmp_path / "none"
    config = finished(folder, step, checkpoint=True, ended=lacking != "tables")
    if lacking == "tables":
        PolicyLog(folder, config, plan(config)).keep(msgspec.structs.replace(step, step=1))
        (folder / "checkpoint" / "0001").rename(folder / "checkpoint" / "0002")
    elif lacking == "seal":
        (folder / "tlt-manifest.json").unlink()
    else:
        (folder / "checkpoint" / "0002").rename(folder / "checkpoint" / "0001")
    (folder / "training.json").unlink()
    log = PolicyLog(folder, config, plan(config))
    assert (log.complete, len(log.steps)) == (False, 1 if lacking == "checkpoint" else 2)


def test_a_stamp_that_was_cut_before_the_first_step_is_in_nobodys_way(tmp_path: Path) -> None:
    config = TrainConfig(steps=2)
    PolicyLog(tmp_path / "none", config, plan(config))
    (tmp_path / "none" / "training.json").write_bytes(b"")
    assert PolicyLog(tmp_path / "none", config, plan(config)).steps == []
    (tmp_path / "none" / "training.json").unlink()
    (tmp_path / "none" / "thesis.txt").touch()
    with pytest.raises(InputError, match="a new or empty folder"):
        PolicyLog(tmp_path / "none", config, plan(config))


@pytest.mark.parametrize("which", [0, 1])
def test_steps_that_a_checkpoint_came_from_are_all_there_or_named(
    tmp_path: Path, step: LiveStep, which: int
) -> None:
    """One that was deleted, as its own error advised, had an earlier step run from a later policy."""
    config = finished(tmp_path / "none", step, checkpoint=True)
    longer = msgspec.structs.replace(config, steps=3)
    part = tmp_path / "none" / "parts" / f"000{which}.msgpack"
    whole = part.read_bytes()
    part.write_bytes(whole[:-9])
    with pytest.raises(InputError, match=rf"000{which}\.msgpack.*restore a copy, or choose another --out"):
        PolicyLog(tmp_path / "none", longer, plan(longer))
    part.unlink()
    with pytest.raises(InputError, match=r"1 in .* for finished steps.*all 2 that checkpoint"):
        PolicyLog(tmp_path / "none", longer, plan(longer))
    part.write_bytes(whole)
    assert len(PolicyLog(tmp_path / "none", longer, plan(longer)).steps) == 2


def test_a_checkpoint_that_was_changed_is_named(tmp_path: Path, step: LiveStep) -> None:
    """Nothing else would tell: its weights would be those of another policy."""
    config = finished(tmp_path / "none", step, checkpoint=True)
    path = tmp_path / "none" / "checkpoint" / "0002" / "policy.safetensors"
    path.write_bytes(b"weights 9")
    longer = msgspec.structs.replace(config, steps=3)
    with pytest.raises(InputError, match=r"policy\.safetensors, which was changed"):
        PolicyLog(tmp_path / "none", longer, plan(longer))
    assert PolicyLog(tmp_path / "none", config, plan(config)).complete, "a finished run needs it no more"


@pytest.mark.parametrize("name", ["steps.parquet", "summary.json", "rewards.parquet"])
def test_a_damaged_file_of_a_finished_run_is_made_anew_from_its_steps(
    tmp_path: Path, step: LiveStep, name: str
) -> None:
    config = finished(tmp_path / "none", step, checkpoint=True)
    path = tmp_path / "none" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    train(config, ["none"], tmp_path, lambda _: None)
    assert path.read_bytes() == whole
    assert is_whole(tmp_path / "none")
    (tmp_path / "none" / "engine.json").write_bytes(b"{}")
    with pytest.raises(InputError, match=r"engine\.json"):
        train(config, ["none"], tmp_path, lambda _: None)


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
    assert second.endswith("from the last checkpoint, if there is one")


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
