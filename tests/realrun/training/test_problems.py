"""Problems come through one door: a file or module of the user, checked; a run on fake engines asks them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from tests.realrun.byte_tokenizer import model_folder
from tests.realrun.small_models import need
from tests.realrun.steps_digest import PROMPTS, SEED, digest
from tlt.realrun.config import DrafterConfig, EngineConfig, ModelConfig, WorkersConfig
from tlt.realrun.models.target import prepare_model
from tlt.realrun.problems.load import load_problems
from tlt.realrun.training_config import RolloutConfig, TasksConfig, TrainConfig, UpdateConfig
from tltsched.errors import InputError

# A user's own problems: the last digit of a number is to be repeated.
OWN = """
from .rows_of_mine import rows

class Digits:
    def __init__(self, setup):
        self.rows = rows(setup.settings["first"])
        self.count = setup.prompts

    def prompts(self, step):
        return [[row, row + 1] for row in self.rows[step * self.count:][: self.count]]

    def score(self, step, group, response):
        right = self.rows[step * self.count + group]
        return sum(token == right for token in response) / max(len(response), 1)

    def kinds(self, step):
        return ["odd" if row % 2 else "even" for row, _ in self.prompts(step)]

def make_problems(setup):
    return Digits(setup)
"""
ROWS = "def rows(first):\n    return list(range(first, first + 8))\n"


def own(folder: Path, text: str = OWN, name: str = "my own.problems.py") -> str:
    """Write a user's module and its neighbour; returns its path."""
    folder.mkdir(exist_ok=True)
    (folder / "rows_of_mine.py").write_text(ROWS)
    (folder / name).write_text(text)
    return str(folder / name)


def config_of(root: Path, **tasks: Any) -> TrainConfig:
    """Return settings whose model has a vocabulary of 100 and nothing else."""
    model = root / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"vocab_size": 100}', encoding="utf-8")
    return TrainConfig(
        seed=SEED, model=ModelConfig(folder=str(model)), tasks=TasksConfig(**tasks),
        rollout=RolloutConfig(prompts=2),
    )  # fmt: skip


def test_a_file_of_any_name_and_its_neighbour_are_loaded_and_given_their_settings(tmp_path: Path) -> None:
    before = list(sys.path)
    module = own(tmp_path / "mine")
    problems = load_problems(config_of(tmp_path, module=module, settings={"first": 5}))
    assert problems.prompts(1) == [(7, 8), (8, 9)]
    assert problems.score(1, 0, (7, 7, 1, 1)) == 0.5
    assert sys.path == before
    assert "rows_of_mine" not in sys.modules


def test_files_of_the_same_name_do_not_meet(tmp_path: Path) -> None:
    first = own(tmp_path / "one", name="json.py")
    second = own(tmp_path / "two", OWN.replace("row + 1", "row + 2"), name="json.py")
    settings = {"first": 5}
    asked = [
        load_problems(config_of(tmp_path, module=module, settings=settings)).prompts(0)
        for module in (first, second)
    ]
    assert asked == [[(5, 6), (6, 7)], [(5, 7), (6, 8)]]
    assert not hasattr(sys.modules["json"], "make_problems")


def test_a_module_that_can_be_imported_is_taken_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "package_of_mine"
    own(place, name="problems.py")
    (place / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    config = config_of(tmp_path, module="package_of_mine.problems", settings={"first": 5})
    assert load_problems(config).prompts(0) == [(5, 6), (6, 7)]


@pytest.mark.parametrize("module", ["missing.py", "no.such.module", "json.no", "../up", "a/b.py"])
def test_a_wrong_path_or_name_is_named(tmp_path: Path, module: str) -> None:
    with pytest.raises(InputError, match=r"for tasks\.module; allowed: the path of a Python file"):
        load_problems(config_of(tmp_path, module=module))


@pytest.mark.parametrize("text", ["", "make_problems = 3\n"])
def test_a_module_without_the_function_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"without make_problems' for tasks\.module"):
        load_problems(config_of(tmp_path, module=own(tmp_path / "mine", text)))


def test_a_module_that_makes_something_else_is_named(tmp_path: Path) -> None:
    text = "def make_problems(setup):\n    return [1, 2]\n"
    with pytest.raises(InputError, match=r"got 'a list' for make_problems of .*an object with prompts"):
        load_problems(config_of(tmp_path, module=own(tmp_path / "mine", text)))


def test_a_module_that_fails_shows_its_own_error_each_time(tmp_path: Path) -> None:
    config = config_of(tmp_path, module=own(tmp_path / "mine", "raise OSError('no disk')\n"))
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            load_problems(config)


@pytest.mark.parametrize(
    ("prompts", "what"),
    [
        ("[[1]]", "1 prompts"),
        ("[[1], [2], [3]]", "3 prompts"),
        ("[[1], []]", r"\[\] for prompts\(0\) of .*, group 1"),
        ("[[100], [1]]", "token ids from 0 to 99"),
        ("[[1], ['2']]", "token ids from 0 to 99"),
        ("['one', 'two']", "token ids from 0 to 99"),
    ],
)
def test_prompts_that_are_no_rows_of_token_ids_are_named(tmp_path: Path, prompts: str, what: str) -> None:
    text = OWN.replace("return [[row, row + 1]", f"return {prompts} or [[row, row + 1]")
    module = own(tmp_path / "mine", text)
    with pytest.raises(InputError, match=what):
        load_problems(config_of(tmp_path, module=module, settings={"first": 1})).prompts(0)


