"""Goodput: the arm with the most expected tokens per second, from calibrated times and current acceptance.

Law: score(arm) = batch * E[tokens per cycle | arm] / (cycle_s(arm, batch) + switch), where `switch` is
switch_cost_s / epoch_cycles for every arm but the one in use. The best arm replaces the one in use only if
its score is higher by the share `hysteresis`, so that noise in the acceptance does not make the engine flip.
"""

from __future__ import annotations

from math import isfinite
from typing import ClassVar

import msgspec

from tltsched.commands import Entry
from tltsched.draft_config import OFF, Arm, parse_arm
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, OffState, Outcome, PolicyConfig, Rng, StepTimes
from tltsched.policies.estimators.acceptance import AcceptanceEstimate
from tltsched.policies.times import required_times

# Assumed, not measured: each draft accepted with probability 0.7 given the one before it. Replace it by the
# acceptance of your own drafter; the estimate forgets it after some `memory_cycles`.
ASSUMED_SURVIVAL = tuple(round(0.7**position, 4) for position in range(1, 9))


class GoodputConfig(PolicyConfig, tag="goodput", frozen=True):
    """Maximise predicted tokens per second over `arms`. Needs calibrated step times of each of them."""

    needs_times: ClassVar[bool] = True

    arms: tuple[str, ...] = ("off", "1", "2", "4", "8")
    """Arms to choose from; of equal ones the first wins."""
    off_state: OffState = "in_step"
    """How the engine runs under the arm `off`."""
    entry: Entry = "none"
    """What drafting again costs (only with off_state `dropped`)."""
    epoch_cycles: int = 64
    """Engine cycles between two decisions."""
    switch_cost_s: float = 0.0
    """Seconds lost by a change of arm, spread over one epoch."""
    hysteresis: float = 0.03
    """Relative gain that a change of arm must promise."""
    acceptance_prior: tuple[float, ...] = ASSUMED_SURVIVAL
    """Probability that the drafts up to each position are all accepted, until it is measured (assumed)."""
    tree_prior: dict[str, float] = msgspec.field(default_factory=dict)
    """Accepted length with the bonus token, by tree arm, until measured (else as a chain of its depth)."""
    memory_cycles: float = 2000.0
    """Request-cycles over which the acceptance estimate forgets."""
    probe_every_cycles: int = 0
    """After this many cycles off, draft for one epoch to see the acceptance anew; 0: never."""

    def __post_init__(self) -> None:
        arms = [parse_arm(text) for text in self.arms]
        if not arms or len(set(arms)) != len(arms):
            raise InputError("arms", self.arms, "one or more arms, each once", "correct the list")
        prior = self.acceptance_prior
        falls = all(low <= high for high, low in zip((1.0, *prior), prior, strict=False))
        if not prior or not falls or not prior[-1] >= 0:
            raise InputError(
                "acceptance_prior",
                prior,
                "probabilities that never rise",
                "give survival, not conditional rates",
            )
        for text, length in self.tree_prior.items():
            arm = parse_arm(text)
            if arm.is_chain or not 1 <= length <= arm.depth + 1:
                raise InputError(
                    "tree_prior",
                    {text: length},
                    "a tree arm with a length of 1 to depth + 1",
                    "correct the entry",
                )
        for field, low in (
            ("epoch_cycles", 1),
            ("switch_cost_s", 0),
            ("hysteresis", 0),
            ("probe_every_cycles", 0),
        ):
            value = getattr(self, field)
            if not (isfinite(value) and value >= low):
                raise InputError(field, value, f"{low} or more", "give a larger number")
        if not (isfinite(self.memory_cycles) and self.memory_cycles > 0):
            raise InputError(
                "memory_cycles", self.memory_cycles, "above 0", "give a number of request-cycles"
            )

    def build(self, rng: Rng, times: StepTimes | None) -> GoodputPolicy:  # noqa: ARG002 (nothing is random)
        """Return the policy; raises InputError if `times` is missing or lacks an arm."""
        return GoodputPolicy(self, times)


class GoodputPolicy:
    """Scores all arms at each decision; learns acceptance from every drafting epoch."""

    def __init__(self, config: GoodputConfig, times: StepTimes | None) -> None:
        self.off_state: OffState = config.off_state
        self.entry: Entry = config.entry
        self.arms: tuple[Arm, ...] = tuple(parse_arm(text) for text in config.arms)
        self._config = config
        self._times = required_times("goodput", times, self.arms)
        self._drafting = tuple(arm for arm in self.arms if arm.depth > 0)
        tree_prior = {parse_arm(text): length for text, length in config.tree_prior.items()}
        self._acceptance = AcceptanceEstimate(config.acceptance_prior, tree_prior, config.memory_cycles)
        self._switch_s = config.switch_cost_s / config.epoch_cycles
        self._current: Arm | None = None
        self._cycles_off = 0

    def begin_rollout(self) -> None:
        """Forget the arm in use: the caches are empty, so any arm may be taken up freely."""
        self._current = None
        self._cycles_off = 0

    def choose(self, batch: Batch) -> Choice:
        """Return the arm of the highest score, for one decision epoch."""
        every = self._config.probe_every_cycles
        if every and self._cycles_off >= every and self._drafting:
            # A probe does not become the arm in use, so going back to OFF has no hysteresis to overcome.
            return Choice(self._best(self._drafting, batch)[0], self._config.epoch_cycles)
        best, score = self._best(self.arms, batch)
        current = self._current
        if current is None or score > self._score(current, batch) * (1 + self._config.hysteresis):
            self._current = current = best
        return Choice(current, self._config.epoch_cycles)

    def observe(self, outcome: Outcome) -> None:
        """Update the acceptance estimate, or count the cycles that ran without drafts."""
        if outcome.arm == OFF:
            self._cycles_off += outcome.cycles
        else:
            self._cycles_off = 0
            self._acceptance.observe(outcome)

    def _best(self, arms: tuple[Arm, ...], batch: Batch) -> tuple[Arm, float]:
        scores = [self._score(arm, batch) for arm in arms]
        score = max(scores)
        return arms[scores.index(score)], score

    def _score(self, arm: Arm, batch: Batch) -> float:
        """Return expected tokens per second of the batch."""
        seconds = self._times.cycle_s(arm, batch)
        if self._current is not None and arm != self._current:
            seconds += self._switch_s
        return batch.requests * self._acceptance.tokens_per_cycle(arm) / seconds
