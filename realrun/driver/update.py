"""What the driver works out before an update: advantages, minibatches, what the head gets accepted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tlt.realrun.workers.messages import Minibatch, Probe

EPSILON = 1e-6


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
