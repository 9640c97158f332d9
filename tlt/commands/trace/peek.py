"""`tlt trace peek`: what a file looks like, what it lacks, and the command that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tlt.commands.options import EXISTING_FILE, json_option
from tlt.commands.output import echo_json

if TYPE_CHECKING:
    from tlt.traces.importers.peek import Peek


@click.command("peek")
@click.argument("file", type=EXISTING_FILE)
@click.option("--all", "with_reasons", is_flag=True, help="Say of each format why it does not fit.")
@json_option
def peek_command(file: Path, with_reasons: bool, as_json: bool) -> None:
    """Show what a file looks like, what is missing for lengths, and the command to run."""
    from tlt.traces.importers.peek import peek

    found = peek(file)
    if as_json:
        echo_json(found)
        return
    _tell(found, with_reasons)


def _tell(found: Peek, with_reasons: bool) -> None:
    rows = f", {found.rows:,} rows looked at" if found.rows else ""
    click.echo(f"{found.source}: {found.layout}{rows}")
    width = max((len(field.name) for field in found.fields), default=0)
    for field in found.fields:
        click.echo(f"  {field.name:{width}}  {field.holds}: {field.example}")
    if found.metrics and not found.fields:
        click.echo(f"  metrics of steps: {', '.join(found.metrics)}")
    if found.nearest:
        click.echo(f"nearest format: {found.nearest}")
    for title, sentences in (("gives", found.gives), ("lacks", found.lacks)):
        for sentence in sentences:
            click.echo(f"{title}: {sentence}")
    for command in found.commands:
        click.echo(f"run: {command}")
    if with_reasons:
        for name, why in found.reasons.items():
            click.echo(f"not {name}: {why}")
