"""Forced lengths of a training: a table of a run folder, or refused."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tlt.realrun.config import ModelConfig, TasksConfig
from tlt.realrun.training.requests import RequestSource
from tlt.realrun.training_config import RolloutConfig, TrainConfig
from tltsched.errors import InputError


@pytest.mark.parametrize(
    ("tokens", "told"),
    [([5, 0], "0 in .*a token or more"), ([5, 2**40], "32 bits"), (["a", "b"], "check it")],
)
def test_forced_lengths_that_cannot_be_are_refused(tmp_path: Path, tokens: list[object], told: str) -> None:
    path = tmp_path / "lengths.parquet"
    pd.DataFrame({"step": [0, 0], "request": [0, 1], "response_tokens": tokens}).to_parquet(path)
    (tmp_path / "config.json").write_text('{"vocab_size": 8}')
    config = TrainConfig(
        steps=1,
        model=ModelConfig(folder=str(tmp_path)),
        tasks=TasksConfig(random_prompt_tokens=4),
        rollout=RolloutConfig(prompts=1, samples=2, max_response_tokens=9, forced_lengths=str(path)),
    )
    with pytest.raises(InputError, match=told):
        RequestSource(config)
