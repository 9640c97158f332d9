"""The K* map in words, tables and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tlt.analysis.drawing.figure import Picture, save
from tlt.analysis.drawing.html import page as page_of
from tlt.analysis.drawing.tables import TextTable, terminal_table
from tlt.analysis.kstar.pictures import configured_sentence, draw_kstar, even_sentence
from tlt.traces.common.regret import TIE
from tlt.traces.results.kstar import CONFIGURED, KStar, KStarMap, read_kstar

TEMPLATE = "kstar/report.html"
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
    """Write page and pictures into the folder of a map, and print its tables; raises InputError."""
    found = read_kstar(folder)
    pictures = draw_kstar(found)
    paths = save(pictures, folder / "pictures")
    tables = best_table(found), even_table(found)
    notes = EVEN_NOTES if found.about.rates else TREE_NOTES
    by = "by batch (running requests) and context"
    titles = (
        f"Best draft configuration and gain under the configured acceptance, {by}",
        f"Break-even acceptance, {by}",
    )
    console.print(_terminal(titles[0], tables[0]))
    console.print(Text(NOTES))
    console.print(Text(regret_sentence(_configured(found))))
    console.print()
    console.print(_terminal(titles[1], tables[1]))
    console.print(Text(notes))
    console.print()
    if found.about.rates:
        console.print(Text(even_sentence(found)))
    console.print(Text(f"step times: {found.about.describe()}; acceptance: {found.about.acceptance}"))
    page = folder / "kstar.html"
    page.write_text(render(found, tables, notes, pictures), encoding="utf-8")
    console.print(Text(f"page: {page}"), soft_wrap=True)
    console.print(Text(f"map: {folder / 'kstar.parquet'}, {folder / 'breakeven.parquet'}"), soft_wrap=True)
    for path in paths:
        console.print(Text(f"picture: {path}"), soft_wrap=True)


def render(found: KStarMap, tables: tuple[TextTable, TextTable], notes: str, pictures: list[Picture]) -> str:
    """Return the page of a map."""
    about = found.about
    sentences = [configured_sentence(_configured(found)), regret_sentence(_configured(found))]
    if about.rates:
        sentences.insert(1, even_sentence(found))
    return page_of(
        TEMPLATE,
        title="What to draft, by batch, context and acceptance",
        about=f"step times: {about.describe()}; acceptance: {about.acceptance}",
        sentences=sentences,
        best=tables[0],
        notes=NOTES,
        even=tables[1],
        even_notes=notes,
        pictures=pictures,
        map=map_data(found),
    )


def map_data(found: KStarMap) -> dict[str, Any]:
    """Return what the script of the page reads; the configured law is the first of the rates."""
    columns = {"rate": "rate", "batch": "batch", "context_tokens": "context", "draft_config": "draft",
               "gain": "gain", "gain_low": "low", "gain_high": "high"}  # fmt: skip
    cells = found.best[list(columns)].rename(columns=columns).to_dict("records")
    return {
        "contexts": list(found.about.contexts),
        "rates": [CONFIGURED, *found.about.rates],
        "cells": cells,
    }


def best_table(found: KStarMap) -> TextTable:
    """Return the best draft configuration under the configured law, a row a batch, a column a context."""
    return _table(found.about, _configured(found), best_cell)


def even_table(found: KStarMap) -> TextTable:
    """Return where drafting begins to pay, a row a batch, a column a context."""
    return _table(found.about, first_to_pay(found), even_cell if found.about.rates else tree_cell)


def _configured(found: KStarMap) -> pd.DataFrame:
    return found.best[found.best["rate"] == CONFIGURED]


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


def _table(about: KStar, rows: pd.DataFrame, cell: Callable[[pd.Series], str]) -> TextTable:
    """Return a row a batch, a column a context; `-` where `rows` has none."""
    found = {(row["batch"], row["context_tokens"]): cell(row) for _, row in rows.iterrows()}
    headers = ("Batch", *(f"{context:,.0f} tokens" for context in about.contexts))
    cells = [
        (f"{batch:,}", *(found.get((batch, context), "-") for context in about.contexts))
        for batch in about.batches
    ]
    return TextTable(headers, cells)


def _terminal(title: str, table: TextTable) -> Table:
    shown = terminal_table(title)
    for header in table.headers:
        shown.add_column(Text(header), justify="right", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown
