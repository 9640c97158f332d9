"""Counts of accepted drafts of one or several engines, and the law of acceptance that they are.

A verification is of `depth` drafts of one request in one engine step. Survival at position j is the share of
verifications whose drafts up to j were all accepted; over engines and intervals counts are added, so that
shares are weighted by verifications, of those that are as deep as j. Where only the mean of accepted drafts A
is stated, the law is geometric: its rate r solves r + r^2 + ... + r^depth = A.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
from scipy.optimize import brentq

from tltsched.errors import InputError

MOST_DEPTH = 64
ROUNDING = 0.02  # of a survival: shares are printed with two or three digits
CHAINS = 16  # drafts: whoever verifies more of them drafts a tree


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine counted over one interval.

    verifications: how many, or a weight where the number is not stated (`weighed` says by what).
    depth: drafts of a verification; None: not stated. accepted: of these in the mean, the bonus token not
    counted.
    by_position: survival at positions 1 to depth; empty: not stated.
    drafted: drafts of a verification in the mean, where that is less than depth.
    """

    verifications: float
    accepted: float
    depth: int | None = None
    by_position: tuple[float, ...] = ()
    drafted: float | None = None


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """A law of acceptance as `tlt sim` takes it. origin: what counted what, one line; notes: what to know."""

    kind: Literal["per_position", "geometric"]
    depth: int
    accepted: float
    origin: str
    survival_by_position: tuple[float, ...] = ()
    rate: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def length_with_bonus(self) -> float:
        """Tokens of a verification in the mean, the bonus token included."""
        return 1.0 + self.accepted

    def settings(self) -> dict[str, Any]:
        """Return the section `acceptance` of a configuration."""
        shape: dict[str, Any] = {"kind": self.kind, "measured": self.origin}
        if self.kind == "per_position":
            return shape | {"survival_by_position": list(self.survival_by_position)}
        return shape | {"rate": self.rate}


def law_of(
    counted: Sequence[Counted], source: str, weighed: str = "", depth: int | None = None
) -> Acceptance:
    """Return the law that counts are; `depth` is what the user says a verification drafts.

    source: what wrote them, for the origin. weighed: a sentence on their weights, where verifications are not
    stated.
    Raises InputError if they disagree or do not say how deep is drafted.
    """
    known = [one for one in counted if one.verifications > 0]
    if not known:
        raise InputError(
            f"drafts in {source}", 0, "1 or more", "nothing was drafted in it: no acceptance to take"
        )
    depths = sorted({one.depth for one in known if one.depth is not None})
    total = sum(one.verifications for one in known)
    mean = sum(one.accepted * one.verifications for one in known) / total
    notes = _notes(known, mean, weighed)
    if all(one.by_position for one in known):
        survival = _pooled(known, source)
        if len(depths) > 1:
            notes.append(
                f"drafts of {', '.join(map(str, depths))} tokens: each position over those that reach it"
            )
        deepest = len(survival)
        told = _told(source, weighed, total, deepest, sum(survival), "by position")
        return Acceptance(
            kind="per_position", depth=deepest, accepted=sum(survival), origin=told,
            survival_by_position=survival, notes=tuple(notes),
        )  # fmt: skip
    one_depth = _depth(depths, depth, mean, source)
    rate = geometric_rate(mean, one_depth)
    notes.append("only the mean is stated: a chain with a geometric shape over positions is assumed")
    told = _told(source, weighed, total, one_depth, mean, "mean alone, geometric shape assumed")
    return Acceptance(
        kind="geometric", depth=one_depth, accepted=mean, origin=told, rate=rate, notes=tuple(notes)
    )


def depth_of(drafted: float | None, verifications: float) -> int | None:
    """Return how deep all verifications are, None if it is not known or no depth."""
    if not drafted or not 0.5 * verifications < drafted <= MOST_DEPTH * verifications:
        return None
    return max(round(drafted / verifications), 1)


