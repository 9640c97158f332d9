"""`tlt trace acceptance`: how many drafts were accepted, as an engine, benchmark or trainer wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tlt.commands.options import PATH, force_option, json_option
from tlt.commands.output import echo_json, refuse_taken

if TYPE_CHECKING:
    from tlt.traces.importers.acceptance.counted import Acceptance


@click.command("acceptance")
@click.argument("path", type=PATH)
@click.option(
    "--drafts",
    type=click.IntRange(1, 64),
    metavar="K",
    help="Drafts of an engine step, if PATH does not say.",
)
@click.option("--out", type=PATH, help="TOML file to write, with the section [acceptance] for `tlt sim`.")
@json_option
@force_option
def acceptance_command(path: Path, drafts: int | None, out: Path | None, as_json: bool, force: bool) -> None:
    """Show the law of acceptance that a file states, as `tlt sim` takes it.

    PATH is a server log or Prometheus text of vLLM or SGLang, a result of their serving benchmarks, or
    metrics of slime, SkyRL, verl or NeMo-RL. `--set acceptance.read_from=PATH` takes it directly.
    """
    from tlt.traces.importers.acceptance.reading import read_acceptance

    if out is not None:
        refuse_taken("--out", out, force)
    found = read_acceptance(path, drafts)
    if out is not None:
        out.write_text(_section(found), encoding="utf-8")
    if as_json:
        echo_json(found.settings() | {"depth": found.depth, "length_with_bonus": found.length_with_bonus,
                                      "notes": found.notes})  # fmt: skip
        return
    click.echo(f"# {found.origin}")
    for note in found.notes:
        click.echo(f"# {note}")
    click.echo(_section(found), nl=False)
    if out is not None:
        click.echo(f"wrote {out}")


def _section(found: Acceptance) -> str:
    """Return the section as TOML; the strings of JSON are strings of TOML."""
    import msgspec

    lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in found.settings().items()]
    return "\n".join(["[acceptance]", *lines, ""])
