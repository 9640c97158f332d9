"""TLT's policy in compiled code: the threshold, and the paper's bandit below it.

The rules are those of tltsched.policies.threshold and tltsched.policies.beg_mab, written once more for
numbers in arrays. Rewards and the generator are shared: policy and compiled code go on from each other's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tlt.sim.model.engines.compiled import memory as at
from tlt.sim.model.engines.compiled.cache import compiled
from tlt.sim.model.engines.compiled.numbers import address_of, below, uniform
from tlt.sim.model.engines.compiled.rollout import CONFIG, LEAST, MOST, UNLIMITED, roll_with
from tlt.sim.model.engines.engine import DecisionInterval
from tlt.traces.common.arrays import Floats, Ints
from tltsched.draft_config import OFF, DraftConfig
from tltsched.policies.base import Policy, Rng
from tltsched.policies.beg_mab import PaperBegMab
from tltsched.policies.threshold import ThresholdPolicy


class Rule(NamedTuple):
    """A policy as compiled code takes it. Draft configurations go by their places."""

    state: int  # address of the generator's state
    epsilon: float
    # Threshold (NO_THRESHOLD: none), engine steps of its warm-up, latch, engine steps of a decision.
    numbers: Ints
    edges: Ints  # smallest batch of each bucket
    arms: Ints  # in order of the buckets
    firsts: Ints  # which of them each bucket begins with, and their number
    values: Floats  # rewards, [configs, window], a ring each
    counts: Ints  # how often each of them stands there
    # Of each ring: its oldest entry, how many there are, rewards in all, whether the median is known.
    heads: Ints
    medians: Floats
    marks: Ints  # the threshold's: engine steps under it, whether these are counted, whether it lets draft


THRESHOLD, WARMUP, LATCH, DECISION, OFF_PLACE = range(5)
OLDEST, ENTRIES, HELD, KNOWN = range(4)
UNDER, COUNTING, ENABLED = range(3)
NO_THRESHOLD = -1


@compiled
def push(values, counts, head, value, count):
    """Window.add: append `value` `count` times to a ring; the oldest repeats fall out."""
    length = len(values)
    count = min(count, length)
    head[KNOWN] = False
    surplus = head[HELD] + count - length
    head[HELD] = min(head[HELD] + count, length)
    while surplus > 0:
        oldest = head[OLDEST]
        if counts[oldest] > surplus:
            counts[oldest] -= surplus
            break
        surplus -= counts[oldest]
        head[OLDEST] = (oldest + 1) % length
        head[ENTRIES] -= 1
    to = (head[OLDEST] + head[ENTRIES]) % length
    values[to], counts[to] = value, count
    head[ENTRIES] += 1


@compiled
def median_of(values, counts, head):
    """sliding_median.weighted_median of a ring that holds something."""
    n, length = head[ENTRIES], len(values)
    ranked, often = np.empty(n), np.empty(n, np.int64)
    for i in range(n):
        k = (head[OLDEST] + i) % length
        value = values[k]
        j = i
        while j > 0 and ranked[j - 1] > value:
            ranked[j], often[j] = ranked[j - 1], often[j - 1]
            j -= 1
        ranked[j], often[j] = value, counts[k]
    low_rank, high_rank = (head[HELD] - 1) // 2, head[HELD] // 2
    seen, low, i = 0, np.nan, 0
    while True:
        seen += often[i]
        if seen > high_rank:
            return ranked[i] if np.isnan(low) else (low + ranked[i]) / 2
        if np.isnan(low) and seen > low_rank:
            low = ranked[i]
        i += 1


@compiled
def median(values, counts, head, medians, arm):
    """Return the median of a ring, infinity while it is empty; worked out once."""
    if not head[ENTRIES]:
        return np.inf
    if not head[KNOWN]:
        medians[arm], head[KNOWN] = median_of(values, counts, head), True
    return medians[arm]


@compiled
def pick(rule, whole, requests):
    """PaperBegMab.choose."""
    bucket = max(np.searchsorted(rule.edges, requests, side="right") - 1, 0)
    first, several = rule.firsts[bucket], rule.firsts[bucket + 1] - rule.firsts[bucket]
    whole[LEAST] = rule.edges[bucket]
    if several == 1:
        whole[CONFIG], whole[MOST] = rule.arms[first], UNLIMITED
        return
    whole[MOST] = rule.numbers[DECISION]
    if uniform(rule.state) < rule.epsilon:
        whole[CONFIG] = rule.arms[first + below(rule.state, several)]
        return
    best = -np.inf
    for k in range(first, first + several):
        arm = rule.arms[k]
        score = median(rule.values[arm], rule.counts[arm], rule.heads[arm], rule.medians, arm)
        if score > best:
            best, whole[CONFIG] = score, arm


@compiled
def choose(rule, whole, requests, _context):
    """ThresholdPolicy.choose."""
    threshold, marks = rule.numbers[THRESHOLD], rule.marks
    if threshold != NO_THRESHOLD:
        under = requests <= threshold
        if not under:
            marks[UNDER] = 0
        left = rule.numbers[WARMUP] - marks[UNDER]
        latched = marks[ENABLED] > 0 and rule.numbers[LATCH] > 0
        enabled = (under and left <= 0) or latched
        marks[ENABLED], marks[COUNTING] = enabled, under and not enabled
        if not enabled:
            whole[CONFIG] = rule.numbers[OFF_PLACE]
            whole[MOST], whole[LEAST] = (left, 1) if under else (UNLIMITED, threshold + 1)
            return
    pick(rule, whole, requests)


@compiled
def observe(rule, whole, _batch, tables, steps, request_steps, decode_s, _done):
    """ThresholdPolicy.observe and PaperBegMab.observe."""
    arm = whole[CONFIG]
    depth = tables.depths[arm]
    if not depth:
        if rule.marks[COUNTING]:
            rule.marks[UNDER] += steps
        return
    emitted = request_steps + tables.ints[at.ACCEPTED : at.ACCEPTED + depth].sum()
    push(rule.values[arm], rule.counts[arm], rule.heads[arm], emitted / decode_s, steps)


ROLL = roll_with("roll_bandit", choose, observe)


class Twister:
    """A generator of Python's, to be drawn from by both; raises TypeError for one of another kind."""

    def __init__(self, rng: Rng) -> None:
        if not isinstance(rng, random.Random):
            raise TypeError(f"no random.Random: {rng!r}")
        _, (*key, position), _ = rng.getstate()
        self._bits = np.random.MT19937()
        self._bits.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": position},
        }
        self._drawn = np.random.Generator(self._bits)
        self.address = address_of(self._drawn)

    def random(self) -> float:
        """Return a float in [0, 1)."""
        return float(uniform(self.address))

    def randrange(self, stop: int, /) -> int:
        """Return an integer in [0, stop)."""
        return int(below(self.address, stop))


