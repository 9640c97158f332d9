"""`tlt real check-export`: whether vLLM reads an exported table as it was meant."""

from __future__ import annotations

from pathlib import Path

import click

from tlt.commands.options import EXISTING_FILE


@click.command("check-export")
@click.argument("file", type=EXISTING_FILE)
@click.option(
    "--max-running",
    type=click.IntRange(1),
    help="vLLM's --max-num-seqs. Default: the last batch of the table.",
)
def check_export(file: Path, max_running: int | None) -> None:
    """Read FILE, which `tlt sim export --format vllm` wrote, with vLLM's own parser.

    The drafter is not loaded. Exits with 2 if vLLM refuses the file or reads another table.
    """
    from tlt.realrun.engine.check_export import check_export as check

    found = check(file, max_running)
    click.echo(found.text())
    click.echo(f"as a policy of `tlt real replay --policies`: {found.policy}")
