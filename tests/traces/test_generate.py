from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tlt.traces.lengths.generate import generate
from tlt.traces.lengths.histogram import LengthHistogram
from tlt.traces.lengths.schema import COLUMNS, Origin, Trace
from tlt.traces.lengths.shipped import load_histogram, load_prompt_histogram
from tltsched.errors import InputError

SMALL = LengthHistogram(
    np.array([10, 20, 100]),
    np.array([5, 4, 1]),
    100,
    Origin(source="x", kind="rollout", max_response_tokens=100),
)


def normal_scores(trace: Trace, hist: LengthHistogram) -> Any:
    """Return the normal score of each response under `hist` (mid-ranks), shape [prompts, samples]."""
    lengths = trace.rows["response_tokens"].to_numpy()
    at = np.searchsorted(hist.values, lengths)
    middle = (hist.cumulative[at] - hist.counts[at] / 2) / hist.rows
    samples = int(trace.rows["sample"].max()) + 1
    return stats.norm.ppf(middle).reshape(-1, samples)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.7])
def test_measured_group_correlation_is_the_modelled_one(rho: float) -> None:
    hist = load_histogram("r1-client66")
    z = normal_scores(generate(hist, 10, 2_000, 4, group_correlation=rho, seed=4), hist)
    pairs = [np.mean(z[:, a] * z[:, b]) for a in range(4) for b in range(a)]
    assert np.mean(pairs) == pytest.approx(rho, abs=0.02)


@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_the_recorded_distribution_is_kept(rho: float) -> None:
    hist = load_histogram("r1-all")
    lengths = generate(hist, 4, 10_000, 2, group_correlation=rho, seed=9).rows["response_tokens"].to_numpy()
    assert np.isin(lengths, hist.values).all()
    at = np.searchsorted(np.sort(lengths), hist.values, side="right") / len(lengths)
    assert np.max(np.abs(at - hist.cumulative / hist.rows)) < 1.63 / np.sqrt(len(lengths) / 2)


def test_rows_are_steps_then_prompts_then_samples() -> None:
    rows = generate(SMALL, 2, 3, 2, prompt_tokens=7).rows
    assert list(rows.columns) == list(COLUMNS)
    assert rows["step"].tolist() == [0] * 6 + [1] * 6
    assert rows["prompt_id"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert rows["sample"].tolist() == [0, 1] * 6
    assert rows["prompt_tokens"].unique().tolist() == [7]


def test_draws_of_a_step_do_not_depend_on_the_number_of_steps() -> None:
    prompts = load_prompt_histogram("azure-conversation")
    arguments: dict[str, Any] = {"group_correlation": 0.5, "prompt_tokens": prompts, "seed": 3}
    few, many = (generate(SMALL, steps, 5, 4, **arguments).rows for steps in (2, 6))
    pd.testing.assert_frame_equal(few, many.iloc[: len(few)])


def test_seeds_give_the_same_and_other_traces() -> None:
    first, again, other = (generate(SMALL, 1, 50, 2, seed=seed).rows for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first, again)
    assert first["response_tokens"].tolist() != other["response_tokens"].tolist()


def test_drift_multiplies_lengths_before_the_cap() -> None:
    flat = generate(SMALL, 3, 40, 2, max_response_tokens=60, seed=1).rows
    grown = generate(SMALL, 3, 40, 2, max_response_tokens=60, length_drift_per_step=np.log(2), seed=1).rows
    drawn = generate(SMALL, 3, 40, 2, seed=1).rows["response_tokens"].to_numpy()
    assert flat["response_tokens"].tolist() == np.minimum(drawn, 60).tolist()
    expected = np.minimum(drawn * 2 ** grown["step"].to_numpy(), 60)
    assert grown["response_tokens"].tolist() == expected.tolist()
    assert grown["truncated"].tolist() == (expected == 60).tolist()


def test_a_draw_that_the_recording_cut_stays_cut_under_a_higher_cap() -> None:
    rows = generate(SMALL, 1, 200, 1, max_response_tokens=1_000).rows
    assert rows["truncated"].tolist() == (rows["response_tokens"] == 100).tolist()
    assert rows["truncated"].any()


def test_shrinking_lengths_stay_at_least_one_token() -> None:
    assert generate(SMALL, 6, 20, 1, length_drift_per_step=-3.0).rows["response_tokens"].min() == 1


def test_the_origin_says_what_is_recorded_and_what_modelled() -> None:
    origin = generate(
        load_histogram("r1-all"), 1, 2, 2, group_correlation=0.4, length_drift_per_step=0.001, seed=5
    ).origin
    assert origin.kind == "generated"
    for part in ("recorded (serving, not RL rollouts)", "modelled, Gaussian copula, rho = 0.4", "seed 5"):
        assert part in origin.note
    assert "drift: modelled, 0.001 a step" in origin.note
    assert "prompt lengths: not known" in origin.note


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"steps": 0}, "got 0 for steps"),
        ({"prompts_per_step": -1}, "got -1 for prompts_per_step"),
        ({"samples_per_prompt": 0}, "got 0 for samples_per_prompt"),
        ({"group_correlation": 1.0}, "got 1.0 for group_correlation"),
        ({"group_correlation": float("nan")}, "got nan for group_correlation"),
        ({"length_drift_per_step": float("nan")}, "got nan for length_drift_per_step"),
        ({"length_drift_per_step": 100.0}, "got 100.0 for length_drift_per_step"),
        ({"max_response_tokens": 0}, "got 0 for max_response_tokens"),
        ({"prompt_tokens": -5}, "got -5 for prompt_tokens"),
        ({"seed": -1}, "got -1 for seed"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, Any], match: str) -> None:
    arguments = {"steps": 2, "prompts_per_step": 2, "samples_per_prompt": 2} | change
    with pytest.raises(InputError, match=match):
        generate(SMALL, **arguments)
