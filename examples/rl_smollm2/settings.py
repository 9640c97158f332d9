"""Settings of the problems and of the warm-up. Imports neither torch nor reasoning-gym."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tlt.realrun.config import Count
from tlt.realrun.training_config import AdamWConfig, PackedAttention, Positive, Share, TrainConfig
from tlt.traces.common.settings import Section
from tltsched.errors import InputError


class TaskSettings(Section, frozen=True, kw_only=True):
    """The table [tasks.settings]: which problems, and how hard."""

    names: Annotated[
        tuple[str, ...], Meta(description="families of families.py or of reasoning-gym, in equal shares")
    ] = ("chain_sum", "basic_arithmetic", "simple_equations", "products", "collatz")
    difficulty_smallest: Annotated[
        Count, Meta(description="a problem's difficulty, about the steps of its solution, is at least this")
    ] = 3
    difficulty_largest: Annotated[Count, Meta(description="and at most this")] = 120
    difficulty_tail: Annotated[
        Positive, Meta(description="exponent of the bounded Pareto law of difficulty; smaller: heavier tail")
    ] = 0.4

    def __post_init__(self) -> None:
        if self.difficulty_largest < self.difficulty_smallest:
            raise InputError(
                "difficulty_largest", self.difficulty_largest,
                f"at least {self.difficulty_smallest} (difficulty_smallest)", "raise it",
            )  # fmt: skip
        if not self.names:
            raise InputError("names", self.names, "at least one family", "name one")


class WarmUpConfig(AdamWConfig, frozen=True, kw_only=True):
    """Supervised training on worked solutions of the problems of [tasks.settings], before RL."""

    tokens: Annotated[Count, Meta(description="response tokens trained on")] = 12_000_000
    learning_rate: Annotated[Positive, Meta(description="AdamW, the highest: falls linearly to 0")] = 1e-3
    warmup_share: Annotated[Share, Meta(description="share of the tokens over which the rate rises")] = 0.03
    weight_decay: Annotated[float, Meta(ge=0, description="AdamW")] = 0.01
    batch_tokens: Annotated[Count, Meta(description="tokens of an optimizer step, prompts included")] = 32_768
    token_budget: Annotated[Count, Meta(description="tokens of one packed pass, there and back")] = 16_384
    held_out: Annotated[Count, Meta(description="problems kept for the held-out loss")] = 200
    processes: Annotated[
        int, Meta(ge=0, description="processes that make problems; 0: the training process does")
    ] = 4
    attention: PackedAttention = "varlen"


class WarmUpFile(TrainConfig, frozen=True, kw_only=True):
    """The settings of a training run, of which the seed and [tasks.settings] count, and one section more."""

    warm_up: WarmUpConfig = WarmUpConfig()
