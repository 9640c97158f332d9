"""Questions with one right answer: how a model is asked, how its answer is read, and a user's file of them.

The answer is what follows the last "Answer:" of the response, to the end of that line: the form that the
prompt asks for. A response without one, or cut before it, is worth nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from tlt.realrun.engine import vllm_compat
from tlt.realrun.problems.protocol import ProblemsSetup
from tlt.realrun.prompts import Prompt
from tlt.traces.common.seeds import PROBLEMS, generator
from tltsched.errors import InputError

SYSTEM = 'Solve the problem step by step. End with a line "Answer: " and the result.'
MARK = "Answer:"
_ANSWER = re.compile(re.escape(MARK) + r"[ \t]*([^\n]*)")


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a model folder; raises InputError if it has none."""
    if not (folder / "tokenizer.json").is_file():
        fix = "prepare SmolLM2-135M, or set tasks.random_prompt_tokens"
        raise InputError("model.folder", str(folder), "a model folder with a tokenizer", fix)
    vllm_compat.hide_cuda_companions()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def chat(question: str) -> list[dict[str, str]]:
    """Return the conversation that asks a question."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def encode(tokenizer: Any, question: str) -> Prompt:
    """Return the prompt of a question in the tokenizer's own chat template, as token ids [tokens]."""
    return tuple(tokenizer.apply_chat_template(chat(question), add_generation_prompt=True, return_dict=False))


def decode(tokenizer: Any, response: Sequence[int]) -> str:
    """Return a response as text, without special tokens."""
    return str(tokenizer.decode(response, skip_special_tokens=True))


def parse_answer(text: str) -> str:
    """Return the answer in a response, without a full stop at its end; "" if there is none."""
    answers = _ANSWER.findall(text)
    return answers[-1].strip().removesuffix(".").strip() if answers else ""


def exact(right: str, answer: str) -> float:
    """Return 1 for the same text."""
    return float(answer == right.strip())


def number(right: str, answer: str) -> float:
    """Return 1 for the same number, however it is written: 1,000.0 is 1000."""
    try:
        return float(Decimal(answer.replace(",", "")) == Decimal(right.replace(",", "")))
    except InvalidOperation:
        return 0.0


SCORERS: dict[str, Callable[[str, str], float]] = {"exact": exact, "number": number}


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a file of questions."""

    question: str
    answer: str
    scorer: Literal["number", "exact"]

    def score(self, text: str) -> float:
        """Return the reward of a decoded response."""
        answer = parse_answer(text)
        return SCORERS[self.scorer](self.answer, answer) if answer else 0.0


def read_questions(path: Path) -> list[Question]:
    """Read JSONL lines of question, answer and scorer; raises InputError that names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("tasks.prompts", str(path), "a readable JSONL file", str(error)) from None
    questions = []
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            questions.append(msgspec.json.decode(line, type=Question))
        except msgspec.DecodeError as error:
            allowed = '{"question": text, "answer": text, "scorer": "number" or "exact"} in each line'
            fix = f"correct line {place}: {error}"
            raise InputError("tasks.prompts", f"{path}, line {place}", allowed, fix) from None
    if not questions:
        raise InputError("tasks.prompts", f"{path} without lines", "at least one question", "add one")
    return questions


class QuestionsOfFile:
    """The user's questions in a shuffled order, each once before any comes again."""

    def __init__(self, setup: ProblemsSetup, path: Path) -> None:
        """Raises InputError for a bad file, or a model folder without a tokenizer."""
        self._setup = setup
        self._questions = read_questions(path)
        self._tokenizer = load_tokenizer(setup.model_folder)

    def prompts(self, step: int) -> list[Prompt]:
        """Return the prompts of a step."""
        return [
            encode(self._tokenizer, self._at(step, group).question) for group in range(self._setup.prompts)
        ]

    def score(self, step: int, group: int, response: Sequence[int]) -> float:
        """Return 1 for the right answer, else 0."""
        return self._at(step, group).score(decode(self._tokenizer, response))

    def _at(self, step: int, group: int) -> Question:
        turn, place = divmod(step * self._setup.prompts + group, len(self._questions))
        return self._questions[shuffled(len(self._questions), self._setup.seed, turn)[place]]


@lru_cache(maxsize=4)
def shuffled(count: int, seed: int, turn: int) -> tuple[int, ...]:
    """Return the places 0 to `count` in the order of one turn through a file."""
    return tuple(generator(seed, PROBLEMS, turn).permutation(count).tolist())
