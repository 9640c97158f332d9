"""Engines spread over two ranks, on the CPU: each rank is a process, and needs all that an engine needs."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from evidence.fire.processes import orphaned, shared_memory
from tests.realrun.small_models import PROMPT_TOKENS, need_vllm, tiny_config
from tests.realrun.test_replay import check_run
from tests.realrun.test_vllm_weights import _generate, _moved, _read
from tlt.realrun.config import PhasesConfig, RealConfig, WorkersConfig, WorkloadConfig
from tlt.realrun.driver.engine_record import EngineRecord
from tlt.realrun.engine.vllm_engine import make_engine
from tlt.realrun.replay.replay import replay
from tlt.realrun.workers.process import worker_environment
from tlt.traces.runs.runfolder import RunFolder, read_struct
from tltsched.event_log import read
from tltsched.events import DecisionEnded

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

TP = 2
SURVIVAL = (0.6, 0.36, 0.24, 0.15)


def spread(config: RealConfig) -> RealConfig:
    """Return the settings with one engine over two cores; skips, with the reason, where there are fewer."""
    cores = len(os.sched_getaffinity(0))
    if cores < TP:
        pytest.skip(f"{TP} ranks need {TP} cores and this machine has {cores}")
    return msgspec.structs.replace(config, workers=WorkersConfig(count=1, tp=TP))


def test_ranks_accept_at_the_given_rates_and_generate_what_is_forced(tmp_path: Path) -> None:
    """Ranks without the repairs of `vllm_compat.repair` cannot accept at given rates."""
    need_vllm()
    config = msgspec.structs.replace(
        spread(tiny_config(tmp_path, survival=SURVIVAL, temperature=1.0, max_running=16)),
        workload=WorkloadConfig(requests=16, rollouts=1, longest_tokens=180, prompt_tokens=PROMPT_TOKENS),
        phases=PhasesConfig(weight_sync=True),
    )
    out = tmp_path / "out"
    replay(config, ("none", "static:2"), out, lambda _: None)
    assert read_struct(out / "engine.json", EngineRecord).device.endswith("2 threads (TP 2)")
    lengths = pd.read_parquet(out / "lengths.parquet")["response_tokens"].tolist()
    for run in ("none", "static-2"):
        check_run(out / run, 1)
        folder = RunFolder(out / run)
        assert (folder.summary().workers, folder.summary().gpus_per_worker) == (1, TP)
        assert folder.responses()["response_tokens"].tolist() == lengths
        assert "weight_sync" in set(folder.intervals()["cause"])
    records = read((out / "static-2" / "records.jsonl").read_bytes().splitlines())
    intervals = [record.body for record in records if isinstance(record.body, DecisionEnded)]
    accepted = np.sum([interval.accepted_by_position for interval in intervals], axis=0)
    steps = pd.read_parquet(out / "static-2" / "engine_steps.parquet")
    offers = steps["drafted_tokens"].sum() / 2
    assert offers > 500
    # Four standard deviations: one run in thousands falls outside, and the seed is fixed.
    assert np.abs(accepted / offers - SURVIVAL[:2]).max() < 4 * np.sqrt(0.25 / offers)


def test_two_ranks_write_what_one_engine_writes_and_take_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy, in float32: text and drafts are the same, with new weights and with the old ones again."""
    need_vllm()
    config = tiny_config(tmp_path)
    two = spread(config)
    policy, memory = _read(config.model.folder), shared_memory()
    moved = _moved(policy)
    one = make_engine(config, speculating=True)
    before = _generate(one)
    one.load_policy(moved, 1)
    after = _generate(one)
    one.close()
    assert after[0] != before[0]
    for name, value in worker_environment(two, 0).items():
        monkeypatch.setenv(name, value)
    engine = make_engine(two, speculating=True)
    try:
        assert _generate(engine) == before
        engine.load_policy(moved, 1)
        assert _generate(engine) == after
        engine.load_policy(policy, 2)
        assert _generate(engine) == before
    finally:
        engine.close()
    assert orphaned(shared_memory() - memory) == []
