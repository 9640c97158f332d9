"""A plan in the terminal and on the page of its comparison."""

from __future__ import annotations

from pathlib import Path

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
from tlt.traces.results.plan import PLAN, PlanFiles, read_plan
from tltsched.written.policy_name import folded

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
    for sentence in plan_sentences(found):
        console.print(Text(sentence))
    console.print()


def plan_values(found: PlanFiles) -> dict[str, object]:
    """Return what TEMPLATE asks for beside what the page of a comparison does."""
    paid = bool(found.plan.usd_per_gpu_hour)
    rows = [_unpaid(row, paid) for row in design_cells(found)]
    return {
        "plan_sentences": plan_sentences(found),
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
