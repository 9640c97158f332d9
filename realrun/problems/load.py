"""Makes the problems of a run: of a module of the user's, of a file of questions, or of random tokens."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from math import isfinite
from numbers import Real
from operator import index
from pathlib import Path
from types import ModuleType

from tlt.realrun.config import RealConfig
from tlt.realrun.problems.protocol import Problems, ProblemsSetup
from tlt.realrun.problems.questions import QuestionsOfFile
from tlt.realrun.problems.random_tokens import RandomTokens
from tlt.realrun.prompts import Prompt, vocabulary
from tlt.realrun.training_config import TrainConfig
from tltsched.errors import InputError

MAKER = "make_problems"


def load_problems(config: RealConfig | TrainConfig) -> Problems:
    """Return the problems of a run.

    Raises InputError if `config.tasks` names none, the module cannot be had or makes something else, or the
    problems themselves refuse their settings or the model folder.
    """
    tasks = config.tasks
    setup = ProblemsSetup(
        model_folder=Path(config.model.folder), seed=config.seed, prompts=config.prompts,
        module=tasks.module, settings=tasks.settings,
    )  # fmt: skip
    if tasks.module:
        return CheckedProblems(_made(setup), setup)
    if tasks.prompts:
        return QuestionsOfFile(setup, Path(tasks.prompts))
    if tasks.random_prompt_tokens:
        return RandomTokens(setup, tasks.random_prompt_tokens)
    allowed = "tasks.module, tasks.prompts or tasks.random_prompt_tokens"
    raise InputError(
        "tasks", "no problems", allowed, "set one; examples/rl_smollm2 in the sources has a module"
    )


def kinds_of(problems: Problems, step: int) -> tuple[str, ...]:
    """Return the kind of each prompt of a step; none if the problems do not say."""
    return problems.kinds(step) if isinstance(problems, CheckedProblems) else ()


class CheckedProblems:
    """Problems of a user's module, with what they return held against what training needs."""

    def __init__(self, problems: Problems, setup: ProblemsSetup) -> None:
        self._problems = problems
        self._setup = setup
        self._vocab = vocabulary(setup.model_folder)

    def prompts(self, step: int) -> Sequence[Prompt]:
        """Return the prompts of a step; raises InputError if they are not one row of token ids a group."""
        asked = self._problems.prompts(step)
        where, wanted = f"prompts({step}) of {self._setup.module}", self._setup.prompts
        if len(asked) != wanted:
            raise InputError(where, f"{len(asked)} prompts", f"{wanted}, one a group", "return as many")
        prompts = []
        for group, prompt in enumerate(asked):
            try:
                ids = tuple(index(token) for token in prompt)
            except TypeError:
                ids = ()
            if not ids or not all(0 <= token < self._vocab for token in ids):
                allowed = f"token ids from 0 to {self._vocab - 1}, at least one"
                raise InputError(
                    f"{where}, group {group}", prompt, allowed, "encode it with the model's tokenizer"
                )
            prompts.append(ids)
        return prompts

    def kinds(self, step: int) -> tuple[str, ...]:
        """Return the kind of each prompt of a step, none if the module does not say; raises InputError."""
        told: Callable[[int], Sequence[str]] | None = getattr(self._problems, "kinds", None)
        kinds = () if told is None else tuple(map(str, told(step)))
        if kinds and len(kinds) != self._setup.prompts:
            where, wanted = f"kinds({step}) of {self._setup.module}", self._setup.prompts
            raise InputError(
                where, f"{len(kinds)} kinds", f"{wanted} (rollout.prompts)", "return one a group"
            )
        return kinds

    def score(self, step: int, group: int, response: tuple[int, ...]) -> float:
        """Return the reward of a response; raises InputError if it is no finite number."""
        reward = self._problems.score(step, group, response)
        if not _is_finite(reward):
            where = f"score({step}, {group}) of {self._setup.module}"
            raise InputError(where, reward, "a finite number", "return what the response is worth")
        return float(reward)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and isfinite(value)


def _made(setup: ProblemsSetup) -> Problems:
    module = setup.module
    maker: Callable[[ProblemsSetup], object] | None = getattr(_module(module), MAKER, None)
    if not callable(maker):
        allowed = f"a module with a function {MAKER}(setup)"
        raise InputError("tasks.module", f"{module} without {MAKER}", allowed, "write it")
    problems = maker(setup)
    if not isinstance(problems, Problems):
        allowed = "an object with prompts(step) and score(step, group, response)"
        raise InputError(f"{MAKER} of {module}", f"a {type(problems).__name__}", allowed, "return one")
    return problems


def _module(name: str) -> ModuleType:
    """Return the module of a path of a file, or of a dotted name."""
    path = Path(name)
    if path.is_file():
        return _module_of_file(path.resolve())
    try:
        known = path.suffix != ".py" and importlib.util.find_spec(name) is not None
        reason = f"paths count from {Path.cwd()}"
    except (ImportError, ValueError) as error:  # the package before the last dot, or no name
        known, reason = False, str(error)
    if not known:
        allowed = "the path of a Python file, or the name of a module that can be imported"
        raise InputError("tasks.module", name, allowed, f"correct it: {reason}")
    return importlib.import_module(name)


def _module_of_file(path: Path) -> ModuleType:
    """Return the module in a file of any name; its relative imports find the files beside it.

    It stands in a package of its own, named after the path: sys.path stays as it is, so the file and its
    neighbours can hide no other module, whatever they are called.
    """
    digest = hashlib.sha256(bytes(path)).hexdigest()[:16]
    package = f"tlt_problems_{digest}"
    name = f"{package}.{path.stem if path.stem.isidentifier() else 'of_file_' + digest}"
    if name in sys.modules:
        return sys.modules[name]
    beside = ModuleSpec(package, None, is_package=True)
    beside.submodule_search_locations = [str(path.parent)]
    sys.modules[package] = importlib.util.module_from_spec(beside)
    spec = importlib.util.spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        SourceFileLoader(name, str(path)).exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
