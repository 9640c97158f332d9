"""GRPO's advantages: what a response is worth within its group. The driver computes them, without torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

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
