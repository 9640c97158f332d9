from collections.abc import Callable
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from tests.analysis.fake_run import advice_of, batch_advice, write_comparison, write_recommendation
from tlt.analysis.comparison.compare import compare
from tlt.analysis.comparison.ranking import judge
from tlt.analysis.load import load_runs
from tlt.traces.results.answer import Answer
from tltsched.errors import InputError

SLOW = {"speculates": False, "trains": False}
TWO = {"none": SLOW, "fast": SLOW | {"speed": 1.3}}
THREE = {"none": SLOW, "second": SLOW | {"speed": 1.29}, "first": SLOW | {"speed": 1.3}}
ONES = [1.0] * 40


def _judge(path: Path) -> Answer:
    runs = load_runs(path)
    return judge(compare(runs), runs)


def test_a_comparison_without_advice_is_no_recommendation(tmp_path: Path) -> None:
    runs = load_runs(write_comparison(tmp_path))
    assert runs.recommendation is None
    assert runs.advice() is None
    assert runs.step_seconds(runs.runs[0]).shape == (1, 3)


def test_draws_are_read_in_order_and_advice_by_batch(tmp_path: Path) -> None:
    advice = advice_of(batch_advice(8, 1.3), batch_advice(1, 1.8))
    write_recommendation(tmp_path, TWO, {"none": [1.0, 3.0], "fast": [2.0, 4.0]}, advice=advice, steps=4)
    frame = pd.read_parquet(tmp_path / "cost_draws.parquet")
    frame.sample(frac=1, random_state=1).to_parquet(tmp_path / "cost_draws.parquet")
    runs = load_runs(tmp_path)
    assert runs.recommendation is not None
    assert runs.recommendation.draws() == 2
    assert [row.requests for row in runs.recommendation.advice.rows] == [1, 8]
    for run, scales in zip(runs.runs, ((1, 1, 3), (1, 2, 4)), strict=True):
        for row, scale in zip(runs.step_seconds(run), scales, strict=True):
            assert row == pytest.approx(run.step_seconds() * scale)


def test_the_interval_of_the_gain_covers_lengths_and_step_times(tmp_path: Path) -> None:
    lengths_only = _judge(write_comparison(tmp_path / "a", TWO, steps=12))
    factors = {"none": ONES, "fast": [1 + 0.002 * n for n in range(-20, 20)]}
    both = _judge(write_recommendation(tmp_path / "b", TWO, factors, steps=12))
    assert lengths_only.gain.interval is not None
    assert both.gain.interval is not None
    assert both.gain.value == lengths_only.gain.value
    assert both.gain.interval[0] < lengths_only.gain.interval[0]
    assert both.gain.interval[1] > lengths_only.gain.interval[1]
    assert both.recommended == "fast"
    assert (
        "lengths (12 RL steps) and step-time error of 4.2 %, leave one out: fake calibration "
        "(40 draws). They do not cover acceptance, which is given."
    ) in both.covers
    assert "too narrow" not in both.covers


def test_a_policy_whose_gain_does_not_survive_the_draws_is_not_recommended(tmp_path: Path) -> None:
    factors = {"none": ONES, "fast": [1.0] * 30 + [1.4] * 10}
    verdict = _judge(write_recommendation(tmp_path, TWO, factors, steps=12))
    assert verdict.gain.value > 1
    assert (verdict.best, verdict.recommended, verdict.is_gain) == ("fast", "none", False)
    assert verdict.regrets is not None
    # Staying loses the gain in 30 of 40 draws, and nothing in the others.
    assert verdict.regrets.regret.value == pytest.approx(0.75 * (verdict.gain.value - 1), rel=0.02)
    assert verdict.sentence.startswith("No policy is a gain over none")


def test_draws_that_lie_wholly_below_one_are_no_gain(tmp_path: Path) -> None:
    verdict = _judge(write_recommendation(tmp_path, TWO, {"none": ONES, "fast": [1.5] * 40}, steps=12))
    assert verdict.gain.value > 1
    assert not verdict.is_gain
    assert verdict.regrets is not None
    assert (verdict.regrets.chosen, verdict.regrets.regret.value) == ("none", 0.0)


