"""The reward that the README shows runs as it is written, and the settings it names are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from examples.rl_smollm2.settings import TaskSettings, WarmUpFile
from tests.realrun.byte_tokenizer import model_folder, tokens
from tlt.realrun.problems.load import load_problems
from tlt.realrun.training_config import TrainConfig
from tlt.traces.common.settings import convert, merge, settings_of

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "rl_smollm2"


def block(language: str) -> str:
    """Return the only block of a language in the README."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    return str(text)


@pytest.mark.slow
def test_the_reward_of_the_readme_runs(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    code = block("python")
    assert len(code.splitlines()) <= 20
    settings = tomllib.loads(block("toml"))
    module = tmp_path / settings["tasks"]["module"]
    module.write_text(code)
    own = {"model": {"folder": str(folder)}, "tasks": {"module": str(module)}, "rollout": {"prompts": 3}}
    problems = load_problems(convert(merge(settings, own), TrainConfig, "tlt real train-fields"))
    asked = [problems.prompts(step) for step in range(2)]
    assert tokens(folder, "Explain window in few words:") == tuple(asked[1][0])
    assert [len(prompts) for prompts in asked] == [3, 3]
    assert problems.score(0, 0, tokens(folder, "a stream of water")) == 1
    assert problems.score(0, 0, tokens(folder, "water " * 21)) == 0
    assert problems.score(0, 0, ()) == 0


def test_the_settings_of_the_measured_runs_are_valid() -> None:
    settings = settings_of(FOLDER / "train-h100.toml", ())
    train = convert(settings, TrainConfig, "tlt real train-fields")
    assert FOLDER.joinpath("../..", train.tasks.module).resolve() == FOLDER / "problems.py"
    assert msgspec.convert(train.tasks.settings, TaskSettings).difficulty_largest == 200
    both = convert(merge(settings, {"warm_up": {"tokens": 7}}), WarmUpFile, "")
    assert (both.warm_up.tokens, both.tasks) == (7, train.tasks)
