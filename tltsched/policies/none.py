"""No speculation: what every other policy is compared with."""

from __future__ import annotations

from typing import ClassVar

from tltsched.commands import ResumeCost
from tltsched.draft_config import OFF, DraftConfig
from tltsched.policies.base import Batch, Choice, Outcome, PolicyConfig, Rng, StepTimes, WhenOff


class NoneConfig(PolicyConfig, tag="none", frozen=True):
    """Never draft, on an engine that has no speculation configured. It has no settings."""

    needs_drafter: ClassVar[bool] = False

    def build(self, rng: Rng, times: StepTimes | None) -> NonePolicy:  # noqa: ARG002 (the rule needs neither)
        """Return the policy."""
        return NonePolicy()


class NonePolicy:
    """Always off; one choice lasts until the batch is empty."""

    def __init__(self) -> None:
        self.when_off: WhenOff = "not_configured"
        self.resume_cost: ResumeCost = "none"
        self.draft_configs: tuple[DraftConfig, ...] = (OFF,)

    def begin_rollout(self) -> None:
        """Nothing to forget."""

    def choose(self, batch: Batch) -> Choice:  # noqa: ARG002 (every batch gets the same)
        """Return OFF without a limit."""
        return Choice(OFF)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