@pytest.mark.slow
def test_the_policy_that_would_replace_the_choice_is_named_with_its_share(tmp_path: Path) -> None:
    factors = {"none": ONES, "second": ONES, "first": [1.0] * 36 + [1.1] * 4}
    verdict = _judge(write_recommendation(tmp_path, THREE, factors, steps=12))
    assert (verdict.recommended, verdict.runner_up) == ("first", "second")
    assert verdict.regrets is not None
    # In 4 of 40 draws `first` takes 1.1 times as long, and `second` is then about 9 % faster.
    assert verdict.regrets.regret.value == pytest.approx(0.1 * 0.09, rel=0.1)
    assert verdict.regrets.near == ("second",)
    assert "What choosing first loses to whatever is fastest: " in verdict.sentence
    assert "By the fit second lies within 1% of first, by the interval not." in verdict.sentence


def test_a_choice_that_holds_says_so(tmp_path: Path) -> None:
    verdict = _judge(write_recommendation(tmp_path, TWO, steps=12))
    assert verdict.regrets is not None
    assert verdict.regrets.regret.interval == (0.0, 0.0)
    assert "fast is the fastest in every draw." in verdict.sentence


def test_without_draws_only_lengths_count_and_the_text_says_so(tmp_path: Path) -> None:
    drawn = _judge(write_recommendation(tmp_path / "a", TWO, draws=0, steps=12))
    assert drawn.gain == _judge(write_comparison(tmp_path / "b", TWO, steps=12)).gain
    assert "lengths (12 RL steps) only, since no step times were drawn" in drawn.covers
    assert "neither the step-time error of 4.2 %" in drawn.covers


def test_few_draws_are_warned_about(tmp_path: Path) -> None:
    verdict = _judge(write_recommendation(tmp_path / "a", TWO, draws=1, steps=12))
    assert "(1 draw)" in verdict.covers
    assert "With only 1 draw the interval is likely too narrow; 39 or more are better." in verdict.covers
    both = _judge(write_recommendation(tmp_path / "b", TWO, draws=7, steps=4))
    assert "Intervals over only 4 steps know nothing of what comes less often" in both.covers
    assert "With only 7 draws the interval is likely too narrow; 39 or more are better." in both.covers


def test_one_step_has_no_interval_though_there_are_draws(tmp_path: Path) -> None:
    verdict = _judge(write_recommendation(tmp_path, TWO, steps=1))
    assert verdict.recommended == "none"
    assert verdict.regrets is not None
    assert verdict.regrets.regret.interval is None
    assert verdict.covers == ""


@pytest.mark.parametrize("name", ["advice.json", "cost_draws.parquet"])
def test_half_a_recommendation_is_refused(tmp_path: Path, name: str) -> None:
    write_recommendation(tmp_path, TWO)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=name):
        load_runs(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[rows["run"] != "fast"], "run in cost_draws.parquet; allowed: none, fast"),
        (lambda rows: rows[rows["draw"] != 1], "draws of none"),
        (lambda rows: rows[rows["step"] != 1], "draws of none"),
        (lambda rows: rows.drop(index=rows.index[-1]), "draws of none"),
        (lambda rows: rows.assign(step_s=1.01 * rows["step_s"]), "draw 0 of none"),
        (lambda rows: rows.assign(step_s=-1.0), "odd rows"),
        (lambda rows: rows.assign(step_s=float("nan")), "odd rows"),
        (lambda rows: pd.concat([rows, rows]), "odd rows"),
        (lambda rows: rows.drop(columns="step_s"), "step_s"),
        (lambda rows: rows.iloc[:0], "allowed: none, fast"),
    ],
)
def test_draws_of_other_runs_and_bad_draws_are_refused(
    tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], words: str
) -> None:
    path = write_recommendation(tmp_path, TWO, draws=2) / "cost_draws.parquet"
    change(pd.read_parquet(path)).to_parquet(path)
    with pytest.raises(InputError, match=words):
        load_runs(tmp_path)


def test_advice_for_no_requests_is_refused(tmp_path: Path) -> None:
    nothing = msgspec.structs.replace(batch_advice(1, 1.0), requests=0)
    write_recommendation(tmp_path, TWO, draws=0, advice=advice_of(nothing))
    with pytest.raises(InputError, match="1 or more"):
        load_runs(tmp_path)
