"""Rewards from decoded text."""

from __future__ import annotations

import pytest

from tests.realrun.small_models import need
from tlt.realrun.training.tasks.scoring import SCORERS, parse_answer, score, score_tokens
from tlt.realrun.training.tasks.tasks import Problem, Scorer, make_problems
from tlt.realrun.training_config import TasksConfig


def _problem(scorer: Scorer, answer: str) -> Problem:
    return Problem(question="?", answer=answer, task="own", scorer=scorer)


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
def test_scorers(scorer: Scorer, right: str, text: str, reward: float) -> None:
    assert score(_problem(scorer, right), text) == reward


def test_a_family_of_reasoning_gym_scores_its_own_answers() -> None:
    need("reasoning_gym")
    config = TasksConfig(names=("gsm_symbolic", "number_sorting"))
    for problem in make_problems(config, seed=0, step=0, count=4):
        assert score(problem, f"Answer: {problem.answer}") == 1
        assert score(problem, "Answer: none") < 1


def test_every_scorer_has_a_name() -> None:
    assert sorted(SCORERS) == ["exact", "number", "reasoning_gym"]


def test_tokens_of_the_lower_half_are_worth_something() -> None:
    assert score_tokens([0, 4, 5, 9], vocab=10) == 0.5
    assert score_tokens([1, 2], vocab=10) == 1
    assert score_tokens([], vocab=10) == 0
