"""`tlt report`: the report of a run folder or a comparison folder."""

from __future__ import annotations

from pathlib import Path

import click

BOOKS_DO_NOT_CLOSE = 3  # exit code


class DefaultGroup(click.Group):
    """A group whose command `run` may be left out: `report FOLDER` is `report run FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` in front of arguments that start with neither a command nor a help option."""
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=DefaultGroup, subcommand_metavar="FOLDER | COMMAND [ARGS]...")
def report() -> None:
    """Make the report of a run folder or a comparison folder.

    `tlt report FOLDER` is short for `tlt report run FOLDER`. A folder that has the name of a command is
    written ./NAME.
    """


@report.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--open-step",
    type=int,
    metavar="N",
    help="RL step that Gantt and running requests show. Default: the baseline's step of median duration.",
)
@click.pass_context
def run(ctx: click.Context, folder: Path, open_step: int | None) -> None:
    """Write report.html, pictures/ and trace.json into FOLDER and print the table.

    Exits with 3 if the books of a run do not close: then its figures mean nothing and nothing is written.
    """
    # Imported here: the libraries for tables and pictures take longer to load than `--help` may take.
    from rich.console import Console

    from analysis.ledger import BooksError
    from analysis.report import present

    try:
        present(folder, Console(), open_step)
    except BooksError as error:
        click.echo(f"error: the books do not close: {error}", err=True)
        ctx.exit(BOOKS_DO_NOT_CLOSE)
