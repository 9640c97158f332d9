"""Tables of text: the same cells on a page, in Markdown and on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

Cells = list[tuple[str, ...]]


class TextTable(NamedTuple):
    """A table of text. Columns `names` hold words, as the first one does, and are aligned left on a page."""

    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: tuple[int, ...] = ()


def markdown_rows(
    headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], figures: int | None = None
) -> str:
    """Return any text table as Markdown.

    The last `figures` columns are aligned to the right; None means all but the first.
    """
    safe = [tuple(_pipe_safe(cell) for cell in row) for row in rows]
    frame = pd.DataFrame(safe, columns=pd.Index([_pipe_safe(header) for header in headers]))
    right = len(headers) - 1 if figures is None else figures
    align = ["left"] * (len(headers) - right) + ["right"] * right
    return str(frame.to_markdown(index=False, disable_numparse=True, colalign=align)) + "\n"


def _pipe_safe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def terminal_table(title: str = "") -> Table:
    """Return an empty rich table in the project's style; add cells as Text, so that no name is markup."""
    return Table(
        title=Text(title) if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
