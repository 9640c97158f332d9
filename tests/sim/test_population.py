"""Draws of a population against its parameters, and averages of a run against a plain simulation of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlt.sim.acceptance.laws import Geometric, PerPosition, PublishedTree
from tlt.sim.acceptance.population import ALIKE, LAST_BIN, LengthScores, Population
from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.engines.decode_closed_form import Stages
from tlt.sim.model.engines.stages import spans
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import bins
from tltsched.draft_config import DraftConfig, chain

GROUPS, SAMPLES = 4000, 8
UNEVEN = Population(0.6, 0.4, 0.7, 0.3, -0.1, 0.4)


def _drawn(population: Population, count: int) -> tuple[Floats, Floats, Ints]:
    """Return log exponents, [n, count], with the scores and groups that they were drawn for."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(GROUPS), SAMPLES)
    scores = LengthScores(lengths := rng.integers(1, 10**6, len(group))).of(lengths)
    return np.log(population.draw(scores, group, count, rng)), scores, group


def test_draws_have_the_parameters_that_were_asked_for() -> None:
    log, scores, _ = _drawn(UNEVEN, 8)
    request = log.mean(axis=1)
    assert np.corrcoef(request, scores)[0, 1] == pytest.approx(
        0.4 * 0.6 / np.hypot(0.6, 0.3 / 8**0.5), rel=0.03
    )
    between = np.sqrt(request.var() - 0.3**2 / 8)
    assert between == pytest.approx(0.6, rel=0.02)
    assert (log - request[:, None]).var(axis=0, ddof=1).mean() == pytest.approx(0.3**2 * 7 / 8, rel=0.03)
    falls = np.diff(log.mean(axis=0))
    assert falls == pytest.approx([-0.1 - 0.4, -0.1, -0.1, -0.1, 0.0, 0.0, 0.0], abs=0.01)
    assert LAST_BIN == 4
    rest = (request - 0.6 * 0.4 * scores).reshape(GROUPS, SAMPLES)
    inside = rest.var(axis=1, ddof=1).mean() - 0.3**2 / 8
    assert 1.0 - inside / (0.6**2 * (1 - 0.4**2)) == pytest.approx(0.7, abs=0.02)


def test_a_median_request_has_the_exponent_one() -> None:
    log, _, _ = _drawn(Population(0.7, 0.4, 0.7), 1)
    assert np.median(log) == pytest.approx(0.0, abs=0.02)


def test_scores_go_by_rank_and_ties_share_one() -> None:
    scores = LengthScores(np.array([5, 5, 5, 5])).of(np.array([5, 1, 9]))
    assert scores[0] == 0.0
    assert scores[1] == -scores[2] < 0.0
    assert LengthScores(np.array([], np.int64)).of(np.array([3])).tolist() == [0.0]
    known = np.arange(1, 1001)
    assert LengthScores(known).of(known[::-1]).tolist() == sorted(LengthScores(known).of(known), reverse=True)
    assert LengthScores(known).of(known).std() == pytest.approx(1.0, abs=0.02)


def _average(acceptance: Acceptance, draft_config: DraftConfig, lengths: Ints, group: Ints) -> Floats:
    """Return the survivals that an engine would report over a run, from plain loops over drawn requests."""
    rng = np.random.default_rng(1)
    exponents = acceptance.exponents(lengths, group, rng)
    accepted, engine_steps = np.zeros(draft_config.depth), 0
    base = acceptance.base(draft_config)
    emitted = np.zeros(len(lengths), np.int64)
    while (running := np.flatnonzero(emitted < lengths)).size:
        here = np.minimum(bins(emitted[running]), exponents.shape[1] - 1)
        survival = base ** exponents[running, here][:, None]
        took = (rng.random(len(running))[:, None] < survival).cumprod(axis=1)
        accepted += took.sum(axis=0)
        engine_steps += len(running)
        emitted[running] += 1 + took.sum(axis=1).astype(np.int64)
    return accepted / engine_steps


