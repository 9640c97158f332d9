import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlt.traces.lengths.describe import BATCHES, describe
from tlt.traces.lengths.histogram import LengthHistogram, from_lengths
from tlt.traces.lengths.schema import Origin
from tlt.traces.lengths.shipped import load_histogram
from tltsched.errors import InputError

ORIGIN = Origin(source="x", kind="rollout")
lengths_lists = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def hist_of(lengths: list[int], cap: int | None = None) -> LengthHistogram:
    array = np.array(lengths)
    origin = Origin(source="x", kind="rollout", max_response_tokens=cap)
    return from_lengths(array, array >= (cap or 10**9), origin)


@given(lengths=lengths_lists, percent=st.floats(0, 100))
def test_percentile_and_mean_agree_with_numpy(lengths: list[int], percent: float) -> None:
    hist = hist_of(lengths)
    assert hist.percentile(percent) == pytest.approx(np.percentile(lengths, percent))
    assert hist.mean == pytest.approx(np.mean(lengths))


@given(lengths=lengths_lists)
def test_the_quantile_function_runs_through_every_response_once(lengths: list[int]) -> None:
    middles = (np.arange(len(lengths)) + 0.5) / len(lengths)
    assert hist_of(lengths).quantile(middles).tolist() == sorted(lengths)
    assert hist_of(lengths).quantile(np.array([0.0, 1.0])).tolist() == [min(lengths), max(lengths)]


@given(lengths=lengths_lists, cap=st.integers(1, 70))
def test_truncation_cuts_and_marks(lengths: list[int], cap: int) -> None:
    cut = hist_of(lengths).truncate(cap)
    assert np.repeat(cut.values, cut.counts).tolist() == sorted(min(length, cap) for length in lengths)
    assert cut.share_at_cap == pytest.approx(np.mean(np.array(lengths) >= cap))
    assert cut.max_response_tokens == cut.origin.max_response_tokens == cap


def test_a_cap_above_the_recorded_one_changes_nothing() -> None:
    hist = hist_of([3, 10], cap=10)
    assert hist.truncate(20) is hist
    assert hist.truncate(5).truncate(8).max_response_tokens == 5


def test_a_response_cut_below_the_cap_stays_cut() -> None:
    hist = from_lengths(np.array([4, 4, 9]), np.array([True, False, False]), ORIGIN)
    assert hist.truncated.tolist() == [1, 0]
    assert hist.truncate(6).truncated.tolist() == [1, 1]


@given(lengths=lengths_lists, batch=st.integers(1, 4))
def test_expected_maximum_of_one_is_the_mean_and_grows(lengths: list[int], batch: int) -> None:
    hist = hist_of(lengths)
    assert hist.expected_max(1) == pytest.approx(hist.mean)
    assert hist.expected_max(batch) <= hist.expected_max(batch + 1) + 1e-9
    assert hist.expected_max(batch) <= hist.max + 1e-9


@pytest.mark.parametrize("batch", BATCHES)
def test_expected_maximum_agrees_with_monte_carlo(batch: int) -> None:
    hist = load_histogram("r1-all")
    draws = hist.sample(4_000_000 // batch * batch, np.random.default_rng(3)).reshape(-1, batch).max(axis=1)
    error = draws.std() / np.sqrt(len(draws))
    assert abs(draws.mean() - hist.expected_max(batch)) < 4 * error


# Published with the data, from 500 bootstraps of 1,024 draws: max/median, 1 - mean/max.
@pytest.mark.parametrize(
    ("name", "ratio", "idle"), [("r1-all", 28, 0.93), ("r1-client35", 12.8, 0.87), ("r1-client66", 4.1, 0.71)]
)
def test_published_tail_of_a_batch_is_reproduced(name: str, ratio: float, idle: float) -> None:
    tail = describe(load_histogram(name)).batches[BATCHES.index(1024)]
    assert tail.expected_max_over_median == pytest.approx(ratio, rel=0.02)
    assert tail.idle_share == pytest.approx(idle, abs=0.005)


def test_draws_follow_the_histogram_and_the_seed() -> None:
    hist = hist_of([1] * 3 + [50])
    draws = hist.sample(40_000, np.random.default_rng(0))
    assert set(draws.tolist()) == {1, 50}
    assert np.mean(draws == 50) == pytest.approx(0.25, abs=0.01)
    assert draws.tolist() == hist.sample(40_000, np.random.default_rng(0)).tolist()


def test_describe_states_counts_cap_and_kind() -> None:
    told = describe(hist_of([1, 2, 3, 10], cap=10))
    assert (told.rows, told.min, told.max, told.share_at_cap) == (4, 1, 10, 0.25)
    assert told.kind_label == "RL rollout lengths"
    assert told.max_over_median == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("values", "counts", "cap", "match"),
    [
        ([], [], None, "got 0 for rows"),
        ([1, 2], [1], None, "ascending values"),
        ([2, 1], [1, 1], None, "ascending values"),
        ([1, 2], [1, 0], None, "counts >= 1"),
        ([0, 2], [1, 1], None, "got 0 for length"),
        ([1, 20], [1, 1], 10, "got 20 for length"),
        ([1, 2], [1, 1], -4, "got -4 for max_response_tokens"),
    ],
)
def test_bad_histograms_are_refused(
    values: list[int], counts: list[int], cap: int | None, match: str
) -> None:
    with pytest.raises(InputError, match=match):
        LengthHistogram(np.array(values, np.int64), np.array(counts, np.int64), cap, ORIGIN)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="got 0 for batch"):
        hist_of([1]).expected_max(0)
    with pytest.raises(InputError, match="got -1 for n"):
        hist_of([1]).sample(-1, np.random.default_rng(0))
    with pytest.raises(InputError, match="got 0 for max_response_tokens"):
        hist_of([1]).truncate(0)
