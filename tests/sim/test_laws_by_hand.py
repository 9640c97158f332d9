"""Acceptance laws against published cells and formulas, and the ends of what they take."""

from __future__ import annotations

import csv
from math import log2, nan

import numpy as np
import pytest
from scipy.optimize import brentq

from tlt.sim.acceptance.laws import (
    TOPK_GRID,
    TOPK_LENGTH,
    AcceptanceLaw,
    Geometric,
    PerPosition,
    PublishedTree,
    require_survivals,
)
from tlt.sim.steptimes.calibration import SHIPPED
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError

GIVEN = PerPosition((0.9, 0.6, 0.3))


def cells() -> list[tuple[int, int, float]]:
    """Return TLT's figure 13: depth, tokens to verify, acceptance length with the bonus token."""
    with (SHIPPED / "raw" / "tlt-fig13.csv").open(encoding="utf-8") as file:
        return [
            (int(row["depth"]), int(row["verify_tokens"]), float(row["acceptance_length_with_bonus"]))
            for row in csv.DictReader(file)
        ]


def test_survivals_fall_from_1_to_0() -> None:
    for good in ([1.0], [0.0], [1.0, 1.0, 0.0], [0.9, 0.9, 0.1]):
        require_survivals("field", good)
    for bad in ([], [1.01], [-0.01], [0.5, 0.51], [0.5, nan], [nan]):
        with pytest.raises(InputError, match="field"):
            require_survivals("field", bad)


def test_a_geometric_law_has_powers_of_its_rate() -> None:
    law = Geometric(0.7)
    assert law.survival(chain(4)) == pytest.approx([0.7, 0.49, 0.343, 0.2401])
    assert len(law.survival(OFF)) == 0
    assert law.observed_under(chain(3)) == chain(3)
    assert not law.extrapolates(chain(99))
    assert law.source == "assumed: geometric acceptance"
    with pytest.raises(InputError, match=r"geometric.*published_tree"):
        law.survival(DraftConfig(4, 2, 8))


def test_given_positions_are_cut_or_go_on_at_their_last_rate() -> None:
    """0.3 / 0.6 = 0.5 at each further position."""
    assert GIVEN.survival(chain(1)) == pytest.approx([0.9])
    assert GIVEN.survival(chain(2)) == pytest.approx([0.9, 0.6])
    assert GIVEN.survival(chain(3)) == pytest.approx([0.9, 0.6, 0.3])
    assert GIVEN.survival(chain(6)) == pytest.approx([0.9, 0.6, 0.3, 0.15, 0.075, 0.0375])
    assert PerPosition((0.4,)).survival(chain(3)) == pytest.approx([0.4, 0.16, 0.064])
    assert PerPosition((0.4, 0.2)).survival(chain(3)) == pytest.approx([0.4, 0.2, 0.1])
    assert PerPosition((0.4, 0.0, 0.0)).survival(chain(5)) == pytest.approx([0.4, 0, 0, 0, 0])
    assert len(GIVEN.survival(OFF)) == 0
    assert [GIVEN.extrapolates(chain(k)) for k in (2, 3, 4)] == [False, False, True]
    assert GIVEN.observed_under(chain(1)) == chain(3)
    with pytest.raises(InputError, match="per_position"):
        GIVEN.survival(DraftConfig(4, 2, 8))


@pytest.mark.parametrize(("depth", "verify", "length"), cells())
def test_trees_have_their_published_length(depth: int, verify: int, length: float) -> None:
    tree = DraftConfig(depth, 8, verify)
    law = PublishedTree()
    assert law.mean_length_with_bonus(tree) == pytest.approx(length)
    survival = law.survival(tree)
    assert len(survival) == depth
    assert 1 + survival.sum() == pytest.approx(length)
    assert survival[1:] / survival[:-1] == pytest.approx([survival[0]] * (depth - 1))  # geometric
    assert law.observed_under(tree) == tree


def test_between_cells_lengths_are_linear_in_depth_and_log_width() -> None:
    known = {(depth, verify): length for depth, verify, length in cells()}
    depths, widths = (sorted({cell[axis] for cell in known}) for axis in (0, 1))
    law = PublishedTree()
    (low, high), (narrow, wide) = depths[:2], widths[:2]
    depth, verify = (low + high) // 2, (narrow + wide) // 2
    across, down = (log2(verify) - log2(narrow)) / (log2(wide) - log2(narrow)), (depth - low) / (high - low)
    expected = sum(
        known[d, w] * (down if d == high else 1 - down) * (across if w == wide else 1 - across)
        for d in (low, high)
        for w in (narrow, wide)
    )
    assert law.mean_length_with_bonus(DraftConfig(depth, 8, verify)) == pytest.approx(expected)


def test_the_effect_of_topk_is_the_published_one() -> None:
    """TLT, table 1, over the length at top-k 8."""
    assert dict(zip(TOPK_GRID, TOPK_LENGTH, strict=True)) == {
        4: 8.29, 6: 8.66, 8: 8.67, 10: 8.67, 12: 8.60, 16: 8.42,
    }  # fmt: skip
    depth, verify, length = cells()[0]
    law = PublishedTree()
    for topk, other in zip(TOPK_GRID, TOPK_LENGTH, strict=True):
        found = law.mean_length_with_bonus(DraftConfig(depth, int(topk), verify))
        assert found == pytest.approx(length * other / 8.67)


def test_no_tree_gets_more_than_it_drafts_or_less_than_nothing() -> None:
    """At most 99 % of its positions, and of what it verifies beside the root."""
    law = PublishedTree()
    assert law.mean_length_with_bonus(DraftConfig(1, 8, 128)) == pytest.approx(1.99)
    assert law.mean_length_with_bonus(DraftConfig(16, 8, 3)) <= 1 + 0.99 * 2
    assert law.survival(DraftConfig(1, 8, 128)) == pytest.approx([0.99])
    with pytest.raises(InputError, match="trees such as"):
        law.survival(chain(4))


def test_where_the_published_grid_ends() -> None:
    law = PublishedTree()
    inside = [(4, 4, 16), (16, 16, 128), (4, 16, 128), (8, 8, 48)]
    outside = [(3, 8, 48), (17, 8, 48), (8, 3, 48), (8, 17, 48), (8, 8, 15), (8, 8, 129)]
    assert not any(law.extrapolates(DraftConfig(*each)) for each in inside)
    assert all(law.extrapolates(DraftConfig(*each)) for each in outside)


def test_the_truncated_geometric_by_its_own_equation() -> None:
    tree = DraftConfig(8, 8, 48)
    law = PublishedTree()
    mean = law.mean_length_with_bonus(tree) - 1
    rate = brentq(lambda p: sum(p**j for j in range(1, 9)) - mean, 0.0, 1.0)
    assert law.survival(tree) == pytest.approx([rate**j for j in range(1, 9)])
    assert np.all(np.diff(law.survival(tree)) < 0)


@pytest.mark.parametrize("law", [Geometric(0.5), GIVEN, PublishedTree()])
def test_laws_say_what_they_rest_on_and_do_not_change(law: AcceptanceLaw) -> None:
    assert law.source.startswith(("assumed: ", "published: "))
    with pytest.raises(AttributeError):
        law.source = "mine"  # type: ignore[misc]
