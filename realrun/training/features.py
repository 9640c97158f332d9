"""Hidden states that a drafter learns from, and the bounded buffer that keeps them over step boundaries.

They come out of the log-probability pass, which is due anyway. Training starts on what finished early in this
step, which is short; so long responses of the step before are kept and mixed in (TLT's one-step-off buffer).
Where training is fast, those of one step are soon learned by heart: responses of more steps can be kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Features:
    """One prompt and response on the host.

    `tokens` [T]; `aux` [T, A x H] are the inputs of the layers that the head reads, side by side; `last`
    [T, H] is the state after the final norm, from which the target's distribution follows.
    """

    step: int
    tokens: torch.Tensor
    prompt_tokens: int
    aux: torch.Tensor
    last: torch.Tensor

    @property
    def bytes(self) -> int:
        """Host memory it takes."""
        return sum(each.numel() * each.element_size() for each in (self.tokens, self.aux, self.last))

    def __len__(self) -> int:
        """Return the tokens of prompt and response."""
        return len(self.tokens)

    def window(self, tokens: int, start: int) -> Features:
        """Return `tokens` tokens from `start` on; what was prompt stays prompt."""
        end = start + tokens
        prompt = max(self.prompt_tokens - start, 1)
        return Features(self.step, self.tokens[start:end], prompt, self.aux[start:end], self.last[start:end])


class FeatureBuffer:
    """Responses of this step and of the `kept_steps` before it, within `capacity_bytes`."""

    def __init__(self, capacity_bytes: int, kept_steps: int = 1) -> None:
        self.capacity_bytes = capacity_bytes
        self.kept_steps = kept_steps
        self.bytes = 0
        self.step = 0
        self._last: list[Features] = []  # of the steps before, longest first
        self._new: list[Features] = []
        self._drawn_last_tokens = self._drawn_tokens = 0  # where there was a choice between both steps

    def __len__(self) -> int:
        """Return how many responses are kept."""
        return len(self._last) + len(self._new)

    def begin_step(self, step: int) -> None:
        """Make this step's responses those of a step before, and forget what is too old."""
        if step == self.step:
            return
        kept = (each for each in (*self._last, *self._new) if each.step >= step - self.kept_steps)
        self._last = sorted(kept, key=len, reverse=True)
        self._new = []
        self._drawn_last_tokens = self._drawn_tokens = 0
        self.step = step
        self.bytes = sum(features.bytes for features in self._last)

    def add(self, features: Features) -> None:
        """Keep one response of this step.

        If there is no room, the shortest of the steps before go first, then the oldest of this one. What is
        larger than the whole buffer is not kept.
        """
        if features.bytes > self.capacity_bytes:
            return
        self._new.append(features)
        self.bytes += features.bytes
        while self.bytes > self.capacity_bytes:
            gone = self._last.pop() if self._last else self._new.pop(0)
            self.bytes -= gone.bytes

    def draw(self, rng: np.random.Generator, last_step_share: float) -> Features:
        """Return one response at random; the buffer must hold one.

        `last_step_share` of the tokens drawn in a step come from the longer half of the steps before, as long
        as there are some, and some of this step.
        """
        old = self._from_last(last_step_share)
        pool = self._last[: -(-len(self._last) // 2)] if old else self._new
        pick = pool[int(rng.integers(len(pool)))]
        if self._last and self._new:
            self._drawn_tokens += len(pick)
            self._drawn_last_tokens += len(pick) * old
        return pick

    def _from_last(self, share: float) -> bool:
        """Return whether the steps before have had too little; without a choice, whether they are all."""
        if not (self._last and self._new):
            return bool(self._last)
        return share > 0 and self._drawn_last_tokens <= share * self._drawn_tokens
