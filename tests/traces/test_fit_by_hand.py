"""A fit's own figures, worked out from its parameters, and what it says at the ends of its limits."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scipy import stats

from tlt.traces.lengths.fit import FREE_PARAMETERS, KS_LIMIT, LAWS, SUBSAMPLE_ROWS, Fit, fit_lengths
from tlt.traces.lengths.histogram import LengthHistogram, from_lengths
from tlt.traces.lengths.schema import Origin
from tltsched.errors import InputError

LENGTHS = np.array([3, 5, 5, 8, 9, 12, 12, 12, 20, 31, 44, 60, 60, 60])
CUT = np.array([False] * 11 + [True, True, True])
HIST = from_lengths(LENGTHS, CUT, Origin(source="x", kind="rollout", max_response_tokens=60))


def test_constants() -> None:
    assert (SUBSAMPLE_ROWS, KS_LIMIT, FREE_PARAMETERS) == (20_000, 0.05, 2)
    assert set(LAWS) == {"lognormal", "gamma", "weibull"}


@pytest.mark.parametrize("fit", fit_lengths(HIST), ids=lambda fit: fit.law)
def test_figures_follow_from_the_parameters(fit: Fit) -> None:
    law = LAWS[fit.law](fit.shape, scale=fit.scale_tokens)
    exact = LENGTHS[~CUT]
    likelihood = np.log(law.pdf(exact)).sum() + 3 * np.log(1 - law.cdf(60))
    assert fit.aic == pytest.approx(4 - 2 * likelihood)
    assert (fit.rows, fit.rows_used, fit.censored_used, fit.seed, fit.kind) == (14, 14, 3, 0, "rollout")
    distances = []
    for value in np.unique(exact):
        before, upto = (value > LENGTHS).sum() / 14, (value >= LENGTHS).sum() / 14
        distances += [abs(law.cdf(value) - before), abs(law.cdf(value) - upto)]
    assert fit.ks == pytest.approx(max(distances))
    assert fit.p99_relative_error is None  # the recorded one was cut


@pytest.mark.parametrize("fit", fit_lengths(HIST), ids=lambda fit: fit.law)
def test_parameters_are_the_most_likely_ones(fit: Fit) -> None:
    def likelihood(shape: float, scale: float) -> float:
        law = LAWS[fit.law](shape, scale=scale)
        return float(law.logpdf(LENGTHS[~CUT]).sum() + 3 * law.logsf(60))

    best = likelihood(fit.shape, fit.scale_tokens)
    for shape, scale in ((0.95, 1), (1.05, 1), (1, 0.95), (1, 1.05)):
        assert likelihood(fit.shape * shape, fit.scale_tokens * scale) < best


def test_the_p99_of_lengths_that_were_not_cut() -> None:
    lengths = stats.lognorm(0.5, scale=100).ppf((np.arange(400) + 0.5) / 400).astype(int)
    whole = from_lengths(lengths, np.zeros(400, bool), Origin(source="x", kind="rollout"))
    fit = next(each for each in fit_lengths(whole) if each.law == "lognormal")
    fitted = stats.lognorm(fit.shape, scale=fit.scale_tokens).ppf(0.99)
    assert fit.p99_relative_error == pytest.approx(fitted / whole.percentile(99) - 1)
    assert abs(fit.p99_relative_error or 0.0) < 0.05
    assert fit.censored_used == 0
    ordered = fit_lengths(whole)
    assert [each.ks for each in ordered] == sorted(each.ks for each in ordered)
    assert ordered[0].law == "lognormal"


def capped_at(quantile: int) -> LengthHistogram:
    """Return 100 lengths of which the longest were cut where `quantile` of them lie below."""
    lengths = np.minimum(np.arange(1, 101), quantile)
    origin = Origin(source="x", kind="rollout", max_response_tokens=quantile)
    return from_lengths(lengths, lengths == quantile, origin)


def test_a_p99_at_the_cut_is_not_known() -> None:
    assert all(fit.p99_relative_error is None for fit in fit_lengths(capped_at(99)))
    assert all(fit.p99_relative_error is None for fit in fit_lengths(capped_at(90)))
    assert all(fit.p99_relative_error is not None for fit in fit_lengths(capped_at(100)))


def test_what_a_fit_may_be_used_for() -> None:
    fit = msgspec.structs.replace(fit_lengths(HIST)[0], rows_used=10, censored_used=5, ks=0.05)
    assert fit.advice() == "KS 0.050 <= 0.05: usable for the body; compare the p99 before trusting the tail"
    assert "do not use" in msgspec.structs.replace(fit, ks=0.0501).advice()
    assert "more than half" in msgspec.structs.replace(fit, censored_used=6).advice()
    assert msgspec.structs.replace(fit, rows=10).sample_text() == "all 10 rows, 5 censored"
    some = msgspec.structs.replace(fit, rows=1234, rows_used=1000, seed=7)
    assert some.sample_text() == "1,000 of 1,234 rows drawn without replacement (seed 7), 5 censored"
    with pytest.raises(AttributeError):
        fit.ks = 0.0  # type: ignore[misc]


def test_a_subsample_has_as_many_rows_as_were_asked_for() -> None:
    for fit in fit_lengths(HIST, seed=3, max_rows=12):
        assert (fit.rows, fit.rows_used, fit.seed) == (14, 12, 3)
        assert 1 <= fit.censored_used <= 3
    assert {fit.rows_used for fit in fit_lengths(HIST, max_rows=14)} == {14}
    again = fit_lengths(HIST, seed=3, max_rows=12)
    assert again == fit_lengths(HIST, seed=3, max_rows=12)


def test_two_distinct_lengths_are_the_least() -> None:
    origin = Origin(source="x", kind="rollout", max_response_tokens=9)
    two = from_lengths(np.array([4, 6, 6, 9]), np.array([False, False, False, True]), origin)
    assert len(fit_lengths(two)) == 3
    one = from_lengths(np.array([6, 6, 9]), np.array([False, False, True]), origin)
    with pytest.raises(InputError, match="1 distinct below the cap"):
        fit_lengths(one)
