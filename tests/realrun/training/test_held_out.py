"""What a head is worth on held-out prompts, measured on an engine with a known clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.realrun.fakes import PROMPT_TOKEN_S, REQUEST_S, STEP_S, FakeEngine
from tlt.realrun.config import DrafterConfig, EngineConfig, ModelConfig, RealConfig, TasksConfig
from tlt.realrun.models.target import prepare_model
from tlt.realrun.training_config import RolloutConfig, TrainConfig

held_out = pytest.importorskip("tlt.realrun.training.head.held_out")
responses = pytest.importorskip("tlt.realrun.training.head.responses")

ENGINES: list[FakeEngine] = []


def make_engine(config: RealConfig, drafting: bool) -> FakeEngine:
    """Return an engine, the plain one first."""
    engine = FakeEngine(config.engine.max_running, max(config.drafter.ks) if drafting else 0)
    ENGINES.append(engine)
    return engine


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    ENGINES.clear()
    monkeypatch.setattr(responses, "perf_counter", lambda: sum(engine.now_s for engine in ENGINES))
    model = prepare_model("tiny", tmp_path / "tiny", vocab=512)
    return TrainConfig(
        model=ModelConfig(folder=str(model), name="tiny", dtype="float32"),
        drafter=DrafterConfig(ks=(0, 2)),
        engine=EngineConfig(max_running=8),
        tasks=TasksConfig(random_prompt_tokens=8),
        rollout=RolloutConfig(prompts=3, samples=2, max_response_tokens=40),
    )


def measure(config: TrainConfig, batches: list[int], prompts: int) -> list[Any]:
    found = held_out.measure_head(
        config, batches=batches, prompts=prompts, repeats=3, factory=f"{__name__}:make_engine"
    )
    return [row for rows in found for row in rows]


def test_whole_batches_are_asked_and_every_k_generates_the_same_tokens(config: TrainConfig) -> None:
    rows = measure(config, [1, 4], 5)
    # 5 prompts: five batches of 1, two whole batches of 4; the engine's responses are all cut at 40 tokens.
    assert [(row.batch, row.k, row.responses, row.tokens) for row in rows] == [
        (1, 0, 5, 200), (1, 2, 5, 200), (4, 0, 8, 320), (4, 2, 8, 320),
    ]  # fmt: skip
    assert "tokens/s against" in rows[1].describe()


def test_each_batch_is_there_before_the_next_is_asked(config: TrainConfig) -> None:
    found = held_out.measure_head(
        config, batches=[4, 1], prompts=4, repeats=1, factory=f"{__name__}:make_engine"
    )
    first = next(found)
    spent_s = sum(engine.now_s for engine in ENGINES)
    assert {row.batch for row in first} == {4}
    assert {row.batch for row in next(found)} == {1}
    assert sum(engine.now_s for engine in ENGINES) > spent_s


def test_speeds_are_tokens_over_the_engines_own_seconds(config: TrainConfig) -> None:
    rows = measure(config, [1], 2)
    off, drafting = rows
    # At K = 0 both engines have one law of time, so that the ratio is 1 in every repeat.
    assert off.speedup == pytest.approx(1.0)
    assert off.spread == pytest.approx((1.0, 1.0))
    assert off.acceptance_with_bonus == 1.0
    assert off.tokens_per_s == pytest.approx(off.plain_tokens_per_s)
    # A prefill of 8 tokens that emits one and 39 decoding engine steps, of a batch of one each.
    response_s = 8 * PROMPT_TOKEN_S + 39 * (STEP_S + REQUEST_S)
    assert off.plain_tokens_per_s == pytest.approx(40 / response_s)
    assert drafting.spread[0] <= drafting.speedup <= drafting.spread[1]
    assert drafting.speedup == pytest.approx(drafting.tokens_per_s / off.plain_tokens_per_s, rel=0.1)
    assert 1.0 < drafting.acceptance_with_bonus <= 3.0
