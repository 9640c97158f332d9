import csv

import numpy as np
import pytest

from tlt.sim.acceptance.laws import AcceptanceLaw, Geometric, PerPosition, PublishedTree
from tlt.sim.acceptance.population import ALIKE, Population
from tlt.sim.acceptance.process import Acceptance
from tlt.sim.steptimes.calibration import SHIPPED
from tlt.traces.common.arrays import Floats
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError

LENGTHS = np.array([40, 200, 900, 900, 3000, 17])
GROUPS = np.array([0, 0, 1, 1, 2, 2])
UNEVEN = Population(0.5, 0.3, 0.6, 0.2, -0.1, 0.4)
LAWS: list[tuple[AcceptanceLaw, DraftConfig]] = [
    (Geometric(0.7), chain(4)),
    (Geometric(0.0), chain(3)),
    (Geometric(1.0), chain(3)),
    (PerPosition((0.9, 0.5, 0.5, 0.1)), chain(3)),
    (PerPosition((0.9, 0.5, 0.5, 0.1)), chain(7)),
    (PublishedTree(), DraftConfig(8, 8, 48)),
]


def _enumerated(survival: Floats) -> tuple[float, float]:
    """Return mean and variance of 1 + A by summing over P(A = a)."""
    edges = np.concatenate(([1.0], survival, [0.0]))
    chance = edges[:-1] - edges[1:]
    tokens = 1.0 + np.arange(len(chance))
    mean = float((chance * tokens).sum())
    return mean, float((chance * (tokens - mean) ** 2).sum())


@pytest.mark.parametrize(("law", "draft_config"), LAWS)
@pytest.mark.parametrize("drafter_exponent", [1.0, 1.7])
def test_moments_are_those_of_the_law(
    law: AcceptanceLaw, draft_config: DraftConfig, drafter_exponent: float
) -> None:
    for population in (ALIKE, UNEVEN):
        acceptance = Acceptance(law, population, LENGTHS, "request")
        exponents = acceptance.exponents(LENGTHS, GROUPS, np.random.default_rng(1))
        moments = acceptance.moments(draft_config, exponents, drafter_exponent)
        for index, exponent in np.ndenumerate(exponents):
            survival = law.survival(draft_config) ** (exponent * drafter_exponent)
            mean, variance = _enumerated(survival)
            assert moments.survival[index] == pytest.approx(survival)
            assert moments.mean_tokens[index] == pytest.approx(mean)
            assert moments.variance[index] == pytest.approx(variance, abs=1e-12)


def test_moments_match_sampling() -> None:
    acceptance, draft_config = Acceptance(Geometric(0.8)), chain(6)
    draws = np.random.default_rng(3).random(200_000)
    tokens = 1 + (draws[:, None] < acceptance.base(draft_config)[None, :]).sum(axis=1)
    moments = acceptance.moments(draft_config, np.ones(1), 1.0)
    assert moments.mean_tokens[0] == pytest.approx(tokens.mean(), rel=0.01)
    assert moments.variance[0] == pytest.approx(tokens.var(), rel=0.02)


def test_without_drafts_an_engine_step_emits_one_token() -> None:
    moments = Acceptance(PublishedTree(), UNEVEN, LENGTHS).moments(OFF, np.ones((3, 2)), 2.0)
    assert moments.mean_tokens.tolist() == [[1.0] * 2] * 3
    assert moments.variance.tolist() == [[0.0] * 2] * 3


def test_published_means_are_met_cell_by_cell() -> None:
    law = PublishedTree()
    with (SHIPPED / "raw" / "tlt-fig13.csv").open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == 36
    for cell in cells:
        draft_config = DraftConfig(int(cell["depth"]), int(cell["topk"]), int(cell["verify_tokens"]))
        survival = law.survival(draft_config)
        assert 1.0 + survival.sum() == pytest.approx(float(cell["acceptance_length_with_bonus"]), rel=1e-9)
        assert len(survival) == draft_config.depth
        assert np.ptp(survival[1:] / survival[:-1]) < 1e-9  # geometric
        assert not law.extrapolates(draft_config)


def test_published_trees_are_interpolated_between_cells_and_by_top_k() -> None:
    law = PublishedTree()
    low, middle, high = (law.mean_length_with_bonus(DraftConfig(depth, 8, 32)) for depth in (4, 5, 6))
    assert low < middle < high
    ratio = law.mean_length_with_bonus(DraftConfig(8, 4, 32)) / law.mean_length_with_bonus(
        DraftConfig(8, 8, 32)
    )
    assert ratio == pytest.approx(8.29 / 8.67)  # published, table 1


@pytest.mark.parametrize(
    "draft_config",
    [
        DraftConfig(2, 8, 16),
        DraftConfig(20, 8, 64),
        DraftConfig(8, 8, 8),
        DraftConfig(8, 8, 256),
        DraftConfig(8, 2, 32),
        DraftConfig(8, 32, 64),
    ],
)
def test_trees_outside_the_published_grid_are_marked_and_stay_possible(draft_config: DraftConfig) -> None:
    law = PublishedTree()
    assert law.extrapolates(draft_config)
    survival = law.survival(draft_config)
    assert (np.diff(survival) <= 0.0).all()
    assert survival.min() >= 0.0
    assert survival.max() <= 1.0
    assert (
        1.0
        <= law.mean_length_with_bonus(draft_config)
        <= 1.0 + min(draft_config.depth, draft_config.verify_tokens - 1)
    )


def test_chains_by_position_go_on_geometrically_and_say_so() -> None:
    law = PerPosition((0.8, 0.6, 0.3))
    assert law.survival(chain(5)) == pytest.approx([0.8, 0.6, 0.3, 0.15, 0.075])
    assert law.survival(chain(2)) == pytest.approx([0.8, 0.6])
    assert law.extrapolates(chain(4))
    assert not law.extrapolates(chain(3))
    assert PerPosition((0.5,)).survival(chain(3)) == pytest.approx([0.5, 0.25, 0.125])
    assert PerPosition((0.5, 0.0)).survival(chain(3)) == pytest.approx([0.5, 0.0, 0.0])
    assert not Geometric(0.5).extrapolates(chain(99))


@pytest.mark.parametrize(
    ("law", "draft_config", "fix"),
    [
        (PublishedTree(), chain(4), "per_position"),
        (PerPosition((0.5,)), DraftConfig(8, 8, 48), "published_tree"),
        (Geometric(0.5), DraftConfig(8, 8, 48), "published_tree"),
    ],
)
def test_draft_configs_that_a_law_does_not_cover_are_refused(
    law: AcceptanceLaw, draft_config: DraftConfig, fix: str
) -> None:
    with pytest.raises(InputError, match=rf"got '{draft_config}' for draft_config; allowed: .*{fix}"):
        law.survival(draft_config)


def test_a_larger_exponent_accepts_less() -> None:
    acceptance, draft_config = Acceptance(PublishedTree(), UNEVEN, LENGTHS), DraftConfig(8, 8, 48)
    means = acceptance.moments(draft_config, np.array([0.5, 1.0, 2.0, 8.0]), 1.0).mean_tokens
    assert (np.diff(means) < 0.0).all()
    assert means.min() >= 1.0
