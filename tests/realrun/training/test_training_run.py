"""A tiny model trained by two real engines: records, drafter training on an idle worker, and going on."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from tests.realrun.small_models import need_vllm
from tlt.realrun.config import DrafterConfig, EngineConfig, ModelConfig, TasksConfig, WorkersConfig
from tlt.realrun.models.drafter import make_head
from tlt.realrun.models.target import prepare_model
from tlt.realrun.training_config import HeadConfig, RolloutConfig, TrainConfig, UpdateConfig
from tlt.traces.common.seeds import scheduler_rng
from tlt.traces.runs.request_acceptance import read_acceptance
from tlt.traces.runs.runfolder import RunFolder, read_struct
from tltsched.drafter_choice import FallbackConfig
from tltsched.event_log import SchedulerSetup, first_difference, read, replay

pytestmark = pytest.mark.filterwarnings("ignore")  # of the engine's own libraries


def tiny(root: Path, steps: int) -> TrainConfig:
    """Prepare a tiny float32 model and head under `root`, and return the settings of a short run."""
    model = prepare_model("tiny", root / "tiny", vocab=512)
    head = make_head(model, root / "head", draft_vocab=256)
    return TrainConfig(
        steps=steps,
        model=ModelConfig(folder=str(model), name="tiny", dtype="float32"),
        drafter=DrafterConfig(folder=str(head), ks=(0, 1, 2)),
        engine=EngineConfig(
            max_running=8, max_context_tokens=160, kv_gigabytes=0.1, eager=True, temperature=1.0
        ),
        workers=WorkersConfig(count=2),
        tasks=TasksConfig(random_prompt_tokens=8),
        rollout=RolloutConfig(prompts=4, samples=4, max_response_tokens=96),
        update=UpdateConfig(learning_rate=1e-4, token_budget=512),
        head=HeadConfig(batch_tokens=256),
    )


def long_tail(root: Path, config: TrainConfig) -> str:
    """Write lengths that leave the second worker idle for most of each rollout."""
    count = config.rollout.prompts * config.rollout.samples
    rows = [
        (step, request, config.rollout.max_response_tokens if request < count // 2 else 8)
        for step in range(config.steps)
        for request in range(count)
    ]
    path = root / "lengths.parquet"
    pd.DataFrame(rows, columns=["step", "request", "response_tokens"]).to_parquet(path)
    return str(path)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_rewards(tmp_path: Path) -> None:
    need_vllm()
    from tlt.realrun.training.train import train

    def run(name: str, steps: int) -> pd.DataFrame:
        train(tiny(tmp_path, steps), ["none"], tmp_path / name, lambda _: None)
        return pd.read_parquet(tmp_path / name / "none" / "rewards.parquet")

    unbroken = run("unbroken", 3)
    run("stopped", 2)
    part = tmp_path / "stopped" / "none" / "parts" / "0002.msgpack"
    shutil.copy(part.with_name("0001.msgpack"), part)  # a step after the checkpoint, cut off by a kill
    resumed = run("stopped", 3)
    pd.testing.assert_frame_equal(resumed, unbroken)


@pytest.mark.slow
def test_an_idle_worker_trains_the_drafter_and_all_records_are_valid(tmp_path: Path) -> None:
    need_vllm()
    from tlt.realrun.training.train import train

    config = tiny(tmp_path, 3)
    rollout = msgspec.structs.replace(config.rollout, forced_lengths=long_tail(tmp_path, config))
    config = msgspec.structs.replace(config, rollout=rollout)
    train(config, ["static:2/online"], tmp_path / "run", lambda _: None)
    folder = tmp_path / "run" / "static-2-online"
    steps = RunFolder(folder).steps()
    assert steps["trained_tokens"].sum() > 0
    assert steps["drafter_version"].iloc[-1] > 0  # what was learned is served
    intervals = RunFolder(folder).intervals()
    wall_s = intervals.groupby("worker")["end_s"].max()
    booked_s = (intervals["end_s"] - intervals["start_s"]).groupby(intervals["worker"]).sum()
    assert booked_s.to_numpy() == pytest.approx(wall_s.to_numpy())  # the GPU time adds up
    assert (intervals["cause"] == "drafter_training").any()
    assert list((folder / "heads").glob("*.safetensors"))
    records = list(read((folder / "records.jsonl").read_bytes().splitlines()))
    setup = read_struct(folder / "scheduler.json", SchedulerSetup)
    again = replay(setup, records, partial(scheduler_rng, setup.seed))
    assert first_difference(records, again) is None
    counts, drafts = ["drafted_tokens", "accepted_tokens"], read_acceptance(folder)
    engine_steps = pd.read_parquet(folder / "engine_steps.parquet").groupby("step")[counts].sum()
    assert drafts is not None
    assert (drafts.groupby("step")[counts].sum() == engine_steps).all(axis=None)
    probes = pd.read_parquet(folder / "probes.parquet")
    assert set(probes["head"]) == {"initial", "serving"}
    assert msgspec.json.decode((folder / "summary.json").read_bytes())["kind"] == "measured"


@pytest.mark.slow
def test_drafts_come_without_a_model_while_the_head_is_below_break_even(tmp_path: Path) -> None:
    need_vllm()
    from tlt.realrun.training.train import train

    config = tiny(tmp_path, 2)
    rollout = msgspec.structs.replace(config.rollout, forced_lengths=long_tail(tmp_path, config))
    fallback = FallbackConfig(enabled=True, break_even_length=3.0)  # more than K = 2 can reach
    config = msgspec.structs.replace(config, rollout=rollout, fallback=fallback)
    train(config, ["static:2/online"], tmp_path / "run", lambda _: None)
    folder = tmp_path / "run" / "static-2-online"
    assert RunFolder(folder).summary().acceptance_source.endswith("without a model in steps 0, 1")
    assert RunFolder(folder).steps()["trained_tokens"].sum() > 0  # and the head learns meanwhile
