"""Seconds that are given for the whole cluster, where a share of it trains: they grow, and are bracketed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tlt.analysis.comparison.compare import ComparisonTable
from tlt.analysis.comparison.compare import compare as table_of
from tlt.analysis.load import load_runs
from tlt.sim import studies
from tlt.sim.config import Config, PhaseConfig, resolve
from tlt.sim.model.phases import given_on_trainers, phases_of
from tlt.sim.policy_set import policy_set
from tlt.sim.search.space import Space, candidates
from tlt.sim.workload import load_workload
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tltsched.errors import InputError
from tltsched.schedules import parse_schedule

UPDATE_S = 430.0
# the question of a user with 16 GPUs whose update takes 430 s on all of them
SETTINGS: dict[str, Any] = {
    "run": {"records": False, "acceptance": False},
    "hardware": {"gpus": 16, "tp": 2, "gpu": "H20", "model": "Qwen2.5-7B"},
    "cost": {"source": "roofline"},
    "workload": {"steps": 6, "prompts_per_step": 16, "samples_per_prompt": 4, "max_response_tokens": 8192,
                 "prompt_tokens": 500},
    "phases": {"reward_s": 0.0, "logprob_s": 0.0, "policy_update_s": UPDATE_S, "weight_sync_s": 1.5},
}  # fmt: skip


def compared(folder: Path, policies: list[str], draws: int = 0, **phases: float) -> ComparisonTable:
    drawn = np.random.default_rng(0).lognormal(6.4, 1.0, 400).clip(8, 8192).astype(int).tolist()
    path = folder / "lengths.csv"
    path.write_text("\n".join(["response_tokens", *map(str, drawn)]) + "\n", encoding="utf-8")
    settings = SETTINGS | {"workload": SETTINGS["workload"] | {"lengths": str(path)}}
    settings |= {"phases": SETTINGS["phases"] | phases}
    studies.compare(policy_set(settings, policies), folder / "out", draws, studies.silent)
    return table_of(load_runs(folder / "out"))


@pytest.mark.parametrize("draws", [0, 8])
def test_a_share_of_the_cluster_needs_longer_and_the_interval_says_between_what(
    draws: int, tmp_path: Path
) -> None:
    none, quarter, half, most = compared(
        tmp_path, ["none", *(f"none@bounded_async:{share}" for share in (0.25, 0.5, 0.75))], draws
    ).rows
    for row, share in ((quarter, 0.25), (half, 0.5), (most, 0.75)):
        # a step is no shorter than its update and weight sync: of the share, or as given
        assert row.mean_step_s == pytest.approx(UPDATE_S / share + 1.5, rel=0.02)
        assert row.speedup.value < 1.0
        assert row.speedup.interval is not None
        low, high = row.speedup.interval
        assert low <= row.speedup.value < high
        assert high == pytest.approx(none.mean_step_s / (UPDATE_S + 1.5), rel=0.03)
        assert any(f"{1 / share:.3g} times as long" in warning for warning in row.warnings)
    assert not [each for each in none.warnings[1:] if "docs/regimes.md" not in each]


def test_seconds_of_the_trainers_themselves_are_taken_as_given(tmp_path: Path) -> None:
    _, half = compared(tmp_path, ["none", "none@bounded_async:0.5"], trainer_scaling=0.0).rows
    assert half.mean_step_s == pytest.approx(UPDATE_S + 1.5, rel=0.02)
    assert not any("times as long" in warning for warning in half.warnings)


def test_only_what_the_trainers_do_grows() -> None:
    given = PhaseConfig(
        logprob_s=8.0, by_step_s={"policy_update": (40.0,), "reward": (3.0,), "other": (2.0,)}
    )
    assert given_on_trainers(given) == ("logprob", "policy_update")
    on = phases_of(given, model_shape("Qwen2.5-7B"), gpu_spec("H100"), 8, 2)
    assert [on.seconds(phase, 1, 1) for phase in ("logprob", "policy_update", "reward", "other")] == [
        32.0, 160.0, 3.0, 2.0,
    ]  # fmt: skip
    assert given_on_trainers(Config().phases) == ()


def test_the_share_can_be_named() -> None:
    named = parse_schedule("bounded_async:0.4")
    assert getattr(named, "trainer_share", None) == 0.4
    for wrong in ("bounded_async:1", "bounded_async:x", "synchronous:0.5", "bounded_async:"):
        with pytest.raises(InputError, match="bounded_async:SHARE"):
            parse_schedule(wrong)


def test_a_plan_takes_given_seconds_to_other_clusters_by_their_operations(tmp_path: Path) -> None:
    """430 s of update on 16 H20 are 860 s on 8 of them, not 430: fewer GPUs train for longer."""
    path = tmp_path / "lengths.csv"
    path.write_text("response_tokens\n" + "100\n" * 64, encoding="utf-8")
    settings = SETTINGS | {"workload": SETTINGS["workload"] | {"lengths": str(path)}}
    space = Space(gpus_budget=16, gpus=("H20", "H100"), tp=(2,), engines=(4, 8), schedules=("synchronous",),
                  policies=("none",))  # fmt: skip
    config = resolve(settings, "none")
    found, _ = candidates(settings, space, load_workload(config.workload, 0))
    given = {(one.design.gpu, one.design.gpus): one.config.phases.policy_update_s for one in found}
    faster = gpu_spec("H20").bf16_flops / gpu_spec("H100").bf16_flops
    assert given == {
        ("H20", 16): UPDATE_S, ("H20", 8): pytest.approx(2 * UPDATE_S),
        ("H100", 16): pytest.approx(UPDATE_S * faster), ("H100", 8): pytest.approx(2 * UPDATE_S * faster),
    }  # fmt: skip
