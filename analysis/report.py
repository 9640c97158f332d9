"""Read a run folder or a comparison folder and leave a report in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tlt.analysis.comparison.advice import advice_sentences, advice_terminal
from tlt.analysis.comparison.compare import ComparisonTable, compare
from tlt.analysis.comparison.page import TEMPLATE, render, shared_warnings
from tlt.analysis.comparison.pictures import draw_all
from tlt.analysis.comparison.tables import schedule_terminal, scheduled, terminal
from tlt.analysis.comparison.verdict import Verdict, judge
from tlt.analysis.counterfactual.report import present_counterfactual
from tlt.analysis.drawing.figure import Picture, save
from tlt.analysis.kstar.report import present_kstar
from tlt.analysis.load import RunSet, load_runs
from tlt.analysis.perfetto import to_trace
from tlt.analysis.plan.picture import draw_plan
from tlt.analysis.plan.report import TEMPLATE as PLAN_TEMPLATE
from tlt.analysis.plan.report import plan_of, plan_values, print_plan
from tlt.traces.results.counterfactual import COUNTERFACTUAL
from tlt.traces.results.kstar import KSTAR
from tlt.traces.results.plan import PlanFiles
from tlt.traces.runs.runfolder import Advice

TRACE_EVENTS = 200_000  # keeps a run's trace.json near 25 MB, so that a comparison of long runs stays small


@dataclass(frozen=True, slots=True)
class Report:
    """What a report says, before it is written."""

    runs: RunSet
    table: ComparisonTable
    verdict: Verdict
    pictures: list[Picture]
    plan: PlanFiles | None = None  # if the comparison is of the finalists of a search


def make_report(path: Path, step: int | None = None) -> Report:
    """Read a folder, check its GPU time, compare and draw its runs. `step` as in pictures.draw_all.

    Raises AccountingError if the GPU time of a run does not add up, and InputError for a folder that is not
    readable, runs of different lengths, or an unknown step.
    """
    runs = load_runs(path)
    table = compare(runs)
    pictures = draw_all(runs.runs, tuple(row.ledger for row in table.rows), step, runs.advice(), runs.bounds)
    plan = plan_of(path)
    if plan is not None:
        pictures.insert(0, draw_plan(plan))
    return Report(runs, table, judge(table, runs), pictures, plan)


def write_report(path: Path, step: int | None = None) -> Path:
    """Write report.html, pictures/*.png and a trace.json a run into a folder; return the page's path.

    Raises as make_report does; then nothing is written.
    """
    return _write(make_report(path, step), path)


def present(folder: Path, console: Console, step: int | None = None) -> None:
    """Write the report of a folder and print its table, its verdict and where the files are.

    The folder of a K* map has a report of its own, and a counterfactual has one beside that of its runs.
    Raises as make_report does; then nothing is written or printed.
    """
    if (folder / KSTAR).is_file():
        present_kstar(folder, console)
        return
    report = make_report(folder, step)
    page = _write(report, folder)
    if (folder / COUNTERFACTUAL).is_file():
        present_counterfactual(folder, report.runs, report.table, console)
        console.print(Text(f"report of the runs: {page}"), soft_wrap=True)
        return
    if report.plan is not None:
        print_plan(report.plan, console)
    console.print(terminal(report.table))
    console.print()
    if scheduled(report.table):
        console.print(schedule_terminal(report.table))
        console.print()
    console.print(Text(f"{report.verdict.sentence} {report.verdict.covers}".strip()))
    if report.verdict.ceiling:
        console.print(Text(report.verdict.ceiling))
    _print_advice(report.runs.advice(), console)
    for warning in shared_warnings(report.table):
        console.print(Text(f"! {warning}", style="yellow"))
    worst = max(row.accounting_error for row in report.table.rows)
    console.print(
        Text(f"GPU time adds up: GPU-seconds by cause = GPUs x wall time within {worst:.1e} (relative)")
    )
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
    template, more = (PLAN_TEMPLATE, plan_values(report.plan)) if report.plan else (TEMPLATE, {})
    rendered = render(report.runs, report.table, report.verdict, report.pictures, template, **more)
    page.write_text(rendered, encoding="utf-8")
    return page
