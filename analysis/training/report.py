"""The report of a training comparison: figures, pictures, a page and the terminal's table."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tlt.analysis.comparison.page import document, figure, settings, sources, text
from tlt.analysis.comparison.pictures import save
from tlt.analysis.comparison.tables import html_rows
from tlt.analysis.drawing.figure import Picture
from tlt.analysis.training.figures import TrainFacts, examine
from tlt.analysis.training.pictures import draw_training
from tlt.analysis.training.predicted import draw_prediction, find_prediction, prediction_section
from tlt.analysis.training.run import TrainSet, load_training
from tlt.analysis.training.tables import (
    Cells,
    acceptance_cells,
    age_cells,
    amdahl_cells,
    headers,
    idle_cells,
    length_cells,
    phase_cells,
    reward_cells,
    terminal,
    time_cells,
)
from tlt.analysis.training.verdict import judge_training
from tlt.traces.results.predicted_training import PredictedTraining, sentences
from tlt.traces.runs.runfolder import write_json

NAME = "train"
_INSIDE = re.compile(r"(?<=[0-9x%]), (?=[+-]?[0-9]+[^ ]*\])")  # of an interval, where a line must not break
NOTE = (
    "Brackets are 95 % percentile intervals of a bootstrap over RL steps, policies paired by step; of "
    "rewards over prompt groups, policies paired by step and group. They say how much a figure varies from "
    "step to step, or from prompt to prompt, in these runs: not how another seed, model or machine would "
    "differ. Steps of one run follow from one another, which a bootstrap over steps does not know."
)
IDLE_NOTE = (
    "Idle is time in which a GPU does nothing: waiting for the longest responses, or for drafter training to "
    "stop. Otherwise idle is what in a rollout is idle, drafter training, or log-probabilities taken early. "
    "The hand-over is the time from the last response to the first phase after it; a policy that trains no "
    "drafter shows how long it takes without."
)
ACCEPTANCE_NOTE = (
    "Tokens that a drafting engine step yields for a request, the bonus token counted. A position's share "
    "is of the engine steps that drafted so far. Served and initial head are probed on the same responses, "
    "those of the step. From one step to the next the policy is updated: the same head shows what the "
    "update costs, a new head what is left of that after training."
)
PICTURES = ("train_step_time", "train_amdahl", "train_acceptance", "train_rewards", "train_lengths", "ledger",
            "gantt")  # fmt: skip


def present_training(folder: Path, console: Console) -> TrainFacts:
    """Write train.json, train.html and pictures into `folder`, and print the table and the answer.

    Raises AccountingError if the GPU time of a policy does not add up, and InputError for a folder without a
    training comparison; then nothing is written or printed.
    """
    runs = load_training(folder)
    facts = examine(runs)
    told = find_prediction(folder)
    pictures = draw_training(runs, facts)
    if told is not None:
        pictures.append(draw_prediction(told, runs.runs))
    write_json(folder / f"{NAME}.json", facts)
    save(pictures, folder / "pictures")
    page = folder / f"{NAME}.html"
    page.write_text(render(runs, facts, pictures, told), encoding="utf-8")
    console.print(terminal(facts))
    console.print()
    console.print(Text(judge_training(facts)))
    for sentence in sentences(told) if told else ():
        console.print(Text(sentence))
    for flag in facts.flags:
        style = "red" if flag.stops else "yellow"
        console.print(Text(f"{'!!' if flag.stops else '!'} {flag.text}", style=style))
    console.print(Text(f"page: {page}"), soft_wrap=True)
    return facts


def render(
    runs: TrainSet, facts: TrainFacts, pictures: list[Picture], told: PredictedTraining | None = None
) -> str:
    """Return the page: no scripts, nothing loaded from elsewhere, every text escaped."""
    first = runs.runs[0].summary
    by_name = {picture.name: figure(picture) for picture in pictures}
    shown = {name: by_name.get(name, "") for name in PICTURES}
    policies = (
        "1 policy"
        if len(facts.policies) == 1
        else f"{len(facts.policies)} policies, the first is the baseline"
    )
    basis = (
        f"{first.kind}: {first.model} on {first.gpus} x {first.gpu}, {first.workers} workers, {facts.steps} "
        f"RL steps, {policies}"
    )
    parts = [
        f"<h1>{text(facts.name)}: RL training</h1>",
        _dim(basis),
        f'<div class="answer">{text(judge_training(facts))}</div>',
        _flags(facts),
        *_section("Time and speedup", facts, time_cells(facts), NOTE, shown["train_step_time"]),
        *_section("Phases of a step: seconds and share of the step", facts, phase_cells(facts)),
    ]
    if len(facts.policies) > 1:
        parts += _section("Amdahl's law", facts, amdahl_cells(facts), "", shown["train_amdahl"])
    parts += _section("Rewards", facts, reward_cells(facts), "", shown["train_rewards"])
    if any(policy.acceptance for policy in facts.policies):
        parts += _section(
            "Acceptance", facts, acceptance_cells(facts), ACCEPTANCE_NOTE, shown["train_acceptance"]
        )
        parts += [
            "<h2>Acceptance by age of the drafter</h2>",
            _dim("Policy updates since the drafter was published; in brackets the steps that had it."),
            html_rows(("Age", *headers(facts)[1:]), age_cells(facts)),
        ]
    parts += [
        *_section("Idle GPU time and waiting", facts, idle_cells(facts), IDLE_NOTE, shown["gantt"]),
        shown["ledger"],
        *_section("Response lengths (tokens)", facts, length_cells(facts), "", shown["train_lengths"]),
        *(prediction_section(told, pictures[-1]) if told else ()),
        "<h2>Where the numbers come from</h2>",
        sources(runs.runs),
        "<h2>Settings</h2>",
        *(settings(run) for run in runs.runs),
    ]
    return document(f"{facts.name}: RL training", parts)


def _section(title: str, facts: TrainFacts, cells: Cells, note: str = "", picture: str = "") -> list[str]:
    rows = [tuple(_INSIDE.sub(",\u00a0", cell) for cell in row) for row in cells]
    return [f"<h2>{text(title)}</h2>", html_rows(headers(facts), rows), _dim(note) if note else "", picture]


def _dim(words: str) -> str:
    return f'<p class="dim">{text(words)}</p>'


def _flags(facts: TrainFacts) -> str:
    if not facts.flags:
        return ""
    items = "".join(
        f"<li>{'<strong>stops: </strong>' if flag.stops else ''}{text(flag.text)}</li>"
        for flag in facts.flags
    )
    return f'<div class="warnings"><strong>Read with these figures</strong><ul>{items}</ul></div>'
