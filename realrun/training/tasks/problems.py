"""The problems of a run, step by step: every process makes the same ones from the configuration alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tlt.realrun.engine import vllm_compat
from tlt.realrun.prompts import Prompt, vocabulary
from tlt.realrun.training.tasks.scoring import score, score_tokens
from tlt.realrun.training.tasks.tasks import Problem, encode, make_problems, random_prompts
from tlt.realrun.training_config import TrainConfig


class Problems:
    """Prompts of a step, and rewards of its responses."""

    def __init__(self, config: TrainConfig) -> None:
        """Raises InputError if the tasks cannot be had, or the model folder has no tokenizer."""
        self.config = config
        self._vocab = vocabulary(Path(config.model.folder))
        self._tokenizer: Any = None
        if not config.tasks.random_prompt_tokens:
            vllm_compat.hide_cuda_companions()
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(Path(config.model.folder))
        self._step = -1
        self._problems: list[Problem] = []

    def prompts(self, step: int) -> list[Prompt]:
        """Return the prompt of every group of a step."""
        config = self.config
        if self._tokenizer is None:
            return random_prompts(config.tasks, self._vocab, config.seed, step, config.rollout.prompts)
        return [encode(self._tokenizer, problem) for problem in self._of(step)]

    def score(self, step: int, group: int, response: tuple[int, ...]) -> float:
        """Return the reward of a response to the prompt of `group`."""
        if self._tokenizer is None:
            return score_tokens(response, self._vocab)
        return score(self._of(step)[group], self._tokenizer.decode(response, skip_special_tokens=True))

    def _of(self, step: int) -> list[Problem]:
        if step != self._step:
            config = self.config
            self._problems = make_problems(config.tasks, config.seed, step, config.rollout.prompts)
            self._step = step
        return self._problems
