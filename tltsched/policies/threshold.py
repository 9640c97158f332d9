"""TLT's elastic threshold: draft only once few requests are left, then as an inner policy says.

Rule, for each engine on its own: while more than T requests run, a counter stands at zero; in each engine
cycle that starts with T or fewer it goes up by one; when it has reached `warmup_cycles`, drafting is enabled.
With the latch of the released code it stays enabled until the next rollout begins; without it, a batch above
T turns it off again. Source: mit-han-lab/fastrl (T = 32, 10 cycles); the paper names T and shows no latch.
"""

from __future__ import annotations

from tltsched.commands import Entry
from tltsched.draft_config import OFF, Arm
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, OffState, Outcome, Policy, PolicyConfig, Rng, StepTimes
from tltsched.policies.beg_mab import BegMabConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig


class ThresholdConfig(PolicyConfig, tag="threshold", frozen=True):
    """Stay off while the batch is large, then follow `inner`."""

    inner: TableConfig | BegMabConfig | StaticConfig
    """Picks the arm once drafting is enabled; its own off_state and entry are not used."""
    threshold_requests: int = 32
    """T: largest running batch of one engine that may draft."""
    warmup_cycles: int = 10
    """Consecutive engine cycles at or under T before drafting starts; guards against a batch that dips."""
    latch: bool = False
    """Whether drafting, once enabled, lasts to the end of the rollout (the released code) or follows T."""
    off_state: OffState = "dropped"
    """How the engine runs while drafting is off."""
    entry: Entry = "drafter_fill"
    """What drafting again costs (only with off_state `dropped`)."""

    def __post_init__(self) -> None:
        if self.threshold_requests < 1:
            raise InputError(
                "threshold_requests", self.threshold_requests, "1 or more", "use `none` to never draft"
            )
        if self.warmup_cycles < 0:
            raise InputError("warmup_cycles", self.warmup_cycles, "0 or more", "give a count of cycles")

    def build(self, rng: Rng, times: StepTimes | None) -> ThresholdPolicy:
        """Return the policy around a fresh inner one."""
        return ThresholdPolicy(self, self.inner.build(rng, times))


class ThresholdPolicy:
    """Counts cycles at or under T; asks and tells the inner policy while drafting is enabled."""

    def __init__(self, config: ThresholdConfig, inner: Policy) -> None:
        self.off_state: OffState = config.off_state
        self.entry: Entry = config.entry
        self.arms: tuple[Arm, ...] = tuple(dict.fromkeys((OFF, *inner.arms)))
        self._config, self._inner = config, inner
        self._above = Choice(OFF, None, config.threshold_requests + 1)
        self._cycles_under = 0
        self._counting = self._enabled = False

    def begin_rollout(self) -> None:
        """Release the latch; what the inner policy learned stays."""
        self._cycles_under = 0
        self._counting = self._enabled = False
        self._inner.begin_rollout()

    def choose(self, batch: Batch) -> Choice:
        """Return OFF above T and in warm-up, else what the inner policy chooses."""
        under = batch.requests <= self._config.threshold_requests
        if not under:
            self._cycles_under = 0
        left = self._config.warmup_cycles - self._cycles_under
        self._enabled = (under and left <= 0) or (self._enabled and self._config.latch)
        self._counting = under and not self._enabled
        if self._enabled:
            return self._inner.choose(batch)
        return Choice(OFF, left) if under else self._above

    def observe(self, outcome: Outcome) -> None:
        """Count the cycles of a warm-up epoch; tell the inner policy about drafting epochs."""
        if outcome.arm.depth > 0:
            self._inner.observe(outcome)
        elif self._counting:
            self._cycles_under += outcome.cycles
