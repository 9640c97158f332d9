"""What a speculation policy sees and returns, whichever rule it follows."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

import msgspec

from tltsched.commands import Entry
from tltsched.draft_config import Arm

# How the engine runs while a policy drafts nothing. "plain": speculation is not configured. "in_step": it is
# configured and K = 0, so the drafter's KV is kept up to date at a price per step. "dropped": the engine runs
# plain and must rebuild the drafter's KV before it drafts again.
OffState = Literal["plain", "in_step", "dropped"]


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The running batch of one engine: requests, and the sum of their context tokens."""

    requests: int
    context_tokens: int


class Choice(msgspec.Struct, frozen=True, gc=False):
    """An arm, and how long it holds: at most `max_cycles`, and while `min_requests` or more are running."""

    arm: Arm
    max_cycles: int | None = None
    min_requests: int = 1


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What an arm did over `cycles` engine cycles that one choice governed."""

    arm: Arm
    cycles: int
    request_cycles: int
    decode_s: float
    accepted_by_position: tuple[int, ...]


class Policy(Protocol):
    """A rule that picks the arm of each decision epoch.

    `arms` lists every arm that the rule may ever pick, so that a live engine can warm each of them up;
    `off_state` and `entry` say how the engine runs while nothing is drafted and what drafting again costs.
    """

    off_state: OffState
    entry: Entry
    arms: tuple[Arm, ...]

    def begin_rollout(self) -> None:
        """Forget what must not survive a rollout (a latch); keep what was learned (rewards)."""

    def choose(self, batch: Batch) -> Choice:
        """Return the arm for the epoch that starts with this batch (one request or more)."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from the epoch that ended; its facts stand for `outcome.cycles` equal cycles."""


class Rng(Protocol):
    """The part of random.Random that policies use."""

    def random(self) -> float:
        """Return a float in [0, 1)."""

    def randrange(self, stop: int, /) -> int:
        """Return an integer in [0, stop)."""


class StepTimes(Protocol):
    """Calibrated step times, as far as a policy needs them."""

    def cycle_s(self, arm: Arm, batch: Batch) -> float:
        """Return the predicted seconds of one engine cycle."""


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the settings of one policy; a subclass documents its fields and builds the policy."""

    needs_drafter: ClassVar[bool] = True
    needs_times: ClassVar[bool] = False
    """Whether `build` takes step times of every arm of the policy and refuses None."""

    def build(self, rng: Rng, times: StepTimes | None) -> Policy:
        """Return a fresh policy. `times` may be None for rules that use no calibration."""
        raise NotImplementedError
