"""The K* map in words, tables and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tlt.analysis.drawing.figure import save
from tlt.analysis.drawing.tables import terminal_table
from tlt.analysis.kstar.pictures import draw_kstar, even_sentence
from tlt.traces.common.regret import TIE
from tlt.traces.results.kstar import CONFIGURED, KStar, KStarMap, read_kstar

NOTES = (
    "Each cell: the draft configuration with most tokens per second (one number: a chain of so many drafts) "
    "and its gain over an engine without speculation configured, of decode alone. ~: another one is as good, "
    "within 1 % by the fit. ?: by the error of the step times more than 1 % may be lost to another one. *: "
    "outside the points that the step times were fitted to."
)
EVEN_NOTES = (
    "Each cell: the smallest acceptance rate of each further draft at which a draft configuration pays, and "
    "the acceptance length, bonus token counted, that the draft configuration needs for it. -: none pays at "
    "any rate."
)
TREE_NOTES = (
    "Each cell: the smallest acceptance length, bonus token counted, at which any of the trees is as fast as "
    "no speculation; breakeven.parquet has it for each tree."
)


def present_kstar(folder: Path, console: Console) -> None:
    """Write pictures into the folder of a map, and print its tables; raises InputError."""
    found = read_kstar(folder)
    paths = save(draw_kstar(found), folder / "pictures")
    best = found.best[found.best["rate"] == CONFIGURED]
    console.print(
        _terminal(
            "Best draft configuration and gain under the configured acceptance, by batch and context "
            "(tokens)",
            found.about,
            best,
            best_cell,
        )
    )
    console.print(Text(NOTES))
    console.print(Text(regret_sentence(best)))
    console.print()
    first = first_to_pay(found)
    cell, notes = (even_cell, EVEN_NOTES) if found.about.rates else (tree_cell, TREE_NOTES)
    console.print(_terminal("Break-even acceptance, by batch and context (tokens)", found.about, first, cell))
    console.print(Text(notes))
    console.print()
    if found.about.rates:
        console.print(Text(even_sentence(found)))
    console.print(Text(f"step times: {found.about.describe()}; acceptance: {found.about.acceptance}"))
    console.print(Text(f"map: {folder / 'kstar.parquet'}, {folder / 'breakeven.parquet'}"), soft_wrap=True)
    for path in paths:
        console.print(Text(f"picture: {path}"), soft_wrap=True)


def first_to_pay(found: KStarMap) -> pd.DataFrame:
    """Return a row for each batch and context: the draft configuration that pays first, for trees that with
    least length.
    """
    rows = found.breakeven
    if found.about.rates:
        return rows[rows["pays_first"]]
    return rows.loc[rows.groupby(["batch", "context_tokens"])["length_with_bonus"].idxmin()]


def best_cell(row: pd.Series) -> str:
    """Return a draft configuration, its gain and its marks."""
    marks = "~" if row["ties"] or row["near"] else ""
    marks += ("?" if row["regret_high"] > TIE else "") + ("*" if row["extrapolated"] else "")
    return f"{row['draft_config']} {row['gain']:.2f}x{marks}"


def regret_sentence(rows: pd.DataFrame) -> str:
    """Say what the choices of a map (KSTAR_COLUMNS) lose for the error of the step times."""
    worst = rows.iloc[int(rows["regret_high"].argmax())]
    equal = int(((rows["ties"] != "") | (rows["near"] != "")).sum())
    return (
        f"For the error of the step times a cell's choice loses {rows['regret'].mean():.1%} of the time in "
        f"the mean and {rows['regret'].max():.1%} where that is most; the 95 % interval ends at "
        f"{worst['regret_high']:.1%} or below (batch {worst['batch']:,}, context "
        f"{worst['context_tokens']:,.0f}). In {equal:,} of {len(rows):,} cells another draft configuration "
        f"is as good, within {TIE:.0%} by the fit."
    )


def even_cell(row: pd.Series) -> str:
    """Return the rate and the length that break even."""
    return f"{row['rate']:.2f}/{row['length_with_bonus']:.2f}{'*' if row['extrapolated'] else ''}"


def tree_cell(row: pd.Series) -> str:
    """Return the length that breaks even."""
    return f"{row['length_with_bonus']:.2f}{'*' if row['extrapolated'] else ''}"


def _terminal(title: str, about: KStar, rows: pd.DataFrame, cell: Callable[[pd.Series], str]) -> Table:
    """Return a rich table: a row a batch, a column a context; `-` where `rows` has none."""
    shown = terminal_table(title)
    shown.add_column(Text("Batch"), justify="right")
    for context in about.contexts:
        shown.add_column(Text(f"{context:,.0f}"), justify="right", overflow="fold")
    found = {(row["batch"], row["context_tokens"]): cell(row) for _, row in rows.iterrows()}
    for batch in about.batches:
        cells = [Text(found.get((batch, context), "-")) for context in about.contexts]
        shown.add_row(Text(f"{batch:,}"), *cells)
    return shown
