"""One draft configuration for every batch: the setting that serving engines ship with."""

from __future__ import annotations

from tltsched.commands import ResumeCost
from tltsched.draft_config import DraftConfig
from tltsched.policies.base import Batch, Choice, Outcome, PolicyConfig, Rng, StepTimes, WhenOff
from tltsched.written.draft_config import WrittenDraftConfig, canonical, parse_draft_config


class StaticConfig(PolicyConfig, tag="static", frozen=True):
    """Draft with `draft_config` whatever the batch.

    `off` measures what speculation costs when it is configured and idle (when_off `k0`).
    """

    draft_config: WrittenDraftConfig
    """off, a chain length such as 4, a tree such as 8_4_48, or an engine's own keys."""
    when_off: WhenOff = "k0"
    """How the engine runs if the draft configuration is `off`; without meaning for any other."""

    def __post_init__(self) -> None:
        self._normalise(draft_config=canonical(self.draft_config))

    def build(self, rng: Rng, times: StepTimes | None) -> StaticPolicy:  # noqa: ARG002 (the rule needs neither)
        """Return the policy."""
        return StaticPolicy(self)


class StaticPolicy:
    """Always the same draft configuration; one choice lasts until the batch is empty."""

    def __init__(self, config: StaticConfig) -> None:
        draft_config = parse_draft_config(config.draft_config)
        self.when_off: WhenOff = config.when_off
        self.resume_cost: ResumeCost = "none"
        self.draft_configs: tuple[DraftConfig, ...] = (draft_config,)
        self._choice = Choice(draft_config)

    def begin_rollout(self) -> None:
        """Nothing to forget."""

    def choose(self, batch: Batch) -> Choice:  # noqa: ARG002 (every batch gets the same)
        """Return the draft configuration without a limit."""
        return self._choice

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