class Ring:
    """The rewards of one strategy, in arrays of a rule."""

    def __init__(self, rule: Rule, arm: int) -> None:
        self._ring = rule.values[arm], rule.counts[arm], rule.heads[arm]
        self._medians, self._arm = rule.medians, arm

    def add(self, value: float, count: int) -> None:
        """Append `value` `count` times."""
        push(*self._ring, value, count)

    def median(self) -> float | None:
        """Return the median; None: there are none."""
        values, counts, head = self._ring
        return float(median(values, counts, head, self._medians, self._arm)) if head[ENTRIES] else None


class Bandit:
    """A policy that goes on in compiled code to the end of a rollout."""

    roll = staticmethod(ROLL)
    tells = False

    def __init__(self, policy: ThresholdPolicy | PaperBegMab, inner: PaperBegMab) -> None:
        """Give the policy a generator and rewards that are shared."""
        self._policy, config = policy, inner.config
        self.configs: tuple[DraftConfig, ...] = tuple(dict.fromkeys((OFF, *policy.draft_configs)))
        twister, n = Twister(inner.rng), len(self.configs)
        numbers = [NO_THRESHOLD, 0, 0]
        if isinstance(policy, ThresholdPolicy):
            outer = policy.config
            numbers = [outer.threshold_requests, outer.warmup_engine_steps, outer.latch]
        sizes = np.array([0, *(len(arms) for arms in inner.buckets)], np.int64)
        self.rule = Rule(
            twister.address,
            config.epsilon,
            np.array([*numbers, config.decision_engine_steps, self.configs.index(OFF)], np.int64),
            np.array(config.thresholds, np.int64),
            np.array([self.configs.index(arm) for arms in inner.buckets for arm in arms], np.int64),
            sizes.cumsum(),
            np.zeros((n, config.window)),
            np.zeros((n, config.window), np.int64),
            np.zeros((n, 4), np.int64),
            np.zeros(n),
            np.zeros(3, np.int64),
        )
        inner.rng = twister
        inner.rewards = {arm: Ring(self.rule, self.configs.index(arm)) for arm in inner.draft_configs}

    def takes(self, draft_config: DraftConfig) -> bool:
        """Return whether a rollout may go on in compiled code behind this decision: always."""
        del draft_config
        return True

    def begin(self, requests: Ints) -> Rule:
        """Return the rule as it stands behind the decision that is open."""
        del requests
        if isinstance(policy := self._policy, ThresholdPolicy):
            self.rule.marks[:] = policy.engine_steps_under, policy.counting, policy.enabled
        return self.rule

    def end(self, requests: Ints, last: Callable[[], DecisionInterval]) -> None:
        """Have the policy know what was learned: it shares all of that."""


def bandit_of(policy: Policy) -> Bandit | None:
    """Return what a policy needs to go on in compiled code, which it shares then; None: it cannot."""
    inner = policy.inner if isinstance(policy, ThresholdPolicy) else policy
    if not isinstance(inner, PaperBegMab) or not isinstance(inner.rng, random.Random):
        return None
    if any(isinstance(each, Ring) for each in inner.rewards.values()):
        return None
    return Bandit(policy, inner)  # type: ignore[arg-type]
