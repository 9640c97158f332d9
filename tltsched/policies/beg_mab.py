"""BEG-MAB, TLT's bucketed epsilon-greedy bandit, as its paper has it and as its released code has it.

Strategies are grouped by the tokens they verify, and each group serves one range of batch sizes: the widest
verification goes with the smallest batches. Inside a range of more than one strategy, one is picked at random
with probability epsilon, or else the one whose rewards have the highest median over a sliding window.

The variants differ in what a reward is and in who shares it:
    paper     r = (accepted per request + 1) * batch / elapsed of the same engine step, one window a strategy.
    released  a window a strategy and a batch-size group, nothing shared between groups, so that a strategy is
              tried anew in each group that is met; and r takes the strategy's median acceptance over all
              groups, refreshed in one engine step out of ten, in place of the acceptance of the engine step.
Both learn across rollouts; only a latch around them is reset.
Sources: arXiv 2511.16665 and mit-han-lab/fastrl.
"""

from __future__ import annotations

from itertools import chain
from math import inf
from typing import Literal, Protocol

from tltsched.commands import ResumeCost
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome, PolicyConfig, Rng, StepTimes, WhenOff
from tltsched.policies.estimators.batch_ranges import bucket_of, check_edges
from tltsched.policies.estimators.sliding_median import Window, weighted_median
from tltsched.written.draft_config import WrittenDraftConfig, parse_draft_config

# Lower edges of the released code's batch-size groups: one bandit each.
RELEASED_GROUPS: tuple[int, ...] = (*range(1, 32), *range(32, 128, 8), *range(128, 257, 32))
# Chance, an engine step, that the released code computes the stable acceptance of a strategy again.
RELEASED_REFRESH = 0.1
RELEASED_STRATEGIES = ("8_4_48", "8_4_32", "8_4_16", "8_4_8")
RELEASED_THRESHOLDS = (1, 2, 5, 21)


class BegMabConfig(PolicyConfig, tag="beg_mab", frozen=True):
    """Choose among strategies by their measured tokens per second. By itself it never stops drafting."""

    variant: Literal["paper", "released"] = "paper"
    """Which of the two rules above."""
    epsilon: float = 0.1
    """Probability of a uniformly random pick in a bucket of more than one strategy."""
    window: int = 300
    """Engine steps whose rewards count, a strategy (and, if released, a group)."""
    thresholds: tuple[int, ...] = RELEASED_THRESHOLDS
    """Smallest batch of each bucket, ascending from 1; one for each number of tokens to verify."""
    strategies: tuple[WrittenDraftConfig, ...] = RELEASED_STRATEGIES
    """Trees or chains such as 8_4_48; those that verify equally many tokens compete in one bucket."""
    decision_engine_steps: int = 64
    """Engine steps between two picks (the original picks in each); unused in buckets of one strategy."""

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise InputError("epsilon", self.epsilon, "0 to 1", "give a probability")
        for field, value in (("window", self.window), ("decision_engine_steps", self.decision_engine_steps)):
            if value < 1:
                raise InputError(field, value, "1 or more engine steps", "give a larger number")
        arms = [parse_draft_config(text) for text in self.strategies]
        if not arms or len(set(arms)) != len(arms) or any(arm.depth == 0 for arm in arms):
            raise InputError(
                "strategies", self.strategies, "one or more, each once, none of them off", "correct the list"
            )
        self._normalise(strategies=tuple(map(str, arms)))
        edges = self.thresholds
        check_edges("thresholds", edges)
        widths = sorted({arm.verify_tokens for arm in arms}, reverse=True)
        if len(edges) != len(widths):
            raise InputError(
                "thresholds",
                edges,
                f"{len(widths)} batch sizes, one for each number of tokens to verify in {widths}",
                "add or drop a threshold or a strategy",
            )

    def build(self, rng: Rng, times: StepTimes | None) -> BegMabPolicy:  # noqa: ARG002 (it measures times)
        """Return the policy of the variant."""
        return ReleasedBegMab(self, rng) if self.variant == "released" else PaperBegMab(self, rng)


class Rewards(Protocol):
    """The last so many rewards of a strategy."""

    def add(self, value: float, count: int) -> None:
        """Append `value` `count` times."""

    def median(self) -> float | None:
        """Return the median; None: there are none."""


