"""What a speculation policy sees and returns, whichever rule it follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import ClassVar, Literal, Protocol

import msgspec

from tltsched.commands import ResumeCost
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.events import DraftsByRequest

# How the engine runs while a policy drafts nothing. "not_configured": no speculation. "k0": it is
# configured and K = 0, so the drafter's KV is kept up to date at a price per step. "drafter_dropped": the
# engine runs plain and must rebuild the drafter's KV before it drafts again.
WhenOff = Literal["not_configured", "k0", "drafter_dropped"]


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The running batch of one engine: requests, and the sum of their context tokens."""

    requests: int
    context_tokens: int


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A draft configuration; it holds for `max_engine_steps`, while `min_requests` or more are running."""

    draft_config: DraftConfig
    max_engine_steps: int | None = None
    min_requests: int = 1


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What a draft configuration did over `engine_steps` engine steps that one choice governed.

    `finished` and `by_request` are those of tltsched.events.DecisionEnded.
    """

    draft_config: DraftConfig
    engine_steps: int
    request_steps: int
    decode_s: float
    accepted_by_position: tuple[int, ...]
    finished: tuple[int, ...] = ()
    by_request: DraftsByRequest = ()

    def shares(self) -> tuple[float, ...]:
        """Return the shares of request-steps in which the drafts up to each position were accepted.

        Of a tree, one number: the accepted drafts of a request-step.
        """
        accepted, steps = self.accepted_by_position, self.request_steps
        if not self.draft_config.is_chain:
            return (sum(accepted) / steps,)
        return tuple([count / steps for count in accepted])


class Policy(Protocol):
    """A rule that picks the draft configuration of each decision interval.

    `draft_configs` lists every draft configuration that the rule may ever pick, so that a live engine can
    warm each of them up; `when_off` and `resume_cost` say how the engine runs while nothing is drafted and
    what drafting again costs. A rule with `wants_requests` is told the drafts of each request; one without
    the attribute is not.
    """

    when_off: WhenOff
    resume_cost: ResumeCost
    draft_configs: tuple[DraftConfig, ...]

    def begin_rollout(self) -> None:
        """Forget what must not survive a rollout (a latch); keep what was learned (rewards)."""

    def choose(self, batch: Batch) -> Choice:
        """Return the choice for the decision interval that starts with this batch of one request or more."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from the decision interval that ended, as if its `engine_steps` had been all alike."""


class Rng(Protocol):
    """The part of random.Random that policies use."""

    def random(self) -> float:
        """Return a float in [0, 1)."""

    def randrange(self, stop: int, /) -> int:
        """Return an integer in [0, stop)."""


class StepTimes(Protocol):
    """Calibrated step times, as far as a policy needs them."""

    def engine_step_s(self, draft_config: DraftConfig, batch: Batch) -> float:
        """Return the predicted seconds of one engine step."""


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the settings of one policy; a subclass documents its fields and builds the policy."""

    needs_drafter: ClassVar[bool] = True
    needs_times: ClassVar[bool] = False
    """Whether `build` takes step times of every draft configuration of the policy and refuses None."""

    def _normalise(self, **values: object) -> None:
        """Put fields into the form in which they are kept and compared; for __post_init__ alone."""
        for name, value in values.items():
            msgspec.structs.force_setattr(self, name, value)

    def build(self, rng: Rng, times: StepTimes | None) -> Policy:
        """Return a fresh policy. `times` may be None for rules that use no calibration."""
        raise NotImplementedError


def required_times(policy: str, times: StepTimes | None, draft_configs: Iterable[DraftConfig]) -> StepTimes:
    """Return `times`; raises InputError if they are missing or lack one of the draft configurations."""
    if times is None:
        raise InputError(
            "policy",
            policy,
            "a policy without step times",
            "give a calibration with the draft configurations of the policy",
        )
    for draft_config in draft_configs:  # one that is missing is better met before the run
        times.engine_step_s(draft_config, Batch(1, 0))
    return times


def require_at_least(config: PolicyConfig, lows: Mapping[str, float]) -> None:
    """Raise InputError for the first field below its low, or not finite."""
    for field, low in lows.items():
        value = getattr(config, field)
        if not (isfinite(value) and value >= low):
            raise InputError(field, value, f"{low} or more", "give a larger number")
