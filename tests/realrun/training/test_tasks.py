"""Problems follow from seed, stream, step and index; own prompts say which line is wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.realrun.small_models import need
from tlt.realrun.training.tasks.expressions import NotWholeError, reductions
from tlt.realrun.training.tasks.tasks import (
    FAMILIES,
    HELD_OUT,
    RL,
    WARM_UP,
    Problem,
    collatz_steps,
    draw_difficulty,
    encode,
    make_problem,
    make_problems,
    random_prompts,
    read_prompts,
)
from tlt.realrun.training_config import TasksConfig
from tltsched.errors import InputError

CONFIG = TasksConfig()


def test_a_problem_follows_from_its_place_alone() -> None:
    need("reasoning_gym")
    whole = make_problems(CONFIG, seed=3, step=2, count=10)
    assert whole[:4] == make_problems(CONFIG, seed=3, step=2, count=4)
    assert whole[7] == make_problem(CONFIG, 3, 2, 7)


def test_seeds_steps_and_streams_give_other_problems() -> None:
    need("reasoning_gym")
    first = make_problems(CONFIG, seed=3, step=2, count=10)
    for other in (
        make_problems(CONFIG, seed=4, step=2, count=10),
        make_problems(CONFIG, seed=3, step=7, count=10),  # 5 steps on: the same families in the same places
        make_problems(CONFIG, seed=3, step=2, count=10, stream=WARM_UP),
        make_problems(CONFIG, seed=3, step=2, count=10, stream=HELD_OUT),
    ):
        assert [problem.task for problem in other] == [problem.task for problem in first]
        assert not set(other) & set(first)


def test_families_take_turns_over_steps() -> None:
    need("reasoning_gym")
    tasks = Counter(
        problem.task for step in range(5) for problem in make_problems(CONFIG, seed=0, step=step, count=8)
    )
    assert tasks == dict.fromkeys(CONFIG.names, 8)


def test_problems_travel_as_messages() -> None:
    need("reasoning_gym")
    problems = make_problems(CONFIG, seed=1, step=0, count=5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(problems), type=list[Problem]) == problems


def test_difficulty_has_a_heavy_tail_within_its_bounds() -> None:
    rng = np.random.default_rng(0)
    config = TasksConfig(difficulty_smallest=3, difficulty_largest=120, difficulty_tail=0.4)
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
        np.mean([draw_difficulty(TasksConfig(difficulty_tail=tail), rng) for _ in range(2000)])
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
    (problem,) = make_problems(TasksConfig(names=("gsm_symbolic",)), seed=0, step=0, count=1)
    assert problem.scorer == "reasoning_gym"
    assert problem == make_problems(TasksConfig(names=("gsm_symbolic",)), seed=0, step=0, count=1)[0]


def test_an_unknown_family_is_named() -> None:
    need("reasoning_gym")
    with pytest.raises(InputError, match=r"'chain_sums' for tasks\.names"):
        make_problems(TasksConfig(names=("chain_sums",)), seed=0, step=0, count=1)


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
        read_prompts(path)
    assert what in str(error.value)


def test_own_prompts_come_once_before_any_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{"question": f"q{place}", "answer": "1", "scorer": "number"} for place in range(6)]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    config = TasksConfig(prompts=str(path))
    asked = [
        problem.question for step in range(3) for problem in make_problems(config, seed=5, step=step, count=4)
    ]
    assert sorted(asked[:6]) == sorted(asked[6:]) == [f"q{place}" for place in range(6)]
    assert asked[:6] != asked[6:]


@pytest.mark.parametrize("content", [None, "\n"])
def test_prompts_that_are_missing_or_empty(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"tasks\.prompts"):
        make_problems(TasksConfig(prompts=str(path)), seed=0, step=0, count=1)


def test_random_prompts_follow_from_seed_and_step() -> None:
    config = TasksConfig(random_prompt_tokens=7)
    prompts = random_prompts(config, vocab=50, seed=1, step=4, count=3)
    assert [len(prompt) for prompt in prompts] == [7, 7, 7]
    assert prompts == random_prompts(config, vocab=50, seed=1, step=4, count=3)
    assert prompts != random_prompts(config, vocab=50, seed=1, step=5, count=3)
    assert RL != WARM_UP != HELD_OUT


def test_a_model_is_told_the_form_of_the_answer() -> None:
    class Tokenizer:
        def apply_chat_template(self, messages: list[dict[str, str]], **settings: bool) -> list[int]:
            assert settings == {"add_generation_prompt": True, "return_dict": False}
            return [len(message["content"]) for message in messages if "Answer: " in message["content"]]

    problem = Problem(question="1 + 1?", answer="2", task="own", scorer="exact")
    assert len(encode(Tokenizer(), problem)) == 1


def test_settings_that_contradict() -> None:
    with pytest.raises(InputError, match=r"tasks\.difficulty_largest"):
        TasksConfig(difficulty_smallest=5, difficulty_largest=4)
    with pytest.raises(InputError, match=r"tasks\.names"):
        TasksConfig(names=())


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
