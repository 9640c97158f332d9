"""One arm for every batch: the setting that serving engines ship with."""

from __future__ import annotations

from tltsched.commands import Entry
from tltsched.draft_config import Arm, parse_arm
from tltsched.policies.base import Batch, Choice, OffState, Outcome, PolicyConfig, Rng, StepTimes


class StaticConfig(PolicyConfig, tag="static", frozen=True):
    """Draft with `arm` whatever the batch.

    The arm `off` measures what speculation costs when it is configured and idle (off_state `in_step`).
    """

    arm: str
    """off, a chain length such as 4, or a tree such as 8_4_48."""
    off_state: OffState = "in_step"
    """How the engine runs under the arm `off`; without meaning for any other arm."""

    def __post_init__(self) -> None:
        parse_arm(self.arm)

    def build(self, rng: Rng, times: StepTimes | None) -> StaticPolicy:  # noqa: ARG002 (the rule needs neither)
        """Return the policy."""
        return StaticPolicy(self)


class StaticPolicy:
    """Always the same arm; one choice lasts until the batch is empty."""

    def __init__(self, config: StaticConfig) -> None:
        arm = parse_arm(config.arm)
        self.off_state: OffState = config.off_state
        self.entry: Entry = "none"
        self.arms: tuple[Arm, ...] = (arm,)
        self._choice = Choice(arm)

    def begin_rollout(self) -> None:
        """Nothing to forget."""

    def choose(self, batch: Batch) -> Choice:  # noqa: ARG002 (every batch gets the same)
        """Return the arm without a limit."""
        return self._choice

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
