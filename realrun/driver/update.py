"""What the driver works out before an update: advantages, minibatches, what the head gets accepted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from tlt.realrun.driver.requests import LiveRequests
from tlt.realrun.driver.step import LiveStep
from tlt.realrun.workers.messages import Minibatch, Probe
from tlt.traces.runs.acceptance import length_with_bonus
from tltsched.events import DraftersMeasured

EPSILON = 1e-6


class Learning(msgspec.Struct, frozen=True, kw_only=True):
    """How RL training goes on behind a rollout."""

    minibatches: int
    scale_advantages: bool
    heads: str  # folder of published heads
    most_drafts: int  # largest K


def parts_of(
    state: LiveStep, requests: LiveRequests, learning: Learning
) -> tuple[dict[int, float], tuple[Minibatch, ...]]:
    """Return the advantage of each response, and which ones go into which optimizer step."""
    rewards = dict(sorted(state.rewards.items()))
    groups = {request: requests.group(request) for request in requests.alive}
    members = [groups[request] for request in rewards]
    values = advantages(list(rewards.values()), members, learning.scale_advantages)
    tokens = {response.request: response.tokens for response in state.responses}
    parts = minibatches(tokens, groups, learning.minibatches)
    return dict(zip(rewards, values, strict=True)), parts


def drafters_measured(state: LiveStep, now_s: float, most_drafts: int) -> DraftersMeasured:
    """Return what each drafter gets accepted: the head by its probes, the other where it served."""
    served = state.drafter == "model_free"
    accepted = length_with_bonus(state.accepted_tokens, state.request_steps) if served else None
    return DraftersMeasured(now_s, head_length(state.probes, most_drafts), accepted)


def advantages(rewards: Sequence[float], groups: Sequence[int], scale: bool) -> list[float]:
    """Return reward less the group's mean; with `scale` over its standard deviation (GRPO).

    A group of equal rewards has advantages of exactly 0.
    """
    members: dict[int, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        members.setdefault(group, []).append(reward)
    centre = {group: statistics.fmean(values) for group, values in members.items()}
    spread = {
        group: statistics.pstdev(values) + EPSILON if scale else 1.0 for group, values in members.items()
    }
    equal = {group for group, values in members.items() if min(values) == max(values)}
    return [
        0.0 if group in equal else (reward - centre[group]) / spread[group]
        for reward, group in zip(rewards, groups, strict=True)
    ]


def minibatches(tokens: dict[int, int], groups: dict[int, int], count: int) -> tuple[Minibatch, ...]:
    """Return the requests of each of `count` optimizer steps, whole groups, with their response tokens.

    `tokens` and `groups` are by request; with fewer groups there are as many steps as groups.
    """
    names = sorted({groups[request] for request in tokens})
    count = min(count, len(names))
    parts = []
    for part in range(count):
        mine = set(names[part::count])
        requests = tuple(sorted(request for request in tokens if groups[request] in mine))
        parts.append((requests, sum(tokens[request] for request in requests)))
    return tuple(parts)


def head_length(probes: Sequence[Probe], most_drafts: int) -> float | None:
    """Return the acceptance length, bonus counted, that probes expect of the serving head; None without any.

    Drafts and targets are taken as sampled; positions from `most_drafts` on are never drafted.
    """
    mine = [probe for probe in probes if probe.head == "serving" and probe.position < most_drafts]
    tokens, shared = dict[int, int](), dict[int, float]()
    for probe in mine:
        tokens[probe.position] = tokens.get(probe.position, 0) + probe.tokens
        shared[probe.position] = shared.get(probe.position, 0.0) + probe.sampled * probe.tokens
    if not mine:
        return None
    return 1.0 + sum(shared[position] / max(count, 1) for position, count in tokens.items())
