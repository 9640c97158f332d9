"""Which drafter serves the next rollout: the trained head, or drafts without a model.

TLT drafts without a model (n-grams, the group's other responses) while no head exists yet. Here the head has
to earn its place: what it would get accepted is measured on each step's responses whether it served or not,
so nothing is spent on trying it out. What drafts without a model get accepted is known from the last rollout
that they served in.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Serving = Literal["head", "model_free"]


class FallbackConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When drafts without a model serve in place of the head."""

    enabled: Annotated[
        bool, Meta(description="start with drafts without a model, until the head gets more accepted")
    ] = False
    break_even_length: Annotated[
        float,
        Meta(ge=1.0, description="assumed: acceptance length with bonus below which a head does not pay"),
    ] = 1.2
    margin: Annotated[
        float,
        Meta(ge=0.0, description="assumed: by this share the other drafter must be better to take over"),
    ] = 0.1


class Fallback:
    """Chooses the drafter of each rollout. All lengths count the bonus token."""

    def __init__(self, config: FallbackConfig) -> None:
        self.config = config
        self.serving: Serving = "model_free" if config.enabled else "head"
        self._head_length = 1.0
        self._model_free_length = 1.0

    def measured(self, head_length: float | None, model_free_length: float | None) -> None:
        """Take in what a step has shown; None: nothing new of that drafter."""
        self._head_length = head_length if head_length is not None else self._head_length
        if model_free_length is not None:
            self._model_free_length = model_free_length

    def choose(self) -> Serving:
        """Return the drafter of the next rollout, which serves from now on."""
        if self.config.enabled:
            head, other, hurdle = self._head_length, self._model_free_length, 1.0 + self.config.margin
            if self.serving == "model_free":
                if head >= self.config.break_even_length and head >= other * hurdle:
                    self.serving = "head"
            elif head < self.config.break_even_length or other >= head * hurdle:
                self.serving = "model_free"
        return self.serving