def test_kinds_of_prompts_are_one_a_group_or_left_out(tmp_path: Path) -> None:
    settings = {"first": 5}
    told = load_problems(config_of(tmp_path, module=own(tmp_path / "a"), settings=settings))
    assert told.kinds(0) == ("odd", "even")  # type: ignore[attr-defined]
    silent = own(tmp_path / "b", OWN.replace("def kinds", "def other"))
    assert load_problems(config_of(tmp_path, module=silent, settings=settings)).kinds(0) == ()  # type: ignore[attr-defined]
    short = own(tmp_path / "c", OWN.replace("self.prompts(step)]", "self.prompts(step)[:1]]"))
    with pytest.raises(InputError, match="1 kinds"):
        load_problems(config_of(tmp_path, module=short, settings=settings)).kinds(0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("reward", ["None", "float('nan')", "'1'"])
def test_a_reward_that_is_no_number_is_named(tmp_path: Path, reward: str) -> None:
    module = own(tmp_path / "mine", OWN.replace("return sum(", f"return {reward} if group else sum("))
    problems = load_problems(config_of(tmp_path, module=module, settings={"first": 1}))
    assert problems.score(0, 0, (1, 2)) == 0.5
    with pytest.raises(InputError, match=r"score\(0, 1\) of .* a finite number"):
        problems.score(0, 1, (1,))


def test_settings_that_contradict(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'tasks\.prompts and tasks\.random_prompt_tokens' for tasks;"):
        TasksConfig(prompts="a.jsonl", random_prompt_tokens=3)
    with pytest.raises(InputError, match=r"tasks\.settings; allowed: none without tasks\.module"):
        TasksConfig(settings={"names": ["collatz"]})
    with pytest.raises(InputError, match=r"got 'no problems' for tasks; allowed: tasks\.module"):
        load_problems(config_of(tmp_path))


def test_settings_of_a_module_travel_as_messages(tmp_path: Path) -> None:
    config = config_of(tmp_path, module="a.py", settings={"names": ["a", "b"], "deep": {"share": 0.5}})
    for codec in (msgspec.msgpack, msgspec.json):
        assert codec.decode(codec.encode(config), type=TrainConfig) == config


def test_random_prompts_follow_from_seed_and_step_and_reward_the_lower_half(tmp_path: Path) -> None:
    problems = load_problems(config_of(tmp_path, random_prompt_tokens=7))
    assert [len(prompt) for prompt in problems.prompts(4)] == [7, 7]
    again = load_problems(config_of(tmp_path, random_prompt_tokens=7))
    assert problems.prompts(4) == again.prompts(4)
    assert problems.prompts(4) != problems.prompts(5)
    assert problems.score(0, 0, (0, 49, 50, 99)) == 0.5
    assert problems.score(0, 0, (1, 2)) == 1
    assert problems.score(0, 0, ()) == 0


def test_random_prompts_and_their_rewards_stay_what_they_were(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    config = TrainConfig(
        seed=SEED, model=ModelConfig(folder=str(folder)), tasks=TasksConfig(random_prompt_tokens=7),
        rollout=RolloutConfig(prompts=PROMPTS),
    )  # fmt: skip
    expected = "0a5d675fd4787dac"  # made by the code before this module
    assert digest(load_problems(config), folder, lambda *_: None) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, in its own processes too
def test_own_problems_are_trained_on(tmp_path: Path) -> None:
    need("torch", "transformers", "safetensors")
    from tlt.realrun.training.train import train

    config = TrainConfig(
        steps=2,
        model=ModelConfig(
            folder=str(prepare_model("tiny", tmp_path / "tiny", vocab=512)), name="tiny", dtype="float32"
        ),
        drafter=DrafterConfig(ks=(0,)),
        engine=EngineConfig(max_running=8, max_context_tokens=64, temperature=1.0),
        workers=WorkersConfig(count=2),
        tasks=TasksConfig(module=own(tmp_path / "mine"), settings={"first": 5}),
        rollout=RolloutConfig(prompts=4, samples=2, max_response_tokens=16),
        update=UpdateConfig(token_budget=256, attention="masked"),
    )
    train(config, ["none"], tmp_path / "run", lambda _: None, factory="tests.realrun.fakes:make_engine")
    rewards = pd.read_parquet(tmp_path / "run" / "none" / "rewards.parquet")
    prompts = pd.read_parquet(tmp_path / "run" / "none" / "prompts.parquet")
    assert prompts["kind"].tolist() == ["odd", "even"] * 4
    # The fake engine says 7 and nothing else; rows 5 to 12 are asked, two responses each.
    assert rewards["reward"].tolist() == [0, 0, 0, 0, 1, 1, 0, 0] + [0] * 8
    assert rewards["step"].tolist() == [0] * 8 + [1] * 8
