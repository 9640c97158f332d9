"""How many drafted tokens the target accepts in one engine step: laws over the positions of a draft.

A law gives the survival of a draft configuration, P(accepted drafts >= j) for j = 1..depth, of a fresh
drafter. Whose survival that is, tlt.sim.acceptance.average says. With the bonus token an engine step emits
1 + accepted tokens.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np
from scipy.interpolate import RegularGridInterpolator
from scipy.optimize import brentq

from tlt.sim.steptimes.calibration import SHIPPED
from tlt.traces.common.arrays import Floats
from tltsched.draft_config import DraftConfig, chain
from tltsched.errors import InputError

# Published effect of top-k on the acceptance length (TLT, table 1; top-k 8 is 1).
TOPK_GRID = (4.0, 6.0, 8.0, 10.0, 12.0, 16.0)
TOPK_LENGTH = (8.29, 8.66, 8.67, 8.67, 8.60, 8.42)


def require_survivals(field: str, survivals: Sequence[float]) -> None:
    """Raise InputError unless these are P(drafts up to position j are all accepted), one position or more."""
    falls = (1.0, *survivals, 0.0)
    if not survivals or not all(high >= low for high, low in pairwise(falls)):
        raise InputError(
            field, list(survivals),
            "probabilities in [0, 1] that never rise", "give survivals, not conditional rates",
        )  # fmt: skip


class AcceptanceLaw(Protocol):
    """Where survivals come from."""

    @property
    def source(self) -> str:
        """Return one line that says what the law rests on."""

    def survival(self, draft_config: DraftConfig) -> Floats:
        """Return P(accepted drafts >= j) for j = 1..depth, [depth]; raises InputError if not covered."""

    def observed_under(self, draft_config: DraftConfig) -> DraftConfig:
        """Return the draft configuration under which the survivals of this one are averages of a run."""

    def extrapolates(self, draft_config: DraftConfig) -> bool:
        """Return whether the draft configuration lies outside what the law was made from."""


class Geometric(msgspec.Struct, frozen=True):
    """Each further draft is accepted with probability `rate`; trees are out of its reach."""

    rate: float
    source: str = "assumed: geometric acceptance"

    def survival(self, draft_config: DraftConfig) -> Floats:
        """Return rate ** j, [depth]."""
        _only_chains(draft_config, "geometric")
        return self.rate ** np.arange(1, draft_config.depth + 1, dtype=np.float64)

    def observed_under(self, draft_config: DraftConfig) -> DraftConfig:
        """Return the draft configuration itself: nothing says what the rate was measured under."""
        return draft_config

    def extrapolates(self, draft_config: DraftConfig) -> bool:
        """Return False: the law is the same at any depth."""
        del draft_config
        return False


class PerPosition(msgspec.Struct, frozen=True):
    """Unconditional acceptance by position, for chains; geometric past the last position given."""

    survival_by_position: tuple[float, ...]
    source: str = "assumed: given acceptance by position"

    def survival(self, draft_config: DraftConfig) -> Floats:
        """Return the given survivals, cut or continued to the draft configuration's depth, [depth]."""
        _only_chains(draft_config, "per_position")
        given = np.asarray(self.survival_by_position[: draft_config.depth])
        missing = draft_config.depth - len(given)
        if missing <= 0:
            return given
        before = self.survival_by_position[-2] if len(given) > 1 else 1.0
        rate = given[-1] / before if before else 0.0
        return np.concatenate([given, given[-1] * rate ** np.arange(1, missing + 1)])

    def observed_under(self, draft_config: DraftConfig) -> DraftConfig:
        """Return the chain of all positions given: all of them were drafted where they were measured."""
        del draft_config
        return chain(len(self.survival_by_position))

    def extrapolates(self, draft_config: DraftConfig) -> bool:
        """Return whether the draft configuration is deeper than the positions given."""
        return draft_config.depth > len(self.survival_by_position)


class PublishedTree(msgspec.Struct, frozen=True):
    """Mean acceptance length of trees by (depth, tokens to verify) from TLT's figure 13.

    Linear in depth and in log2 of the width, also beyond the grid (which `extrapolates` reports). Only the
    mean is published: the shape over positions is taken as a truncated geometric with that mean (assumed).
    """

    source: str = "published: TLT figure 13, Qwen2.5-32B, batch 1; geometric shape assumed"

    def survival(self, draft_config: DraftConfig) -> Floats:
        """Return the truncated geometric whose mean is the published one, [depth]."""
        if draft_config.is_chain:
            raise InputError(
                "draft_config", str(draft_config),
                "trees such as 8_8_16 under acceptance.kind = 'published_tree'",
                "use a tree, or set acceptance.kind to 'per_position' or 'geometric'",
            )  # fmt: skip
        return _truncated_geometric(draft_config.depth, self.mean_length_with_bonus(draft_config) - 1.0)

    def observed_under(self, draft_config: DraftConfig) -> DraftConfig:
        """Return the draft configuration itself: each has a cell of its own."""
        return draft_config

    def mean_length_with_bonus(self, draft_config: DraftConfig) -> float:
        """Return the published mean acceptance length, bonus token included."""
        mean = float(_published_grid()((draft_config.depth, np.log2(draft_config.verify_tokens))))
        mean *= float(np.interp(draft_config.topk, TOPK_GRID, TOPK_LENGTH)) / TOPK_LENGTH[2]
        most = min(draft_config.depth, draft_config.verify_tokens - 1)
        return float(np.clip(mean, 1.0, 1.0 + 0.99 * most))

    def extrapolates(self, draft_config: DraftConfig) -> bool:
        """Return whether depth, width or top-k lie outside the published grid."""
        return not (
            4 <= draft_config.depth <= 16
            and 16 <= draft_config.verify_tokens <= 128
            and 4 <= draft_config.topk <= 16
        )


def _only_chains(draft_config: DraftConfig, kind: str) -> None:
    if draft_config.depth and not draft_config.is_chain:
        raise InputError(
            "draft_config", str(draft_config), f"chains such as 4 under acceptance.kind = {kind!r}",
            "use a chain, or set acceptance.kind to 'published_tree'",
        )  # fmt: skip


@cache
def _published_grid() -> RegularGridInterpolator:
    with (SHIPPED / "raw" / "tlt-fig13.csv").open(newline="", encoding="utf-8") as file:
        cells = {
            (int(row["depth"]), int(row["verify_tokens"])): float(row["acceptance_length_with_bonus"])
            for row in csv.DictReader(file)
        }
    depths = sorted({depth for depth, _ in cells})
    widths = sorted({width for _, width in cells})
    lengths = [[cells[depth, width] for width in widths] for depth in depths]
    return RegularGridInterpolator(
        (depths, np.log2(widths)), np.array(lengths), bounds_error=False, fill_value=None
    )


@cache
def _truncated_geometric(depth: int, mean_accepted: float) -> Floats:
    """Return p ** j for j = 1..depth with p such that the survivals sum to the mean."""
    powers = np.arange(1, depth + 1)
    if mean_accepted <= 0.0:
        return np.zeros(depth)
    rate = brentq(lambda p: float(np.sum(p**powers)) - mean_accepted, 0.0, 1.0)
    return np.asarray(rate**powers, np.float64)
