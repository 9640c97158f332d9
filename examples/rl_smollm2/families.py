"""Problems with answers that can be checked.

Families of reasoning-gym and one of our own (collatz). A problem follows from the run's seed, a stream, a
step and an index alone, so every process makes the same ones. The difficulty of a problem is about the number
of steps of its solution, drawn from a bounded Pareto law, so that few problems need far longer answers than
most.
"""

from __future__ import annotations

import bisect
import importlib.util
from collections.abc import Callable
from functools import lru_cache
from math import isqrt
from typing import Any, Literal

import msgspec
import numpy as np

from tlt.realrun.engine import vllm_compat
from tlt.realrun.problems.questions import number, parse_answer
from tlt.traces.common.seeds import HELD_OUT_PROBLEMS, PROBLEMS, WARM_UP_PROBLEMS, Stream, generator
from tltsched.errors import InputError

from .expressions import NotWholeError, reductions
from .settings import TaskSettings

RL, WARM_UP, HELD_OUT = PROBLEMS, WARM_UP_PROBLEMS, HELD_OUT_PROBLEMS  # they share nothing

Scorer = Literal["reasoning_gym", "number"]


class Problem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One question. `metadata` is what its family says about it, as JSON."""

    question: str
    answer: str
    task: str
    scorer: Scorer
    difficulty: int = 0  # 0: the family has only one
    metadata: str = "{}"


def make_step(settings: TaskSettings, seed: int, step: int, count: int, stream: Stream = RL) -> list[Problem]:
    """Return the first `count` problems of a step; each follows from (seed, stream, step, index) alone.

    Raises InputError for unknown families.
    """
    require_families(settings.names)
    return [make_problem(settings, seed, step, index, stream) for index in range(count)]


def make_problem(settings: TaskSettings, seed: int, step: int, index: int, stream: Stream = RL) -> Problem:
    """Return one problem of the configured families, which take turns."""
    rng = generator(seed, stream, step, index)
    name = settings.names[(step + index) % len(settings.names)]
    family = FAMILIES.get(name)
    if family is None:
        return _unscaled(name, rng)
    return family(draw_difficulty(settings, rng), rng)


def draw_difficulty(settings: TaskSettings, rng: np.random.Generator) -> int:
    """Return a difficulty from the bounded Pareto law, by inversion of its distribution function."""
    low, high = float(settings.difficulty_smallest), float(settings.difficulty_largest + 1)
    kept = 1 - (low / high) ** settings.difficulty_tail
    return int(low * (1 - rng.random() * kept) ** (-1 / settings.difficulty_tail))


# --- families ---------------------------------------------------------------------------------------------

Family = Callable[[int, np.random.Generator], Problem]
LARGEST_VALUE = 99_999  # of any intermediate result of basic_arithmetic
LARGEST_START = 9_999  # of collatz


@lru_cache
def require_families(names: tuple[str, ...]) -> None:
    """Raise InputError unless every name is a family, and reasoning-gym is there where one needs it."""
    if all(name == "collatz" for name in names):
        return
    if importlib.util.find_spec("reasoning_gym") is None:
        fix = "pip install reasoning-gym, or set tasks.settings.names to collatz"
        raise InputError("tasks.settings.names", "no reasoning_gym package", "reasoning-gym installed", fix)
    known = {*FAMILIES, *_gym().factory.DATASETS}
    for name in names:
        if name not in known:
            allowed = f"{', '.join(FAMILIES)}, or a family of reasoning-gym"
            raise InputError("tasks.settings.names", name, allowed, "correct it")


def chain_sum(difficulty: int, rng: np.random.Generator) -> Problem:
    """Sums and differences of `difficulty` + 1 terms, at most 61.

    Longer ones have terms of more digits: a small model finds its place in the question by the terms.
    """
    steps = min(difficulty, 60)
    least = 1 if steps <= 6 else 2 if steps <= 20 else 3
    settings = {"min_terms": steps + 1, "max_terms": steps + 1, "min_digits": least, "max_digits": 3}
    return _scaled("chain_sum", difficulty, rng, settings)


def basic_arithmetic(difficulty: int, rng: np.random.Generator) -> Problem:
    """Mixed operations with brackets on two to eight terms; every division comes out whole."""
    terms = min(2 + difficulty // 3, 8)
    settings = {"min_terms": terms, "max_terms": terms, "min_digits": 1, "max_digits": 2}
    while True:
        problem = _scaled("basic_arithmetic", difficulty, rng, settings)
        expression = msgspec.json.decode(problem.metadata)["expression"]
        if _is_tractable(expression):
            return problem


def _is_tractable(expression: str) -> bool:
    try:
        return all(abs(step.value) <= LARGEST_VALUE for step in reductions(expression))
    except NotWholeError:
        return False


def simple_equations(difficulty: int, rng: np.random.Generator) -> Problem:
    """Linear equations in one unknown; numbers grow with the difficulty."""
    settings = {"max_value": min(5 + 5 * difficulty, 100), "max_terms": min(2 + difficulty // 6, 4)}
    while True:
        problem = _scaled("simple_equations", difficulty, rng, settings)
        if not msgspec.json.decode(problem.metadata)["equation"].startswith("0 = "):  # any number solves it
            return problem


def products(difficulty: int, rng: np.random.Generator) -> Problem:
    """Two factors of as many digits as the root of the difficulty, at most five."""
    digits = min(isqrt(difficulty), 5) or 1
    settings = {"min_digits": digits, "max_digits": digits}
    return _scaled("products", difficulty, rng, settings)


def collatz(difficulty: int, rng: np.random.Generator) -> Problem:
    """Length of the Collatz sequence from a number: about `difficulty`, which the question does not show."""
    counts, numbers = _collatz_starts()
    low = bisect.bisect_left(counts, difficulty)
    high = bisect.bisect_left(counts, difficulty + max(4, difficulty // 4))
    start = numbers[int(rng.integers(low, max(high, low + 1)))]
    question = (
        f"Start with {start}. Halve an even number; multiply an odd number by 3 and add 1. "
        "How many steps does it take to reach 1?"
    )
    return Problem(
        question=question, answer=str(collatz_steps(start)), task="collatz", scorer="number",
        difficulty=difficulty, metadata=msgspec.json.encode({"start": start}).decode(),
    )  # fmt: skip


def collatz_steps(number: int) -> int:
    """Return how many steps lead from a number to 1."""
    steps = 0
    while number != 1:
        number = 3 * number + 1 if number % 2 else number // 2
        steps += 1
    return steps


@lru_cache
def _collatz_starts() -> tuple[list[int], list[int]]:
    """Return step counts in rising order, and the starting number of each."""
    pairs = sorted((collatz_steps(number), number) for number in range(2, LARGEST_START + 1))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


FAMILIES: dict[str, Family] = {
    "chain_sum": chain_sum,
    "basic_arithmetic": basic_arithmetic,
    "simple_equations": simple_equations,
    "products": products,
    "collatz": collatz,
}


# --- reasoning-gym ----------------------------------------------------------------------------------------


@lru_cache
def _gym() -> Any:
    vllm_compat.hide_cuda_companions()
    import reasoning_gym

    return reasoning_gym


@lru_cache(maxsize=1024)
def _dataset(name: str, settings: tuple[tuple[str, int], ...]) -> Any:
    return _gym().create_dataset(name, seed=0, size=1, **dict(settings))


def _scaled(name: str, difficulty: int, rng: np.random.Generator, settings: dict[str, int]) -> Problem:
    """Return a problem of a family of reasoning-gym whose answer is a whole number."""
    # Items of these families follow from seed + index, and the index is not bounded.
    item = _dataset(name, tuple(settings.items()))[int(rng.integers(2**62))]
    return _problem(name, item, "number", difficulty)


def _unscaled(name: str, rng: np.random.Generator) -> Problem:
    """Return a problem of any family of reasoning-gym, with its own settings; the family itself scores."""
    item = _gym().create_dataset(name, seed=int(rng.integers(2**31)), size=1)[0]
    return _problem(name, item, "reasoning_gym", 0)


def _problem(name: str, item: dict[str, Any], scorer: Scorer, difficulty: int) -> Problem:
    return Problem(
        question=item["question"], answer=str(item["answer"]), task=name, scorer=scorer,
        difficulty=difficulty, metadata=msgspec.json.encode(item["metadata"], enc_hook=str).decode(),
    )  # fmt: skip


def score(problem: Problem, text: str) -> float:
    """Return the reward of a decoded response, 0 to 1; 0 for one without an answer."""
    answer = parse_answer(text)
    if not answer:
        return 0.0
    return number(problem.answer, answer) if problem.scorer == "number" else _gym_score(problem, answer)


def _gym_score(problem: Problem, answer: str) -> float:
    """Return what a family of reasoning-gym itself gives an answer, 0 to 1."""
    entry = {
        "question": problem.question,
        "answer": problem.answer,
        "metadata": msgspec.json.decode(problem.metadata),
    }
    return min(1.0, max(0.0, float(_scorer(problem.task)(answer, entry))))


@lru_cache
def _scorer(task: str) -> Any:
    return _gym().get_score_answer_fn(task)