def geometric_rate(accepted: float, depth: int) -> float:
    """Return r of r + r^2 + ... + r^depth = accepted, for 0 <= accepted <= depth."""
    if accepted <= 0:
        return 0.0
    if accepted >= depth:
        return 1.0
    return float(brentq(lambda r: sum(r**j for j in range(1, depth + 1)) - accepted, 0.0, 1.0))


def _pooled(counted: Sequence[Counted], source: str) -> tuple[float, ...]:
    """Return survival by position over all; raises InputError where engines differ so that it would rise."""
    deepest = min(max(len(one.by_position) for one in counted), MOST_DEPTH)
    pooled = []
    for position in range(deepest):
        reach = [one for one in counted if len(one.by_position) > position]
        verifications = sum(one.verifications for one in reach)
        pooled.append(sum(one.by_position[position] * one.verifications for one in reach) / verifications)
    if not all(0 <= value <= 1 + ROUNDING for value in pooled):
        raise InputError(
            f"acceptance by position in {source}", [round(value, 3) for value in pooled],
            "shares from 0 to 1", "check the file",
        )  # fmt: skip
    if any(high < low - ROUNDING for high, low in pairwise(pooled)):
        raise InputError(
            f"acceptance by position in {source}", [round(value, 3) for value in pooled],
            "survivals, which never rise",
            "engines that draft differently do not add up: give the file of one of them",
        )  # fmt: skip
    falling: list[float] = []
    for value in pooled:
        falling.append(min(value, 1.0, falling[-1] if falling else 1.0))
    return tuple(round(value, 6) for value in falling)


def _depth(depths: list[int], given: int | None, accepted: float, source: str) -> int:
    if len(depths) > 1:
        raise InputError(
            f"drafts of a verification in {source}", ", ".join(map(str, depths)), "one number",
            "without counts by position several do not add up: give the part with one",
        )  # fmt: skip
    if given is not None and depths and depths[0] != given:
        raise InputError("--drafts", given, str(depths[0]), f"{source} states it: leave --drafts out")
    depth = depths[0] if depths else given
    if depth is None:
        raise InputError(
            f"drafts of a verification in {source}", "not stated",
            "what num_speculative_tokens or num_steps was",
            "say it (--drafts K, acceptance.read_drafts = K): "
            f"{1 + accepted:.2f} tokens a verification, bonus included, are another law for each K",
        )  # fmt: skip
    if not 1 <= depth <= MOST_DEPTH or accepted > depth * (1 + ROUNDING):
        raise InputError(
            "--drafts" if not depths else f"drafts of a verification in {source}", depth,
            f"{max(1, int(accepted - 1e-9) + 1)} to {MOST_DEPTH}",
            f"{accepted:.2f} drafts of a verification are accepted in the mean, the bonus token not counted",
        )  # fmt: skip
    return depth


def _notes(counted: Sequence[Counted], mean: float, weighed: str) -> list[str]:
    notes = []
    spread = [1 + one.accepted for one in counted]
    if len(spread) > 1 and max(spread) - min(spread) > 0.05:
        notes.append(
            f"tokens a verification, bonus included, range from {min(spread):.2f} to {max(spread):.2f} over "
            f"{len(spread):,} statements (mean {1 + mean:.2f}): the law is their mean"
        )
    if any(one.drafted is not None and one.depth and one.drafted < 0.99 * one.depth for one in counted):
        notes.append(
            "some verifications were less deep than others: deep positions are shares of all of them, so "
            "a lower bound"
        )
    if weighed:
        notes.append(f"verifications are not stated: {weighed}")
    return notes


def _told(source: str, weighed: str, verifications: float, depth: int, accepted: float, how: str) -> str:
    counted = f"drafts of {depth}" if weighed else f"{verifications:,.0f} drafts of {depth}"
    return f"{source}: {counted}, acceptance length {1 + accepted:.3g} with bonus ({how})"
