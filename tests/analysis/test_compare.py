from pathlib import Path

import pytest

from tests.analysis.fake_run import with_summary, write_comparison, write_run
from tlt.analysis.comparison.compare import compare
from tlt.analysis.comparison.ranking import judge
from tlt.analysis.comparison.tables import ledger_table, markdown, terminal
from tlt.analysis.drawing.estimates import number
from tlt.analysis.load import load_runs
from tlt.analysis.report import write_report
from tlt.traces.runs.runfolder import Comparison, RunFolder, write_json
from tltsched.errors import InputError

SLOW = {"speculates": False, "trains": False}


def test_rows_of_a_comparison(tmp_path: Path) -> None:
    table = compare(load_runs(write_comparison(tmp_path, steps=12)))
    none, tlt, goodput = table.rows
    assert [row.policy for row in table.rows] == ["none", "tlt", "goodput"]
    assert none.speedup.value == 1
    assert none.acceptance_length_with_bonus is None
    assert tlt.acceptance_length_with_bonus == pytest.approx(3.2, abs=0.05)
    assert 1 < tlt.speedup.value < goodput.speedup.value
    assert none.mean_step_s == pytest.approx(none.total_s / 12)
    assert none.rollout_s == pytest.approx(none.mean_step_s - 18)
    assert none.tokens_per_s < goodput.tokens_per_s
    assert tlt.idle_share < none.idle_share
    assert tlt.drafter_share_of_idle > 0.5
    assert none.drafter_share_of_idle == 0
    drafter_s, idle_s = (tlt.ledger.category_gpu_s(name) for name in ("drafter", "idle"))
    assert tlt.drafter_share_of_idle == pytest.approx(drafter_s / (drafter_s + idle_s))
    shown = [cell.strip() for cell in markdown(table).splitlines()[3].split("|")]
    assert shown[1:2] + shown[7:8] == ["tlt", f"{drafter_s / (drafter_s + idle_s):.1%}"]
    assert table.warnings == ()


def test_the_best_policy_is_named_with_its_gain(tmp_path: Path) -> None:
    runs = load_runs(write_comparison(tmp_path, steps=12))
    verdict = judge(compare(runs), runs)
    assert (verdict.best, verdict.runner_up, verdict.recommended) == ("goodput", "tlt", "goodput")
    assert verdict.is_gain
    assert verdict.regrets is not None
    assert verdict.regrets.regret.interval == (0.0, 0.0)
    assert verdict.regrets.runner_up == "tlt"
    assert verdict.sentence.startswith("Run goodput")
    assert "goodput is the fastest in every draw." in verdict.sentence
    assert "Taking tlt instead of goodput loses" in verdict.sentence


def test_equal_policies_are_no_gain_and_a_tie(tmp_path: Path) -> None:
    runs = load_runs(write_comparison(tmp_path, {"none": SLOW, "adaptive": SLOW}, steps=12))
    verdict = judge(compare(runs), runs)
    assert not verdict.is_gain
    assert verdict.recommended == "none"
    assert verdict.regrets is not None
    assert verdict.regrets.exact == ("adaptive",)
    assert verdict.regrets.runner_up is None
    assert verdict.sentence.startswith("Stay with none")
    assert "adaptive takes exactly as long as none." in verdict.sentence


def test_a_gain_whose_interval_includes_one_is_not_called_a_gain(tmp_path: Path) -> None:
    policies = {"none": SLOW, "adaptive": SLOW | {"speed": 1.02}}
    runs = load_runs(write_comparison(tmp_path, policies, steps=6))
    table = compare(runs)
    assert not table.rows[1].speedup.above(1.0)
    assert table.rows[1].speedup.value > 1
    verdict = judge(table, runs)
    assert (verdict.best, verdict.recommended, verdict.is_gain) == ("adaptive", "none", False)
    assert verdict.sentence.startswith("No policy is a gain over none")
    # `none` takes 2 % longer in every resample, so that is lost by staying; more than 1 % is no tie.
    assert verdict.regrets is not None
    assert verdict.regrets.regret.value > 0.01
    assert verdict.regrets.group == ()
    assert "What choosing none loses to whatever is fastest: " in verdict.sentence
    assert "only 6 steps" in verdict.covers


def test_one_step_claims_no_gain(tmp_path: Path) -> None:
    runs = load_runs(write_comparison(tmp_path, steps=1))
    verdict = judge(compare(runs), runs)
    assert not verdict.is_gain
    assert verdict.recommended == "none"
    assert "needs at least 2 steps" in verdict.sentence


def test_a_slower_policy_is_named(tmp_path: Path) -> None:
    policies = {"none": SLOW, "static": SLOW | {"speed": 0.5}, "fast": SLOW | {"speed": 2.0}}
    runs = load_runs(write_comparison(tmp_path, policies, steps=12))
    assert "Slower than none: static" in judge(compare(runs), runs).sentence


