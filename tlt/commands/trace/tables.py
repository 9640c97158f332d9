"""Tables on a terminal, as the commands of `tlt trace` print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table


def show(title: str, made: Table) -> None:
    """Print a table below its title."""
    from tlt.commands.harmless_console import console

    click.echo(title)  # rich would wrap a table's own title to the width of its columns
    console().print(made)


def table(rows: Sequence[tuple[str, ...]], *heads: str) -> Table:
    """Return a table whose first column is a name and whose others are figures."""
    from rich.table import Table

    made = Table()
    for index, head in enumerate(heads):
        made.add_column(head, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made
