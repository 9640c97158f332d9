"""A plan in words, tables, on the page and as a picture, from files alone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
from rich.console import Console

from tests.analysis.fake_run import write_comparison
from tlt.analysis.plan.picture import draw_plan
from tlt.analysis.plan.report import plan_of, plan_values
from tlt.analysis.plan.words import design_cells, input_cells, percent, plan_sentences
from tlt.analysis.report import present
from tlt.traces.results.plan import Input, Plan, PlanFiles, SearchRound, write_plan

HARDWARE = "8 x H200 TP1"
BEST, SECOND = f"goodput@bounded_async on {HARDWARE}", f"static:4@bounded_async on {HARDWARE}"
SURE = f"goodput@synchronous on {HARDWARE}"


def design(name: str, step_s: float, stage: str = "finalist", **changes: Any) -> dict[str, Any]:
    policy, _, hardware = name.partition(" on ")
    policy, _, schedule = policy.partition("@")
    row = {
        "design": name, "gpu": hardware.split()[2], "tp": 1, "engines": 8, "gpus": 8, "schedule": schedule,
        "policy": policy, "on_policy": "yes" if schedule == "synchronous" else "no",
        "provenance": "assumed", "cost_source": "roofline", "steps": 12 if stage == "finalist" else 1,
        "raw_step_s": step_s, "step_s": step_s, "usd_per_step": step_s / 100,
        "low": 0.9 * step_s if stage == "finalist" else float("nan"),
        "high": 1.2 * step_s if stage == "finalist" else float("nan"), "stage": stage,
        "reason": "" if stage == "finalist" else f"{stage} for a test", "run": "",
    }  # fmt: skip
    return row | changes


def files(**changes: Any) -> PlanFiles:
    plan = Plan(
        name="job", model="Qwen2.5-7B", gpus_budget=8, objective="seconds a step", usd_per_gpu_hour={},
        only_on_policy=False, best=BEST,
        rounds=(SearchRound(steps=1, designs=4), SearchRound(steps=12, designs=3)),
        runner_up=SECOND, best_on_policy=SURE, ratio=1.03, ratio_low=0.91, ratio_high=1.22,
        runner_up_better=0.31, other_better=0.4, expected_loss=0.021, loss_if_wrong=0.06,
        inputs=(
            Input(name="step times of Qwen2.5-7B on H200 TP1", spread="20.0%, assumed", variance_share=0.7,
                  expected_loss=0.015, command="tlt real calibrate"),
            Input(name="lengths", spread="bootstrap", variance_share=0.3, expected_loss=0.0002,
                  command="tlt trace import"),
        ),
        probe_steps=3, draws=4000, seed=0, lengths_source="a test", acceptance_source="assumed",
        tool_version="0",
    )  # fmt: skip
    rows = [
        design(BEST, 50.0), design(SECOND, 51.5), design(SURE, 60.0),
        design("none@synchronous on 8 x H100 TP1", 90.0, "dropped"),
        design("none@synchronous on 8 x L40 TP1", float("nan"), "left out", steps=0),
    ]  # fmt: skip
    return PlanFiles(msgspec.structs.replace(plan, **changes), pd.DataFrame(rows))


def test_the_answer_names_what_matters() -> None:
    said = plan_sentences(files())
    assert said.pop(1) == "No design with measured or published step times came to the last round."
    assert said[0].startswith(
        f"Run {BEST}: 50.00 s a step, compared in seconds (95 % interval 45.00 to 60.00)"
    )
    assert f"Runner-up: {SECOND}, 1.030 times that (95 % interval 0.910 to 1.220)" in said[1]
    assert "truly better with probability 31.0%, any finalist with 40.0%" in said[1]
    assert "costs 2.1% on average, and 6.0% where the choice is wrong" in said[1]
    assert (
        said[2]
        == f"It is not on-policy. The best on-policy design is {SURE}: 60.00 s a step, 1.200 times the time."
    )
    assert "measure first: step times of Qwen2.5-7B on H200 TP1" in said[3]
    assert said[3].endswith("of the variance: `tlt real calibrate`.")
    assert "Searched 5 designs of at most 8 GPUs: 4 over 1 step, 3 over 12 steps." in said[4]
    assert "1 was left out: left out for a test (1)." in said[4]


def test_a_choice_that_no_measurement_changes_says_so() -> None:
    small = tuple(msgspec.structs.replace(each, expected_loss=1e-6) for each in files().plan.inputs)
    assert "No single input is worth measuring" in plan_sentences(files(inputs=small))[4]


def test_one_design_has_no_rival() -> None:
    said = plan_sentences(files(runner_up=None, ratio=None, ratio_low=None, ratio_high=None))
    assert said[2] == "No other design was left to compare it with."
    assert not any("measure" in sentence for sentence in said[3:])


def test_an_on_policy_choice_needs_no_other() -> None:
    assert plan_sentences(files(best=SURE))[3] == "It is on-policy."
    assert "no on-policy design came to the last round" in plan_sentences(files(best_on_policy=None))[3]


def test_the_best_that_does_not_rest_on_a_roofline_is_named() -> None:
    found = files()
    found.designs.loc[1, "provenance"] = "measured"
    assert plan_sentences(found)[1] == (
        f"The best on measured step times is {SECOND}: 51.50 s a step, 1.030 times the time."
    )
    found.designs.loc[0, "provenance"] = "measured"
    assert "measured step times" not in " ".join(plan_sentences(found))


def test_prices_are_told() -> None:
    paid = files(objective="USD a step", usd_per_gpu_hour={"H200": 3.0})
    assert "50.00 s, 0.5000 USD a step, compared in USD" in plan_sentences(paid)[0]
    assert "USD a step" in str(plan_values(paid)["designs"])
    assert "USD a step" not in str(plan_values(files())["designs"])


def test_tables_hold_finalists_and_what_was_dropped() -> None:
    cells = design_cells(files())
    assert [row[0] for row in cells] == [BEST, SECOND, SURE, "none@synchronous on 8 x H100 TP1"]
    assert cells[3][4] == "-"
    assert input_cells(files().plan)[1][2:4] == ("< 0.1%", "30%")


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.0%"), (0.0001, "< 0.1%"), (0.5, "50.0%")])
def test_what_is_above_0_is_never_rounded_to_it(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize("prices", [{}, {"H200": 3.0, "H100": 2.0}])
def test_the_picture_is_drawn_and_repeats_itself(prices: dict[str, float]) -> None:
    found = files(usd_per_gpu_hour=prices)
    picture = draw_plan(found)
    assert picture.png.startswith(b"\x89PNG")
    assert picture.title == f"{BEST}; 40% chance that another finalist is better"
    assert draw_plan(found).png == picture.png


def test_designs_of_several_sizes_stand_over_their_gpus() -> None:
    found = files()
    found.designs.loc[1, "gpus"] = 4
    assert draw_plan(found).png != draw_plan(files()).png


@pytest.mark.slow
def test_a_report_of_finalists_shows_the_plan(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    assert plan_of(tmp_path) is None
    evil = files(best=BEST, name="<script>")
    evil.designs.loc[0, "reason"] = ""
    evil.designs.loc[4, "reason"] = "<script>alert(1)</script>"
    evil.designs.loc[0, "provenance"] = "<script>alert(2)</script>"
    write_plan(tmp_path, evil)
    console = Console(file=io.StringIO(), width=160)
    present(tmp_path, console)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.index(f"Run {BEST}") < page.index("The designs")
    assert "as fast as" not in page.partition("<script")[0]
    assert "<script>" not in page
    assert '<td class="name">&lt;script&gt;alert(2)&lt;/script&gt;</td>' in page
    assert (tmp_path / "pictures" / "plan.png").is_file()
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert printed.index("Plan for Qwen2.5-7B") < printed.index("GPU time adds up")
