"""Rewards: what a response is worth, 0 to 1.

The answer is what follows the last "Answer:" of the response, to the end of that line: the form that the
prompt asks for and that warm-up teaches. A response without one, or cut before it, is worth nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation

from tlt.realrun.training.tasks.tasks import Problem, gym_score

MARK = "Answer:"
_ANSWER = re.compile(re.escape(MARK) + r"[ \t]*([^\n]*)")


def score(problem: Problem, text: str) -> float:
    """Return the reward of a decoded response."""
    answer = parse_answer(text)
    return SCORERS[problem.scorer](problem, answer) if answer else 0.0


def score_tokens(tokens: Sequence[int], vocab: int) -> float:
    """Return the share of token ids in the lower half of the vocabulary; 0 without tokens.

    It stands in for a task where a model has no tokenizer: easy to learn, so that training shows a signal.
    """
    return sum(token < vocab // 2 for token in tokens) / len(tokens) if tokens else 0.0


def parse_answer(text: str) -> str:
    """Return the answer in a response, without a full stop at its end; "" if there is none."""
    found = _ANSWER.findall(text)
    return found[-1].strip().removesuffix(".").strip() if found else ""


def exact(problem: Problem, answer: str) -> float:
    """Return 1 for the same text."""
    return float(answer == problem.answer.strip())


def number(problem: Problem, answer: str) -> float:
    """Return 1 for the same number, however it is written: 1,000.0 is 1000."""
    try:
        return float(Decimal(answer.replace(",", "")) == Decimal(problem.answer.replace(",", "")))
    except InvalidOperation:
        return 0.0


def reasoning_gym(problem: Problem, answer: str) -> float:
    """Return what the problem's own family says."""
    return gym_score(problem.task, answer, problem)


SCORERS: dict[str, Callable[[Problem, str], float]] = {
    "exact": exact,
    "number": number,
    "reasoning_gym": reasoning_gym,
}
