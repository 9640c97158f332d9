"""`tlt real check-export`: whether an engine reads an exported table as it was meant."""

from __future__ import annotations

from pathlib import Path

import click

from tlt.commands.options import EXISTING_FILE, PATH


@click.command("check-export")
@click.argument("file", type=EXISTING_FILE)
@click.option(
    "--max-running",
    type=click.IntRange(1),
    help="Most requests that run at once. Default: the last batch of the table.",
)
@click.option("--python", type=PATH, help="An interpreter with SGLang, to read a file of that engine.")
def check_export(file: Path, max_running: int | None, python: Path | None) -> None:
    """Read FILE, which `tlt sim export` wrote with --format vllm, verl, sglang or trtllm, as its engine does.

    vLLM's own parser reads a file for vLLM, or the table in one for verl, without loading the drafter. A
    file for SGLang or TensorRT-LLM is read by the rule that their source states, or by SGLang itself with
    --python. Exits with 2 if the engine would refuse the file or read another table.
    """
    from tlt.realrun.engine.check_export import check_export as check

    found = check(file, max_running, python=python.absolute() if python else None)
    click.echo(found.text())
    click.echo(f"as a policy of `tlt real replay --policies`: {found.policy}")
