"""A plan in the terminal and on the page of its comparison."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tlt.analysis.drawing.tables import TextTable, terminal_table
from tlt.analysis.plan.words import (
    DESIGN_HEADERS,
    DESIGN_NOTES,
    INPUT_HEADERS,
    INPUT_NOTES,
    design_cells,
    input_cells,
    plan_sentences,
)
from tlt.traces.common.intervals import Estimate
from tlt.traces.results.answer import Answer
from tlt.traces.results.plan import PLAN, PlanFiles, read_plan
from tltsched.written.policy_name import folded

OTHER_CLUSTER = "clusters differ"
TEMPLATE = "plan/report.html"  # extends the page of a comparison


def plan_of(folder: Path) -> PlanFiles | None:
    """Return the plan of a folder; None if it has none. Raises InputError if it is malformed."""
    return read_plan(folder) if (folder / PLAN).is_file() else None


def print_plan(found: PlanFiles, console: Console) -> None:
    """Print the answer, the designs and the uncertain inputs."""
    paid = bool(found.plan.usd_per_gpu_hour)
    rows = [_unpaid((_folded(row[0]), *row[1:]), paid) for row in design_cells(found)]
    console.print(_terminal(f"Plan for {found.plan.model}", _unpaid(DESIGN_HEADERS, paid), rows))
    console.print()
    # Commands are long: they stand below, where they can be copied.
    shown = [row[:-1] for row in input_cells(found.plan)]
    console.print(_terminal("What the choice is unsure of", INPUT_HEADERS[:-1], shown))
    console.print()


def answer_of_plan(found: PlanFiles, runs: Answer) -> Answer:
    """Return the answer of a plan: its choice in place of that over the finalists' `runs`.

    Their clusters differ, so that what counts is the plan's objective and nothing else.
    """
    plan = found.plan
    column = "usd_per_step" if plan.usd_per_gpu_hour else "step_s"
    finalists = found.designs[found.designs["stage"] == "finalist"]
    figures = dict(zip(finalists["design"], finalists[column].astype(float), strict=True))
    ranked = [each.policy for each in runs.policies if not each.unranked and each.policy in figures]
    order = sorted(ranked, key=lambda name: figures[name])
    base = figures.get(runs.baseline, figures[plan.best])
    policies = tuple(
        msgspec.structs.replace(
            each,
            rank=order.index(each.policy) + 1 if each.policy in order else 0,
            figure=figures[each.policy],
            speedup=Estimate(base / figures[each.policy], None, OTHER_CLUSTER),
        )
        for each in runs.policies
        if each.policy in figures
    )
    best = next((each for each in policies if each.policy == plan.best), None)
    said = plan_sentences(found, best)
    return msgspec.structs.replace(
        runs,
        unit="USD a step" if plan.usd_per_gpu_hour else "s a step",
        designs=True,
        best=plan.best,
        runner_up=plan.runner_up,
        recommended=plan.best,
        is_gain=plan.best != runs.baseline,
        gain=Estimate(base / figures[plan.best], None, OTHER_CLUSTER),
        regrets=None,
        policies=policies,
        acceptance=None,
        ceilings=(),
        headline=said[0],
        sentence=" ".join(said),
        covers="",
        ceiling="",
    )


def plan_values(found: PlanFiles) -> dict[str, object]:
    """Return what TEMPLATE asks for beside what the page of a comparison does."""
    paid = bool(found.plan.usd_per_gpu_hour)
    rows = [_unpaid(row, paid) for row in design_cells(found)]
    return {
        "designs": TextTable(_unpaid(DESIGN_HEADERS, paid), rows, names=(1, 4 + paid)),
        "design_notes": DESIGN_NOTES,
        "inputs": TextTable(INPUT_HEADERS, input_cells(found.plan), names=(1, 4)),
        "input_notes": INPUT_NOTES,
    }


def _unpaid(row: tuple[str, ...], paid: bool) -> tuple[str, ...]:
    """Leave the column of costs out if there are no prices."""
    return row if paid else (*row[:3], *row[4:])


def _folded(design: str) -> str:
    """Break a design where a reader would."""
    return folded(design, 0, "@").replace(" on ", "\non ")


def _terminal(title: str, headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    shown = terminal_table(title)
    for column, header in enumerate(headers):
        shown.add_column(Text(header), justify="right" if column > 1 else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    return shown