class BegMabPolicy:
    """What the variants share: buckets, and the pick inside one."""

    def __init__(self, config: BegMabConfig, rng: Rng) -> None:
        self.when_off: WhenOff = "not_configured"
        self.resume_cost: ResumeCost = "none"
        self.draft_configs: tuple[DraftConfig, ...] = tuple(map(parse_draft_config, config.strategies))
        self.config, self.rng = config, rng
        widths = sorted({arm.verify_tokens for arm in self.draft_configs}, reverse=True)
        self.buckets = [
            tuple(arm for arm in self.draft_configs if arm.verify_tokens == width) for width in widths
        ]
        # A bucket of one strategy leaves nothing to decide, so its choice holds to the bucket's edge.
        self._single = [
            Choice(arms[0], None, edge) if len(arms) == 1 else None
            for arms, edge in zip(self.buckets, config.thresholds, strict=True)
        ]

    def begin_rollout(self) -> None:
        """Keep the rewards: they survive a rollout."""

    def choose(self, batch: Batch) -> Choice:
        """Return the strategy to use for this batch."""
        bucket = bucket_of(self.config.thresholds, batch.requests)
        if (single := self._single[bucket]) is not None:
            return single
        lowest = max(self.config.thresholds[bucket], self._group(batch.requests))
        arms = self.buckets[bucket]
        if self.rng.random() < self.config.epsilon:
            arm = arms[self.rng.randrange(len(arms))]
        else:
            scores = [self._score(batch.requests, arm) for arm in arms]
            arm = arms[scores.index(max(scores))]
        return Choice(arm, self.config.decision_engine_steps, lowest)

    def observe(self, outcome: Outcome) -> None:
        """Record the reward of a decision interval as often as it had engine steps."""
        raise NotImplementedError

    def _group(self, requests: int) -> int:
        """Return the lower edge of the batch-size group whose rewards count."""
        raise NotImplementedError

    def _score(self, requests: int, arm: DraftConfig) -> float:
        """Return the median reward of an arm for batches of this size."""
        raise NotImplementedError


class PaperBegMab(BegMabPolicy):
    """Rewards of the engine step itself, one window a strategy."""

    def __init__(self, config: BegMabConfig, rng: Rng) -> None:
        super().__init__(config, rng)
        self.rewards: dict[DraftConfig, Rewards] = {arm: Window(config.window) for arm in self.draft_configs}
        """A driver may put others here that answer alike."""

    def observe(self, outcome: Outcome) -> None:
        """Record tokens per second, bonus tokens included: a * batch is what an engine step emits."""
        emitted_tokens = sum(outcome.accepted_by_position) + outcome.request_steps
        self.rewards[outcome.draft_config].add(emitted_tokens / outcome.decode_s, outcome.engine_steps)

    def _group(self, requests: int) -> int:  # noqa: ARG002 (all batches share the rewards)
        return 1

    def _score(self, requests: int, arm: DraftConfig) -> float:  # noqa: ARG002 (all batches share the rewards)
        # The paper does not say what a strategy scores before its first reward: +inf, so that each is tried.
        median = self.rewards[arm].median()
        return inf if median is None else median


class ReleasedBegMab(BegMabPolicy):
    """Rewards by batch-size group, made of the strategy's stable acceptance length (bonus token included)."""

    def __init__(self, config: BegMabConfig, rng: Rng) -> None:
        super().__init__(config, rng)
        self._rewards: dict[DraftConfig, dict[int, Window]] = {arm: {} for arm in self.draft_configs}
        self._accept_lengths: dict[DraftConfig, dict[int, Window]] = {arm: {} for arm in self.draft_configs}
        self._stable_length = dict.fromkeys(self.draft_configs, 0.0)

    def observe(self, outcome: Outcome) -> None:
        """Record the reward in the group of the interval's mean batch.

        The stable length is taken before the interval's own acceptance is known, as in the original; so the
        very first engine step of a strategy is rewarded with zero.
        """
        arm, steps = outcome.draft_config, outcome.engine_steps
        group = self._group(outcome.request_steps // steps)
        if group not in self._rewards[arm]:
            self._rewards[arm][group] = Window(self.config.window)
            self._accept_lengths[arm][group] = Window(self.config.window)
        rewards, lengths = self._rewards[arm][group], self._accept_lengths[arm][group]
        accept_length = 1 + sum(outcome.accepted_by_position) / outcome.request_steps
        batches_per_s = outcome.request_steps / outcome.decode_s
        if self._stable_length[arm] == 0.0:  # nothing known yet: an acceptance length is never below 1
            rewards.add(0.0, 1)
            lengths.add(accept_length, 1)
            steps -= 1
            self._refresh(arm)
        elif self.rng.random() < 1 - (1 - RELEASED_REFRESH) ** steps:
            self._refresh(arm)
        if steps:
            rewards.add(self._stable_length[arm] * batches_per_s, steps)
            lengths.add(accept_length, steps)

    def _refresh(self, arm: DraftConfig) -> None:
        """Take the stable length of an arm anew, of which acceptance is known."""
        windows = self._accept_lengths[arm].values()
        entries = list(chain.from_iterable(window.entries for window in windows))
        self._stable_length[arm] = weighted_median(entries)

    def _group(self, requests: int) -> int:
        return RELEASED_GROUPS[bucket_of(RELEASED_GROUPS, requests)]

    def _score(self, requests: int, arm: DraftConfig) -> float:
        window = self._rewards[arm].get(self._group(requests))
        median = window.median() if window is not None else None
        return inf if median is None else median
