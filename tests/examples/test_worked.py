"""Worked solutions are right, line by line."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from examples.rl_smollm2.expressions import apply
from examples.rl_smollm2.families import FAMILIES, Problem, make_step, score
from examples.rl_smollm2.settings import TaskSettings
from examples.rl_smollm2.worked import WORKED, require_worked, solve
from tests.realrun.small_models import need
from tltsched.errors import InputError

OPERATION = re.compile(r"^(-?\d+) ([-+*/]) (-?\d+) = (-?\d+)$", re.MULTILINE)


def _problem(task: str, answer: int, **facts: object) -> Problem:
    return Problem(
        question="?", answer=str(answer), task=task, scorer="number",
        metadata=msgspec.json.encode(facts).decode(),
    )  # fmt: skip


@pytest.mark.parametrize("task", WORKED)
def test_solutions_reach_the_familys_own_answer(task: str) -> None:
    need("reasoning_gym")
    rng = np.random.default_rng(0)
    for difficulty in (1, 3, 7, 15, 40, 120):
        for _ in range(20):
            problem = FAMILIES[task](difficulty, rng)
            text = solve(problem)
            assert text.endswith(f"\nAnswer: {problem.answer}")
            assert score(problem, text) == 1
            for left, operator, right, value in OPERATION.findall(text):
                assert apply(int(left), operator, int(right)) == int(value), text


def test_every_default_family_has_solutions() -> None:
    require_worked(TaskSettings().names)
    assert set(WORKED) == set(FAMILIES)
    with pytest.raises(InputError, match=r"'gsm_symbolic' for tasks\.settings\.names"):
        require_worked(("chain_sum", "gsm_symbolic"))


def test_lengths_spread_widely() -> None:
    need("reasoning_gym")
    lengths = np.array([len(solve(problem)) for problem in make_step(TaskSettings(), 0, 0, 1000)])
    median, high = np.percentile(lengths, (50, 95))
    assert high > 4 * median
    assert lengths.max() > 8 * median


def test_running_totals() -> None:
    assert solve(_problem("chain_sum", -1, expression="4 + 3 - 8")).splitlines() == [
        "4 + 3 = 7",
        "7 - 8 = -1",
        "Answer: -1",
    ]


def test_one_operation_at_a_time() -> None:
    assert solve(_problem("basic_arithmetic", -271, expression="5 - ( 2 + 10 ) * 23")).splitlines() == [
        "2 + 10 = 12",
        "= 5 - 12 * 23",
        "12 * 3: 2*3+0=6, 1*3+0=3 -> 36",
        "12 * 20: 2*2+0=4, 1*2+0=2 -> 240",
        "36 + 240 = 276",
        "12 * 23 = 276",
        "= 5 - 276",
        "5 - 276 = -271",
        "= -271",
        "Answer: -271",
    ]


def test_long_multiplication_carries_and_skips_zeros() -> None:
    assert solve(_problem("products", 16_968, expression="56 * 303")).splitlines() == [
        "56 * 3: 6*3+0=18, 5*3+1=16 -> 168",
        "56 * 300: 6*3+0=18, 5*3+1=16 -> 16800",
        "168 + 16800 = 16968",
        "56 * 303 = 16968",
        "Answer: 16968",
    ]
    assert solve(_problem("products", 0, expression="0 * 7")).splitlines() == ["0 * 7 = 0", "Answer: 0"]


def test_isolating_the_unknown() -> None:
    assert solve(
        _problem("simple_equations", 12, equation="39 - 150*x = -1761", variable="x")
    ).splitlines() == [
        "39 - 150*x = -1761",
        "-150*x = -1761 - 39",
        "-150*x = -1800",
        "150*x = 1800",
        "x = 1800 / 150",
        "180: 1 * 150 = 150, 180 - 150 = 30",
        "300: 2 * 150 = 300, 300 - 300 = 0",
        "x = 12",
        "Answer: 12",
    ]
    assert solve(_problem("simple_equations", 4, equation="x - 5 = -1", variable="x")).splitlines() == [
        "x - 5 = -1",
        "x = -1 + 5",
        "x = 4",
        "Answer: 4",
    ]


def test_counted_numbers() -> None:
    assert solve(_problem("collatz", 4, start=16)).splitlines() == [
        "1: 8",
        "2: 4",
        "3: 2",
        "4: 1",
        "Answer: 4",
    ]


def test_a_wrong_answer_is_not_taught() -> None:
    with pytest.raises(AssertionError):
        solve(_problem("collatz", 5, start=16))
