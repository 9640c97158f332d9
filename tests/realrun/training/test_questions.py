"""Answers are read and compared as the prompt asks for them; a file of questions says which line is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from tests.realrun.byte_tokenizer import model_folder
from tests.realrun.steps_digest import PROMPTS, SEED, digest
from tlt.realrun.config import ModelConfig
from tlt.realrun.problems.load import load_problems
from tlt.realrun.problems.protocol import ProblemsSetup
from tlt.realrun.problems.questions import (
    SCORERS,
    Question,
    QuestionsOfFile,
    decode,
    encode,
    load_tokenizer,
    parse_answer,
    read_questions,
)
from tlt.realrun.training_config import RolloutConfig, TasksConfig, TrainConfig
from tltsched.errors import InputError


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("1 + 1 = 2\nAnswer: 2", "2"),
        ("Answer: 3\nNo.\nAnswer: 2\nSo it is.", "2"),  # the last one counts
        ("The Answer:  two.", "two"),
        ("Answer:\n2", ""),
        ("1 + 1 = 2", ""),
        ("", ""),
    ],
)
def test_the_answer_in_a_response(text: str, answer: str) -> None:
    assert parse_answer(text) == answer


@pytest.mark.parametrize(
    ("scorer", "right", "text", "reward"),
    [
        ("number", "1000", "Answer: 1,000.0", 1),
        ("number", "1000", "Answer: 100", 0),
        ("number", "1000", "Answer: 1000 or so", 0),
        ("number", "1000", "1000", 0),
        ("number", "-5", "Answer: -5.", 1),
        ("exact", "a blue whale", "Answer: a blue whale", 1),
        ("exact", "a blue whale", "Answer: blue whale", 0),
        ("number", "5", "Answer: NaN", 0),
    ],
)
def test_scorers(scorer: Literal["number", "exact"], right: str, text: str, reward: float) -> None:
    assert Question("?", right, scorer).score(text) == reward


def test_every_scorer_has_a_name() -> None:
    assert sorted(SCORERS) == ["exact", "number"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"question": "1 + 1?", "answer": "2"}', "scorer"),
        ('{"question": "1 + 1?", "answer": "2", "scorer": "guess"}', "guess"),
        ("{", "truncated"),
    ],
)
def test_a_bad_line_of_own_prompts_is_named(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"question": "a", "answer": "b", "scorer": "exact"}\n\n' + line + "\n")
    with pytest.raises(InputError, match="line 3") as error:
        read_questions(path)
    assert what in str(error.value)


@pytest.mark.parametrize("content", [None, "\n"])
def test_prompts_that_are_missing_or_empty(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"tasks\.prompts"):
        read_questions(path)


def test_own_prompts_come_once_before_any_comes_again(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    tokenizer = load_tokenizer(folder)
    path = tmp_path / "prompts.jsonl"
    lines = [{"question": f"q{place}", "answer": "1", "scorer": "number"} for place in range(6)]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    problems = QuestionsOfFile(ProblemsSetup(model_folder=folder, seed=5, prompts=4), path)
    texts = [decode(tokenizer, prompt) for step in range(3) for prompt in problems.prompts(step)]
    asked = [match for text in texts for match in re.findall(r"q\d", text)]
    assert sorted(asked[:6]) == sorted(asked[6:]) == [f"q{place}" for place in range(6)]
    assert asked[:6] != asked[6:]


def test_a_model_is_told_the_form_of_the_answer() -> None:
    class Tokenizer:
        def apply_chat_template(self, messages: list[dict[str, str]], **settings: bool) -> list[int]:
            assert settings == {"add_generation_prompt": True, "return_dict": False}
            return [len(message["content"]) for message in messages if "Answer: " in message["content"]]

    assert len(encode(Tokenizer(), "1 + 1?")) == 1


def test_prompts_and_rewards_of_a_file_stay_what_they_were(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    tokenizer = load_tokenizer(folder)
    path = tmp_path / "own.jsonl"
    lines = [Question(f"What is {i} + {i}?", str(2 * i), "number" if i % 2 else "exact") for i in range(5)]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    problems = load_problems(
        TrainConfig(
            seed=SEED, model=ModelConfig(folder=str(folder)), tasks=TasksConfig(prompts=str(path)),
            rollout=RolloutConfig(prompts=PROMPTS),
        )
    )  # fmt: skip

    def right(step: int, group: int) -> str:
        found = re.search(r"What is (\d)", decode(tokenizer, problems.prompts(step)[group]))
        assert found
        return str(2 * int(found[1]))

    assert digest(problems, folder, right) == "fee4cea9b361b760"  # made by the code before this module


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.folder; allowed: a model folder with a tokenizer"):
        load_tokenizer(tmp_path)
