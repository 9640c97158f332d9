"""Problems follow from seed, stream, step and index, and are asked and rewarded as ever."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.rl_smollm2.expressions import NotWholeError, reductions
from examples.rl_smollm2.families import (
    FAMILIES,
    HELD_OUT,
    RL,
    WARM_UP,
    Problem,
    collatz_steps,
    draw_difficulty,
    make_problem,
    make_step,
    score,
)
from examples.rl_smollm2.problems import make_problems
from examples.rl_smollm2.settings import TaskSettings
from tests.realrun.byte_tokenizer import model_folder
from tests.realrun.small_models import need
from tests.realrun.steps_digest import PROMPTS, SEED, digest
from tlt.realrun.problems.protocol import ProblemsSetup
from tltsched.errors import InputError

CONFIG = TaskSettings()


def test_a_problem_follows_from_its_place_alone() -> None:
    need("reasoning_gym")
    whole = make_step(CONFIG, seed=3, step=2, count=10)
    assert whole[:4] == make_step(CONFIG, seed=3, step=2, count=4)
    assert whole[7] == make_problem(CONFIG, 3, 2, 7)


def test_seeds_steps_and_streams_give_other_problems() -> None:
    need("reasoning_gym")
    first = make_step(CONFIG, seed=3, step=2, count=10)
    for other in (
        make_step(CONFIG, seed=4, step=2, count=10),
        make_step(CONFIG, seed=3, step=7, count=10),  # 5 steps on: the same families in the same places
        make_step(CONFIG, seed=3, step=2, count=10, stream=WARM_UP),
        make_step(CONFIG, seed=3, step=2, count=10, stream=HELD_OUT),
    ):
        assert [problem.task for problem in other] == [problem.task for problem in first]
        assert not set(other) & set(first)


def test_families_take_turns_over_steps() -> None:
    need("reasoning_gym")
    tasks = Counter(
        problem.task for step in range(5) for problem in make_step(CONFIG, seed=0, step=step, count=8)
    )
    assert tasks == dict.fromkeys(CONFIG.names, 8)


def test_problems_travel_as_messages() -> None:
    need("reasoning_gym")
    problems = make_step(CONFIG, seed=1, step=0, count=5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(problems), type=list[Problem]) == problems


def test_difficulty_has_a_heavy_tail_within_its_bounds() -> None:
    rng = np.random.default_rng(0)
    config = TaskSettings(difficulty_smallest=3, difficulty_largest=120, difficulty_tail=0.4)
    drawn = np.array([draw_difficulty(config, rng) for _ in range(20_000)])
    assert drawn.min() == 3
    assert drawn.max() == 120
    # P(D >= d) of a Pareto law with exponent a on [low, high): (d^-a - high^-a) / (low^-a - high^-a)
    for level in (6, 20, 60):
        expected = (level**-0.4 - 121**-0.4) / (3**-0.4 - 121**-0.4)
        assert np.mean(drawn >= level) == pytest.approx(expected, abs=0.015)


def test_a_heavier_tail_makes_harder_problems() -> None:
    rng = np.random.default_rng(0)
    means = [
        np.mean([draw_difficulty(TaskSettings(difficulty_tail=tail), rng) for _ in range(2000)])
        for tail in (2.0, 1.0, 0.3)
    ]
    assert means == sorted(means)


def test_divisions_come_out_whole() -> None:
    need("reasoning_gym")
    rng = np.random.default_rng(0)
    for _ in range(50):
        problem = FAMILIES["basic_arithmetic"](30, rng)
        expression = msgspec.json.decode(problem.metadata)["expression"]
        *_, last = reductions(expression)
        assert last.rest == problem.answer


def test_collatz_starts_have_about_the_wanted_steps() -> None:
    rng = np.random.default_rng(0)
    for difficulty in (3, 10, 50, 120):
        problem = FAMILIES["collatz"](difficulty, rng)
        assert difficulty <= int(problem.answer) <= difficulty + max(4, difficulty // 4)
    assert collatz_steps(27) == 111  # OEIS A006577


def test_any_family_of_reasoning_gym_will_do() -> None:
    need("reasoning_gym")
    (problem,) = make_step(TaskSettings(names=("gsm_symbolic",)), seed=0, step=0, count=1)
    assert problem.scorer == "reasoning_gym"
    assert problem == make_step(TaskSettings(names=("gsm_symbolic",)), seed=0, step=0, count=1)[0]


def test_an_unknown_family_is_named() -> None:
    need("reasoning_gym")
    with pytest.raises(InputError, match=r"'chain_sums' for tasks\.settings\.names"):
        make_step(TaskSettings(names=("chain_sums",)), seed=0, step=0, count=1)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"difficulty_smallest": 5, "difficulty_largest": 4}, r"tasks\.settings\.difficulty_largest"),
        ({"names": []}, r"tasks\.settings\.names"),
        ({"name": ["collatz"]}, r"tasks\.settings\.name;.*did you mean names"),
        ({"difficulty_largest": "high"}, r"tasks\.settings\.difficulty_largest"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, settings: dict[str, object], field: str) -> None:
    setup = ProblemsSetup(model_folder=tmp_path, seed=0, prompts=1, module="families", settings=settings)
    with pytest.raises(InputError, match=field):
        setup.read(TaskSettings)


@pytest.mark.slow
# Made by the code that the first measured training runs ran on.
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"names": ["collatz"]}, "617c8719c3ff9a9a"),
        ({"difficulty_largest": 200}, "80f5001cbf4fd81e"),
        ({"names": ["gsm_symbolic", "number_sorting"]}, "b5f46ad0b7ae6f7c"),
    ],
)
def test_prompts_and_rewards_of_a_seed_stay_what_they_were(
    tmp_path: Path, settings: dict[str, object], expected: str
) -> None:
    need("reasoning_gym")
    folder = model_folder(tmp_path / "model")
    setup = ProblemsSetup(model_folder=folder, seed=SEED, prompts=PROMPTS, settings=settings)
    chosen = setup.read(TaskSettings)

    def right(step: int, group: int) -> str:
        return make_problem(chosen, SEED, step, group).answer

    assert digest(make_problems(setup), folder, right) == expected


def test_streams_differ() -> None:
    assert len({RL, WARM_UP, HELD_OUT}) == 3


def test_a_family_of_reasoning_gym_scores_its_own_answers() -> None:
    need("reasoning_gym")
    config = TaskSettings(names=("gsm_symbolic", "number_sorting"))
    for problem in make_step(config, seed=0, step=0, count=4):
        assert score(problem, f"Answer: {problem.answer}") == 1
        assert score(problem, "Answer: none") < 1
        assert score(problem, problem.answer) == 0  # without the mark


@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(-99, 99)), max_size=6), st.integers(-99, 99))
def test_products_come_before_sums(rest: list[tuple[str, int]], first: int) -> None:
    total, term = 0, first
    for operator, number in rest:
        if operator == "*":
            term *= number
        else:
            total, term = total + term, number if operator == "+" else -number
    text = " ".join([str(first), *(f"{operator} {number}" for operator, number in rest)])
    steps = list(reductions(text))
    assert len(steps) == len(rest)
    assert (int(steps[-1].rest) if steps else first) == total + term


def test_brackets_and_their_signs() -> None:
    steps = list(reductions("6 / -( 4 - -( -2 + 1 ) ) * 5"))
    assert [step.rest for step in steps] == ["6 / -( 4 - 1 ) * 5", "6 / -3 * 5", "-2 * 5", "-10"]
    with pytest.raises(NotWholeError):
        list(reductions("7 / 2"))
    with pytest.raises(NotWholeError):
        list(reductions("7 / ( 2 - 2 )"))
