import numpy as np
import pytest
from scipy import stats

from tlt.traces.lengths.fit import LAWS, Fit, fit_lengths
from tlt.traces.lengths.histogram import LengthHistogram, from_lengths
from tlt.traces.lengths.schema import Origin
from tlt.traces.lengths.shipped import load_histogram
from tltsched.errors import InputError

MU, SIGMA, CAP = 7.0, 1.0, 2_500  # the cap cuts about a fifth


def capped_lognormal(rows: int) -> LengthHistogram:
    lengths = np.random.default_rng(5).lognormal(MU, SIGMA, rows).astype(int) + 1
    cut = np.minimum(lengths, CAP)
    return from_lengths(
        cut, cut == CAP, Origin(source="synthetic", kind="generated", max_response_tokens=CAP)
    )


def by_law(fits: list[Fit]) -> dict[str, Fit]:
    return {fit.law: fit for fit in fits}


def test_a_censored_fit_recovers_what_the_cap_hides() -> None:
    hist = capped_lognormal(15_000)
    fit = by_law(fit_lengths(hist))["lognormal"]
    sigma, _, scale = stats.lognorm.fit(np.repeat(hist.values, hist.counts), floc=0)
    assert fit.shape == pytest.approx(SIGMA, rel=0.03)
    assert np.log(fit.scale_tokens) == pytest.approx(MU, rel=0.01)
    assert abs(fit.shape - SIGMA) < abs(sigma - SIGMA) / 3
    assert abs(np.log(fit.scale_tokens) - MU) < abs(np.log(scale) - MU) / 3
    assert fit.censored_used / fit.rows_used == pytest.approx(0.2, abs=0.03)
    assert fit.p99_relative_error is None


def test_the_true_law_is_ranked_first_and_passes() -> None:
    fits = fit_lengths(capped_lognormal(15_000))
    assert [fit.ks for fit in fits] == sorted(fit.ks for fit in fits)
    assert sorted(fit.law for fit in fits) == sorted(LAWS)
    assert fits[0].law == "lognormal"
    assert fits[0].aic == min(fit.aic for fit in fits)
    assert fits[0].ks < 0.02
    assert "usable for the body" in fits[0].advice()


# Published with the data: a lognormal's p99 against the recorded one.
@pytest.mark.parametrize(("name", "error"), [("r1-client66", 0.46), ("r1-all", -0.34)])
def test_published_lognormal_misses_are_reproduced(name: str, error: float) -> None:
    fit = by_law(fit_lengths(load_histogram(name)))["lognormal"]
    assert fit.p99_relative_error == pytest.approx(error, abs=0.03)


def test_a_poor_fit_says_so() -> None:
    fit = fit_lengths(load_histogram("azure-conversation"))[0]
    assert fit.ks > 0.05
    assert "do not use for prediction; sample the histogram" in fit.advice()
    assert fit.kind == "serving"


def test_a_subsample_is_seeded_and_stated() -> None:
    hist = load_histogram("r1-client66")
    first, again, other = (fit_lengths(hist, seed) for seed in (1, 1, 2))
    assert first == again
    assert by_law(first)["gamma"].shape != by_law(other)["gamma"].shape
    assert first[0].rows_used == 20_000
    assert "20,000 of 41,230 rows" in first[0].sample_text()
    assert "seed 1" in first[0].sample_text()


def test_mostly_cut_lengths_say_that_no_law_can_be_told() -> None:
    fits = fit_lengths(capped_lognormal(5_000).truncate(500))
    assert all("more than half" in fit.advice() for fit in fits)


def test_too_few_distinct_lengths_are_refused() -> None:
    hist = from_lengths(np.array([5, 5]), np.zeros(2, bool), Origin(source="x", kind="rollout"))
    with pytest.raises(InputError, match="1 distinct below the cap"):
        fit_lengths(hist)
