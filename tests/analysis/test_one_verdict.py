"""One verdict: terminal, page, answer.json and plan of a folder name the same winner with the same figure."""

from __future__ import annotations

import html
import re
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from tests.analysis.fake_run import write_run
from tests.analysis.test_plan_report import design, files
from tlt.analysis import report
from tlt.analysis.comparison import page
from tlt.analysis.drawing.estimates import number
from tlt.analysis.drawing.figure import Image, Picture
from tlt.traces.results.answer import Answer, read_answer
from tlt.traces.results.plan import PlanFiles, write_plan
from tlt.traces.runs.runfolder import Comparison, RunFolder, ScheduleFacts, write_json

WINNERS = (
    r"Run (\S+(?: on \d+ x \w+ TP\d)?):",
    r"Stay with (\S+):",
    r"No policy is a gain over (\S+):",
    r"No gain is claimed over (\S+):",
)
SCHEDULES = ("synchronous", "tail_batching", "bounded_async")


def write_random(folder: Path, seed: int, planned: bool) -> PlanFiles | None:
    """Write a comparison of two to four policies of random speed under random schedules, and perhaps a plan.

    Half of them train on other responses than the first, throw tokens away and leave some behind.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 5))
    kinds = ["synchronous", *rng.choice(SCHEDULES, count - 1).tolist()]
    fastest = float(rng.choice([0.95, 2.5]))  # in some comparisons nobody beats the first
    names = [f"p{at}@{kind}" + (" on 4 x H100 TP4" if planned else "") for at, kind in enumerate(kinds)]
    for at, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        speed = 1.0 if at == 0 else float(rng.uniform(0.6, fastest))
        own = 1 if kind == "synchronous" else int(rng.integers(2, 9))
        run = write_run(folder / f"r{at}", policy=name, speed=speed, steps=int(4 + seed % 2), seed=own)
        if kind == "synchronous":
            continue
        facts = ScheduleFacts(name=kind, keeps_order=False, on_policy="mixed")
        responses = run.responses()
        rows = pd.DataFrame(
            {"step": responses["step"].unique(), "trained_responses": 64, "response_tokens": 1,
             "wasted_tokens": int(rng.integers(0, 30_000)),
             "carried_responses": int(rng.integers(0, 6 if planned else 60)),
             "carried_tokens": 0, "staleness_mean": 0.5, "staleness_max": 2}
        )  # fmt: skip
        run.write_schedule(facts, rows)
    runs = tuple(f"r{at}" for at in range(count))
    write_json(folder / "comparison.json", Comparison(name="random", runs=runs))
    return write_random_plan(folder, names, runs, rng) if planned else None


def write_random_plan(
    folder: Path, names: list[str], runs: tuple[str, ...], rng: np.random.Generator
) -> PlanFiles:
    """Write a plan over the runs whose objective is dollars: the cheapest need not be the fastest."""
    told = files(objective="USD a step", usd_per_gpu_hour={"H100": 2.0}, step_tokens=1e5)
    rows = []
    for name, run in zip(names, runs, strict=True):
        each = RunFolder(folder / run)
        seconds = each.summary().wall_s / each.responses()["response_tokens"].sum() * 1e5
        rows.append(design(name, float(seconds), run=run, usd_per_step=float(seconds * rng.uniform(0.5, 2))))
    table = pd.DataFrame(rows)
    order = table.sort_values("usd_per_step")["design"].tolist()
    plan = msgspec.structs.replace(
        told.plan, best=order[0], runner_up=order[1], best_on_policy=order[0], rounds=()
    )
    found = PlanFiles(plan, table)
    write_plan(folder, found)
    return found


def said(folder: Path) -> dict[str, str]:
    """Return what the terminal and the page of a folder say, as plain text."""
    console = Console(width=400)
    with console.capture() as capture:
        report.present(folder, console)
    shown = re.sub(r"<[^>]+>", " ", (folder / "report.html").read_text(encoding="utf-8"))
    return {"terminal": capture.get(), "page": html.unescape(shown).replace("\xa0", " ")}


def check_one_verdict(answer: Answer, texts: dict[str, str]) -> None:
    """Assert that every winner and every figure of it that any text names is the one of the answer."""
    best = answer.of(answer.recommended)
    for place, text in texts.items():
        named = {name for form in WINNERS for name in re.findall(form, text)}
        assert named == {answer.recommended}, (place, named)
        if not answer.is_gain:
            continue
        told = re.findall(rf"Run {re.escape(best.policy)}: (?:its RL steps are )?([\d.,]+?)(?:x| )", text)
        figure = number(answer.gain.value)
        if answer.unit == "USD a step":
            assert f"{number(best.figure)} USD a step" in text, place
        elif answer.by_token:
            figure = number(best.figure)
            assert f"{number(answer.gain.value)}x" in text, place
        if answer.unit != "USD a step":
            assert set(told) == {figure}, (place, told, figure)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take seconds, and say no winner."""
    monkeypatch.setattr(report, "draw_all", lambda *_: [])
    monkeypatch.setattr(report, "draw_plan", lambda *_: Picture("plan", "", "", Image(Figure(), "")))


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_every_place_names_the_same_winner_with_the_same_figure(
    tmp_path: Path, seed: int, planned: bool
) -> None:
    plan = write_random(tmp_path, seed, planned)
    texts = said(tmp_path)
    answer = read_answer(tmp_path)
    assert answer is not None
    if plan is not None:
        assert answer.recommended == plan.plan.best
    ranked = sorted((each for each in answer.policies if each.rank), key=lambda each: each.rank)
    assert [each.rank for each in ranked] == list(range(1, len(ranked) + 1))
    assert [each.figure for each in ranked] == sorted(each.figure for each in ranked)
    assert answer.recommended in {ranked[0].policy, answer.baseline}
    check_one_verdict(answer, texts)


def test_random_comparisons_have_winners_of_every_kind(tmp_path: Path) -> None:
    found = []
    for seed in range(8):
        folder = tmp_path / f"{seed}"
        write_random(folder, seed, planned=False)
        found.append(report.answer_of(folder))
    assert {answer.is_gain for answer in found} == {True, False}
    assert {answer.by_token for answer in found} == {True, False}
    assert any(each.unranked for answer in found for each in answer.policies)


@pytest.mark.parametrize("other", ["winner", "figure"])
def test_a_contradiction_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    """The page is given an answer of its own: another policy, or another gain."""
    for seed in range(40):
        folder = tmp_path / f"{seed}"
        write_random(folder, seed, planned=False)
        answer = report.answer_of(folder)
        if answer.is_gain:
            break
    wrong = answer.sentence.replace(f"Run {answer.best}", "Run p9@synchronous")
    if other == "figure":
        gain = f"{number(answer.gain.value)}x"
        wrong = answer.sentence.replace(gain, "9.999x").replace(
            number(answer.of(answer.best).figure), "9.999"
        )
    forged = msgspec.structs.replace(answer, sentence=wrong)
    real = page.render
    monkeypatch.setattr(
        report, "render", lambda runs, table, _, *rest, **more: real(runs, table, forged, *rest, **more)
    )
    with pytest.raises(AssertionError, match="page"):
        check_one_verdict(answer, said(folder))
