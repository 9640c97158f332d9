"""The problems of a run, step by step: every process makes the same ones from the setup alone."""

from __future__ import annotations

from tlt.realrun.problems.protocol import ProblemsSetup
from tlt.realrun.problems.questions import decode, encode, load_tokenizer
from tlt.realrun.prompts import Prompt

from .families import Problem, make_step, score
from .settings import TaskSettings


def make_problems(setup: ProblemsSetup) -> ArithmeticProblems:
    """Return the problems of a run; raises InputError for bad settings, or a model without a tokenizer."""
    return ArithmeticProblems(setup)


class ArithmeticProblems:
    """Prompts of a step, and rewards of its responses."""

    def __init__(self, setup: ProblemsSetup) -> None:
        self._setup = setup
        self._settings = setup.read(TaskSettings)
        self._tokenizer = load_tokenizer(setup.model_folder)
        self._step = -1
        self._problems: list[Problem] = []

    def prompts(self, step: int) -> list[Prompt]:
        """Return the prompt of every group of a step."""
        return [encode(self._tokenizer, problem.question) for problem in self._of(step)]

    def kinds(self, step: int) -> list[str]:
        """Return the family of every prompt of a step."""
        return [problem.task for problem in self._of(step)]

    def score(self, step: int, group: int, response: tuple[int, ...]) -> float:
        """Return the reward of a response to the prompt of `group`, 0 to 1."""
        return score(self._of(step)[group], decode(self._tokenizer, response))

    def _of(self, step: int) -> list[Problem]:
        if step != self._step:
            self._problems = make_step(self._settings, self._setup.seed, step, self._setup.prompts)
            self._step = step
        return self._problems