def test_different_lengths_are_refused(tmp_path: Path) -> None:
    policies = {"none": SLOW, "other": SLOW | {"seed": 2}}
    with pytest.raises(InputError, match=r"responses of other.*comparison is invalid"):
        compare(load_runs(write_comparison(tmp_path, policies)))


def test_a_missing_response_is_refused(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    folder = RunFolder(tmp_path / "tlt")
    folder.write(folder.summary(), folder.responses().iloc[1:], folder.intervals(), folder.steps())
    with pytest.raises(InputError, match="191 responses, but none has 192"):
        compare(load_runs(tmp_path))


def test_the_order_of_responses_does_not_matter(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    folder = RunFolder(tmp_path / "tlt")
    shuffled = folder.responses().sample(frac=1, random_state=3)
    folder.write(folder.summary(), shuffled, folder.intervals(), folder.steps())
    compare(load_runs(tmp_path))


def test_unlike_sources_are_warned_about(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    folder = RunFolder(tmp_path / "tlt")
    write_json(folder.path / "summary.json", with_summary(folder, cost_source="measured elsewhere"))
    (warning,) = compare(load_runs(tmp_path)).warnings
    assert "cost_source" in warning
    assert "measured elsewhere" in warning


@pytest.mark.parametrize("names", [(), ("a", "a"), ("../a",), ("a/b",), ("..",)])
def test_bad_run_names_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    write_run(tmp_path / "a")
    write_json(tmp_path / "comparison.json", Comparison(name="bad", runs=names))
    with pytest.raises(InputError):
        load_runs(tmp_path)


def test_policies_are_named_as_the_user_wrote_them(tmp_path: Path) -> None:
    policies = {"none": SLOW | {"name": "same"}, "static-4": {"name": "same", "policy": "static:4"}}
    table = compare(load_runs(write_comparison(tmp_path, policies)))
    assert [row.policy for row in table.rows] == ["none", "static:4"]


def test_runs_that_share_a_policy_go_by_their_folders(tmp_path: Path) -> None:
    write_comparison(tmp_path, {"a": SLOW | {"policy": "same"}, "b": SLOW | {"policy": "same"}})
    assert [run.policy for run in load_runs(tmp_path).runs] == ["a", "b"]


def test_a_run_folder_is_a_set_of_one(tmp_path: Path) -> None:
    runs = load_runs(write_run(tmp_path, policy="alone").path)
    table = compare(runs)
    assert [row.policy for row in table.rows] == ["alone"]
    verdict = judge(table, runs)
    assert not verdict.is_gain
    assert verdict.sentence.startswith("Under alone an RL step takes")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="check the path"):
        load_runs(tmp_path)


@pytest.mark.parametrize(
    ("column", "value"), [("finish_s", 0.0), ("finish_s", 1e9), ("finish_s", float("nan")), ("worker", 4)]
)
def test_responses_that_cannot_be_are_refused(tmp_path: Path, column: str, value: float) -> None:
    folder = write_run(tmp_path)
    responses = folder.responses()
    responses.loc[responses.index[100], column] = value
    folder.write(folder.summary(), responses, folder.intervals(), folder.steps())
    with pytest.raises(InputError, match="step 1 request 36 on worker"):
        load_runs(tmp_path)


def test_threshold_is_found_at_any_depth(tmp_path: Path) -> None:
    nested = {"a": {"threshold_requests": True, "b": {"threshold": 32}}}
    run = load_runs(write_run(tmp_path / "a", config=nested).path).runs[0]
    assert run.threshold_requests() == 32
    assert load_runs(write_run(tmp_path / "b", config={"x": [1]}).path).runs[0].threshold_requests() is None


@pytest.mark.slow
def test_tables_show_the_same_rows(tmp_path: Path) -> None:
    policies = {"a|b": SLOW, "<b>[red]": SLOW | {"speed": 2.0}}
    table = compare(load_runs(write_comparison(tmp_path, policies, steps=12)))
    text = markdown(table)
    assert text.count("\n") == 4
    assert "a\\|b" in text
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert '<th scope="row">&lt;b&gt;[red]</th>' in page
    assert "<b>" not in page
    low, high = table.rows[1].speedup.interval or (0.0, 0.0)
    assert 1.6 < low < 1.8 < high < 2.0
    assert f"[{low:.2f},\u00a0{high:.2f}]" in page
    assert terminal(table).row_count == 2
    headers, rows, _ = ledger_table(table)
    assert all(len(row) == len(headers) == 4 for row in rows)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0, "0"),
        (12345.6, "12,346"),
        (1.23456, "1.235"),
        (0.99996, "1.000"),
        (0.012346, "0.01235"),
    ],
)
def test_numbers_have_four_digits(value: float | None, text: str) -> None:
    assert number(value) == text
