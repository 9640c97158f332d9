"""A stand-in where a model has no tokenizer: random prompts, and a reward that is easy to learn."""

from __future__ import annotations

from collections.abc import Sequence

from tlt.realrun.problems.protocol import ProblemsSetup
from tlt.realrun.prompts import Prompt, random_prompts, vocabulary
from tlt.traces.common.seeds import PROBLEMS, generator


class RandomTokens:
    """Prompts of random ids of one length; a response is worth its share of ids in the lower half."""

    def __init__(self, setup: ProblemsSetup, tokens: int) -> None:
        self._setup = setup
        self._tokens = tokens
        self._vocab = vocabulary(setup.model_folder)

    def prompts(self, step: int) -> list[Prompt]:
        """Return the prompts of a step."""
        rng = generator(self._setup.seed, PROBLEMS, step)
        return random_prompts(self._vocab, self._setup.prompts, self._tokens, rng)

    def score(self, step: int, group: int, response: Sequence[int]) -> float:
        """Return the share of token ids in the lower half of the vocabulary; 0 without tokens."""
        del step, group
        return sum(token < self._vocab // 2 for token in response) / len(response) if response else 0.0