@pytest.mark.parametrize("population", [Population(0.8, 0.4, 0.0), UNEVEN])
@pytest.mark.parametrize(
    ("law", "draft_config"),
    [
        (PerPosition((0.7, 0.5, 0.35, 0.2)), chain(4)),
        (Geometric(0.75), chain(3)),
        (PublishedTree(), DraftConfig(8, 8, 48)),
    ],
)
def test_a_run_shows_the_survivals_that_were_given_for_it(
    population: Population, law: PerPosition | Geometric | PublishedTree, draft_config: DraftConfig
) -> None:
    rng = np.random.default_rng(2)
    lengths = np.clip(rng.lognormal(5.5, 1.0, 6000), 1, 4000).astype(np.int64)
    acceptance = Acceptance(law, population, lengths)
    assert not np.allclose(acceptance.base(draft_config), law.survival(draft_config), rtol=0.02)
    shown = _average(acceptance, draft_config, lengths, np.arange(len(lengths)))
    assert shown.sum() == pytest.approx(law.survival(draft_config).sum(), rel=0.02)
    assert shown == pytest.approx(law.survival(draft_config), abs=0.015)


def test_chains_share_one_median_request() -> None:
    lengths = np.arange(1, 2000)
    acceptance = Acceptance(PerPosition((0.7, 0.5, 0.35, 0.2)), UNEVEN, lengths)
    assert acceptance.base(chain(2)) == pytest.approx(acceptance.base(chain(4))[:2], rel=1e-12)


def test_survivals_of_a_median_request_are_taken_as_they_are() -> None:
    law = PerPosition((0.7, 0.5))
    assert Acceptance(law, UNEVEN, np.arange(1, 99), "request").base(chain(2)).tolist() == [0.7, 0.5]
    assert Acceptance(law, ALIKE).base(chain(2)).tolist() == [0.7, 0.5]


@pytest.mark.parametrize("rates", [(1.0, 1.0), (1.0, 0.4), (0.4, 0.0), (0.0, 0.0)])
def test_certain_and_impossible_positions_stay_so(rates: tuple[float, float]) -> None:
    base = Acceptance(PerPosition(rates), UNEVEN, np.arange(1, 999)).base(chain(2))
    for given_rate, found in zip(rates, base.tolist(), strict=True):
        assert 0.0 <= found <= 1.0
        assert given_rate not in (0.0, 1.0) or found == given_rate


def test_engine_steps_a_token_are_the_mean_over_what_is_drawn() -> None:
    lengths = np.repeat([100, 1500], 20_000)
    acceptance = Acceptance(PerPosition((0.7, 0.5, 0.35)), UNEVEN, lengths)
    exponents = acceptance.exponents(lengths, np.arange(len(lengths)), np.random.default_rng(0))
    per_token = 1.0 / acceptance.moments(chain(3), exponents, 1.3).mean_tokens
    span = spans(np.zeros_like(lengths), lengths, acceptance.bins)
    drawn = (span * per_token).sum(axis=1) / lengths
    told = acceptance.engine_steps_per_token(chain(3), np.array([100, 1500]), 1.3)
    assert told == pytest.approx([drawn[:20_000].mean(), drawn[20_000:].mean()], rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), min_size=1), st.integers(1, 8))
@settings(deadline=None)
def test_spans_cover_each_response_once(rows: list[tuple[int, int]], count: int) -> None:
    begun, more = np.array(rows).T
    span = spans(begun, begun + more, count)
    assert span.shape == (len(rows), count)
    assert span.sum(axis=1).tolist() == more.tolist()
    for row, (first, tokens) in enumerate(rows):
        where = np.minimum(bins(np.arange(first, first + tokens)), count - 1)
        assert span[row].tolist() == np.bincount(where, minlength=count).tolist()


def test_engine_steps_fall_to_the_stages_in_order() -> None:
    stages = Stages(np.array([[2, 2, 5]]), np.array([[1.0, 2.0, 3.0]]), np.ones((1, 3)))
    assert [stages.engine_steps(step).tolist() for step in (0, 1, 2, 4, 9)] == [
        [[0, 0, 0]], [[1, 0, 0]], [[2, 0, 0]], [[2, 0, 2]], [[2, 0, 3]],
    ]  # fmt: skip
