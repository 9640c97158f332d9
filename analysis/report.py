"""Read a run folder or a comparison folder and leave a report in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from analysis.advice import advice_sentences, advice_terminal
from analysis.canvas import Picture
from analysis.compare import ComparisonTable, compare
from analysis.page import render, shared_warnings
from analysis.perfetto import to_trace
from analysis.pictures import draw_all, save
from analysis.run import RunSet, load_runs
from analysis.tables import terminal
from analysis.verdict import Verdict, judge
from traces.runfolder import Advice

TRACE_EVENTS = 200_000  # keeps a run's trace.json near 25 MB, so that a comparison of long runs stays small


@dataclass(frozen=True, slots=True)
class Report:
    """What a report says, before it is written."""

    runs: RunSet
    table: ComparisonTable
    verdict: Verdict
    pictures: list[Picture]


def make_report(path: Path, step: int | None = None) -> Report:
    """Read a folder, check its books, and compare and draw its runs. `step` as in pictures.draw_all.

    Raises BooksError if the books of a run do not close, and InputError for a folder that is not readable,
    runs of different lengths, or an unknown step.
    """
    runs = load_runs(path)
    table = compare(runs)
    pictures = draw_all(runs.runs, tuple(row.ledger for row in table.rows), step, runs.advice())
    return Report(runs, table, judge(table, runs), pictures)


def write_report(path: Path, step: int | None = None) -> Path:
    """Write report.html, pictures/*.png and a trace.json a run into a folder; return the page's path.

    Raises as make_report does; then nothing is written.
    """
    return _write(make_report(path, step), path)


def present(folder: Path, console: Console, step: int | None = None) -> None:
    """Write the report of a folder and print its table, its verdict and where the files are.

    Raises as make_report does; then nothing is written or printed.
    """
    report = make_report(folder, step)
    page = _write(report, folder)
    console.print(terminal(report.table))
    console.print()
    console.print(Text(f"{report.verdict.sentence} {report.verdict.covers}".strip()))
    _print_advice(report.runs.advice(), console)
    for warning in shared_warnings(report.table):
        console.print(Text(f"! {warning}", style="yellow"))
    worst = max(row.books_difference for row in report.table.rows)
    console.print(Text(f"books close: GPU-seconds by cause = GPUs x wall time within {worst:.1e} (relative)"))
    console.print(Text(f"report: {page}"), soft_wrap=True)
    console.print(Text(f"pictures: {folder / 'pictures'}"), soft_wrap=True)


def _print_advice(advice: Advice | None, console: Console) -> None:
    if advice is None:
        return
    console.print()
    if advice.rows:
        console.print(advice_terminal(advice))
        console.print()
    console.print(Text(" ".join(advice_sentences(advice))))


def _write(report: Report, folder: Path) -> Path:
    for run in report.runs.runs:
        trace = to_trace(run.summary, run.intervals, run.responses, run.steps, TRACE_EVENTS)
        (run.path / "trace.json").write_bytes(trace)
    save(report.pictures, folder / "pictures")
    page = folder / "report.html"
    page.write_text(render(report.runs, report.table, report.verdict, report.pictures), encoding="utf-8")
    return page
