"""Read a run folder or a comparison folder and leave a report in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tlt.analysis.comparison.advice import advice_sentences, advice_terminal
from tlt.analysis.comparison.compare import ComparisonTable, compare
from tlt.analysis.comparison.drawn.pictures import draw_all
from tlt.analysis.comparison.page import TEMPLATE, render
from tlt.analysis.comparison.ranking import judge
from tlt.analysis.comparison.shared_warnings import shared_warnings
from tlt.analysis.comparison.tables import schedule_terminal, scheduled, terminal
from tlt.analysis.counterfactual.report import present_counterfactual
from tlt.analysis.drawing.figure import Picture, save
from tlt.analysis.kstar.report import present_kstar
from tlt.analysis.load import RunSet, load_runs
from tlt.analysis.perfetto import to_trace
from tlt.analysis.plan.picture import draw_plan
from tlt.analysis.plan.report import TEMPLATE as PLAN_TEMPLATE
from tlt.analysis.plan.report import answer_of_plan, plan_of, plan_values, print_plan
from tlt.traces.common.manifest import seal_also
from tlt.traces.common.writing import write_file
from tlt.traces.results.answer import ANSWER, Answer
from tlt.traces.results.counterfactual import COUNTERFACTUAL, Counterfactual, read_counterfactual
from tlt.traces.results.kstar import KSTAR
from tlt.traces.results.plan import PlanFiles
from tlt.traces.runs.runfolder import Advice, write_json

TRACE_EVENTS = 200_000  # of all runs of a folder: keeps their trace.json near 25 MB together


@dataclass(frozen=True, slots=True)
class Report:
    """What a report says, before it is written."""

    runs: RunSet
    table: ComparisonTable
    answer: Answer
    pictures: list[Picture]
    plan: PlanFiles | None = None  # if the comparison is of the finalists of a search
    case: Counterfactual | None = None  # if it is of an observed run


def make_report(path: Path, step: int | None = None) -> Report:
    """Read a folder, check its GPU time, compare and draw its runs. `step` as in pictures.draw_all.

    Raises AccountingError if the GPU time of a run does not add up, and InputError for a folder that is not
    readable, runs of different lengths, or an unknown step.
    """
    runs, table, answer, plan, case = _read(path)
    pictures = draw_all(runs.runs, tuple(row.ledger for row in table.rows), step, runs.advice(), runs.bounds)
    if plan is not None:
        pictures.insert(0, draw_plan(plan))
    return Report(runs, table, answer, pictures, plan, case)


def answer_of(path: Path) -> Answer:
    """Return the answer of a folder: what its terminal, its page and answer.json say.

    Raises as make_report does.
    """
    return _read(path)[2]


def _read(path: Path) -> tuple[RunSet, ComparisonTable, Answer, PlanFiles | None, Counterfactual | None]:
    """Read a folder; the answer is made here and nowhere else."""
    runs = load_runs(path)
    table = compare(runs)
    plan = plan_of(path)
    case = read_counterfactual(path) if (path / COUNTERFACTUAL).is_file() else None
    answer = judge(table, runs, None if case is None else case.price_usd_per_gpu_hour)
    if plan is not None:
        answer = answer_of_plan(plan, answer)
    return runs, table, answer, plan, case


def write_report(path: Path, step: int | None = None) -> Path:
    """Write report.html, pictures/*.png and a trace.json a run into a folder; return the page's path.

    Raises as make_report does; then nothing is written.
    """
    return _write(make_report(path, step), path)


def present(
    folder: Path,
    console: Console,
    step: int | None = None,
    writing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Write the report of a folder and print its table, its verdict and where the files are.

    `writing()` is entered while nothing is printed yet.
    The folder of a K* map has a report of its own, and a counterfactual has one beside that of its runs.
    Raises as make_report does; then nothing is written or printed.
    """
    if (folder / KSTAR).is_file():
        present_kstar(folder, console)
        return
    with writing():
        report = make_report(folder, step)
        page = _write(report, folder)
    if report.case is not None:
        present_counterfactual(folder, report.case, report.answer, report.runs, report.table, console)
        console.print(Text(f"report of the runs: {page}"), soft_wrap=True)
        return
    _print_tables(report, console)
    console.print(Text(f"{report.answer.sentence} {report.answer.covers}".strip()))
    if report.answer.ceiling:
        console.print(Text(report.answer.ceiling))
    _print_advice(report.runs.advice(), console)
    for warning in shared_warnings(report.table):
        console.print(Text(f"! {warning}", style="yellow"))
    worst = max(row.accounting_error for row in report.table.rows)
    console.print(
        Text(f"GPU time adds up: GPU-seconds by cause = GPUs x wall time within {worst:.1e} (relative)")
    )
    console.print(Text(f"report: {page}"), soft_wrap=True)
    console.print(Text(f"pictures: {folder / 'pictures'}"), soft_wrap=True)


def _print_tables(report: Report, console: Console) -> None:
    """Print the designs of a plan, or the policies: clusters of different size have no common speedup."""
    if report.plan is not None:
        print_plan(report.plan, console)
        return
    console.print(terminal(report.table))
    console.print()
    if scheduled(report.table):
        console.print(schedule_terminal(report.table))
        console.print()


def _print_advice(advice: Advice | None, console: Console) -> None:
    if advice is None:
        return
    console.print()
    if advice.rows:
        console.print(advice_terminal(advice))
        console.print()
    console.print(Text(" ".join(advice_sentences(advice))))


def _write(report: Report, folder: Path) -> Path:
    most = TRACE_EVENTS // len(report.runs.runs)
    for run in report.runs.runs:
        trace = to_trace(run.summary, run.intervals, run.responses, run.steps, most)
        write_file(run.path / "trace.json", trace)
    save(report.pictures, folder / "pictures")
    write_answer(report.answer, report.case, folder)
    page = folder / "report.html"
    template, more = (PLAN_TEMPLATE, plan_values(report.plan)) if report.plan else (TEMPLATE, {})
    rendered = render(report.runs, report.table, report.answer, report.pictures, template, **more)
    write_file(page, rendered.encode())
    return page


def write_answer_of(folder: Path) -> None:
    """Write answer.json of a folder without its report; a map of draft lengths has its own file already."""
    if not (folder / KSTAR).is_file():
        _, _, answer, _, case = _read(folder)
        write_answer(answer, case, folder)


def answer_file(folder: Path) -> Path:
    """Return the file that holds the answer of a folder: one that cannot be ranked says what it needs."""
    names = (ANSWER, COUNTERFACTUAL, KSTAR)
    return next((folder / name for name in names if (folder / name).is_file()), folder / ANSWER)


def write_answer(answer: Answer, case: Counterfactual | None, folder: Path) -> None:
    """Write answer.json; a counterfactual that cannot be ranked leaves none."""
    (folder / ANSWER).unlink(missing_ok=True)
    if case is None or not case.needed:
        write_json(folder / ANSWER, answer)
    seal_also(folder, ANSWER)
