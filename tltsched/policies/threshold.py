"""TLT's elastic threshold: draft only once few requests are left, then as an inner policy says.

Rule, for each engine on its own: while more than T requests run, a counter stands at zero; in each
engine step that starts with T or fewer it goes up by one; when it has reached `warmup_engine_steps`, drafting
is enabled. With the latch of the released code it stays enabled until the next rollout begins; without it, a
batch above T turns it off again. Source: mit-han-lab/fastrl (T = 32, 10 engine steps); the paper names T and
shows no latch.
"""

from __future__ import annotations

from tltsched.commands import ResumeCost
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome, Policy, PolicyConfig, Rng, StepTimes, WhenOff
from tltsched.policies.beg_mab import BegMabConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig


class ThresholdConfig(PolicyConfig, tag="threshold", frozen=True):
    """Stay off while the batch is large, then follow `inner`."""

    inner: TableConfig | BegMabConfig | StaticConfig
    """Picks the draft configuration once drafting is enabled; its when_off and resume_cost are not used."""
    threshold_requests: int = 32
    """T: largest running batch of one engine that may draft."""
    warmup_engine_steps: int = 10
    """Consecutive engine steps at or under T before drafting starts; guards against a batch that dips."""
    latch: bool = False
    """Whether drafting, once enabled, lasts to the end of the rollout (the released code) or follows T."""
    when_off: WhenOff = "drafter_dropped"
    """How the engine runs while drafting is off."""
    resume_cost: ResumeCost = "draft_prefill"
    """What drafting again costs (only with when_off `drafter_dropped`)."""

    def __post_init__(self) -> None:
        if self.threshold_requests < 1:
            raise InputError(
                "threshold_requests", self.threshold_requests, "1 or more", "use `none` to never draft"
            )
        if self.warmup_engine_steps < 0:
            raise InputError(
                "warmup_engine_steps", self.warmup_engine_steps, "0 or more", "give a count of engine steps"
            )

    def build(self, rng: Rng, times: StepTimes | None) -> ThresholdPolicy:
        """Return the policy around a fresh inner one."""
        return ThresholdPolicy(self, self.inner.build(rng, times))


class ThresholdPolicy:
    """Counts engine steps at or under T; asks and tells the inner policy while drafting is enabled."""

    def __init__(self, config: ThresholdConfig, inner: Policy) -> None:
        self.when_off: WhenOff = config.when_off
        self.resume_cost: ResumeCost = config.resume_cost
        self.draft_configs: tuple[DraftConfig, ...] = tuple(dict.fromkeys((OFF, *inner.draft_configs)))
        self.config, self.inner = config, inner
        self._above = Choice(OFF, None, config.threshold_requests + 1)
        self.engine_steps_under = 0
        self.counting = self.enabled = False

    def begin_rollout(self) -> None:
        """Release the latch; what the inner policy learned stays."""
        self.engine_steps_under = 0
        self.counting = self.enabled = False
        self.inner.begin_rollout()

    def choose(self, batch: Batch) -> Choice:
        """Return OFF above T and in warm-up, else what the inner policy chooses."""
        under = batch.requests <= self.config.threshold_requests
        if not under:
            self.engine_steps_under = 0
        left = self.config.warmup_engine_steps - self.engine_steps_under
        self.enabled = (under and left <= 0) or (self.enabled and self.config.latch)
        self.counting = under and not self.enabled
        if self.enabled:
            return self.inner.choose(batch)
        return Choice(OFF, left) if under else self._above

    def observe(self, outcome: Outcome) -> None:
        """Count the engine steps of a warm-up; tell the inner policy what drafting did."""
        if outcome.draft_config.depth > 0:
            self.inner.observe(outcome)
        elif self.counting:
            self.engine_steps_under += outcome.engine_steps
