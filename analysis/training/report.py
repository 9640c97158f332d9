"""The report of a training comparison: figures, pictures, a page and the terminal's table."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from tlt.analysis.comparison.page import acceptance_values
from tlt.analysis.crosscheck.predicted_training import draw_prediction, find_prediction, prediction_values
from tlt.analysis.drawing.figure import Picture, save
from tlt.analysis.drawing.html import page
from tlt.analysis.load import source_rows
from tlt.analysis.training.figures import TrainFacts, examine
from tlt.analysis.training.pictures import draw_training
from tlt.analysis.training.run import TrainSet, load_training
from tlt.analysis.training.tables import tables_of, terminal
from tlt.analysis.training.verdict import judge_training, training_sentences
from tlt.traces.common.writing import write_file
from tlt.traces.results.predicted_training import PredictedTraining, sentences
from tlt.traces.runs.runfolder import write_json

NAME = "train"
TEMPLATE = "training/report.html"


def present_training(folder: Path, console: Console) -> TrainFacts:
    """Write train.json, train.html and pictures into `folder`, and print the table and the answer.

    Raises AccountingError if the GPU time of a policy does not add up, and InputError for a folder without a
    training comparison; then nothing is written or printed.
    """
    runs = load_training(folder)
    facts = examine(runs)
    prediction = find_prediction(folder)
    pictures = draw_training(runs, facts)
    if prediction is not None:
        pictures.append(draw_prediction(prediction, runs.runs))
    write_json(folder / f"{NAME}.json", facts)
    save(pictures, folder / "pictures")
    path = folder / f"{NAME}.html"
    write_file(path, render(runs, facts, pictures, prediction).encode())
    console.print(terminal(facts))
    console.print()
    console.print(Text(judge_training(facts)))
    for sentence in sentences(prediction) if prediction else ():
        console.print(Text(sentence))
    for flag in facts.flags:
        style = "red" if flag.stops else "yellow"
        console.print(Text(f"{'!!' if flag.stops else '!'} {flag.text}", style=style))
    console.print(Text(f"page: {path}"), soft_wrap=True)
    return facts


def render(
    runs: TrainSet, facts: TrainFacts, pictures: list[Picture], prediction: PredictedTraining | None = None
) -> str:
    """Return the page; the last of `pictures` is that of `prediction`, if that is given."""
    return page(
        TEMPLATE,
        title=f"{facts.name}: RL training",
        first=runs.runs[0].summary,
        facts=facts,
        answer=training_sentences(facts),
        tables=tables_of(facts),
        pictures={picture.name: picture for picture in pictures},
        predicted=prediction_values(prediction, pictures[-1]) if prediction else None,
        sources=source_rows(runs.runs),
        **acceptance_values(runs.runs),
        runs=runs.runs,
    )
