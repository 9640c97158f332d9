"""`tlt report`: the report of a run folder or a comparison folder."""

from __future__ import annotations

from pathlib import Path

import click

from tlt.commands.options import EXISTING_FOLDER, HELP, PATH, WholeGroup

CHECK_FAILED, TIME_DOES_NOT_ADD_UP = 1, 3  # exit codes


class DefaultGroup(WholeGroup):
    """A group whose command `run` may be left out: `report FOLDER` is `report run FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` in front of arguments that start with neither a command nor a help option."""
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=DefaultGroup, context_settings=HELP, subcommand_metavar="FOLDER | COMMAND [ARGS]...")
def report() -> None:
    """Make the report of a run folder or a comparison folder.

    `tlt report FOLDER` is short for `tlt report run FOLDER`. A folder that has the name of a command is
    written ./NAME.
    """


@report.command()
@click.argument("folder", type=EXISTING_FOLDER)
@click.option(
    "--open-step",
    type=int,
    metavar="N",
    help="RL step that Gantt and running requests show. Default: the baseline's step of median duration.",
)
@click.pass_context
def run(ctx: click.Context, folder: Path, open_step: int | None) -> None:
    """Write report.html, pictures/ and trace.json into FOLDER and print the table.

    Exits with 3 if the GPU time of a run does not add up: its figures mean nothing and nothing is written.
    """
    # Imported here: the libraries for tables and pictures take longer to load than `--help` may take.
    from tlt.analysis.ledger import AccountingError
    from tlt.analysis.report import present
    from tlt.commands.harmless_console import console

    try:
        present(folder, console(), open_step)
    except AccountingError as error:
        click.echo(f"error: the GPU time does not add up: {error}", err=True)
        ctx.exit(TIME_DOES_NOT_ADD_UP)


@report.command()
@click.argument("folder", type=EXISTING_FOLDER)
@click.option(
    "--against",
    type=EXISTING_FOLDER,
    help="Another run of the same requests, such as a simulated one: show where its decisions first differ.",
)
@click.pass_context
def decisions(ctx: click.Context, folder: Path, against: Path | None) -> None:
    """Replay the recorded events of FOLDER, a run or a comparison, through fresh schedulers.

    Exits with 1 unless they decide as they did in the run, byte for byte.
    """
    from tlt.analysis.crosscheck.decisions import divergences, replay_decisions, run_folders

    results = [replay_decisions(run) for run in run_folders(folder)]
    for result in results:
        click.echo(result.text())
    if against is not None:
        found = divergences(folder, against)
        for divergence in found:
            click.echo(divergence.text(folder, against))
        if not found:
            click.echo(f"all workers change their draft configurations alike in {folder} and {against}")
    if any(result.difference for result in results):
        ctx.exit(CHECK_FAILED)


@report.command()
@click.argument("folder", type=EXISTING_FOLDER)
@click.pass_context
def train(ctx: click.Context, folder: Path) -> None:
    """Write train.html, train.json and pictures of a training comparison into FOLDER.

    Exits with 3 if the GPU time of a run does not add up: its figures mean nothing and nothing is written.
    """
    from tlt.analysis.ledger import AccountingError
    from tlt.analysis.training.report import present_training
    from tlt.commands.harmless_console import console

    try:
        present_training(folder, console())
    except AccountingError as error:
        click.echo(f"error: the GPU time does not add up: {error}", err=True)
        ctx.exit(TIME_DOES_NOT_ADD_UP)


@report.command()
@click.argument("measured", type=EXISTING_FOLDER)
@click.option(
    "--simulated",
    type=EXISTING_FOLDER,
    help="The run simulated again; without it, it is simulated now, into MEASURED.simulated.",
)
@click.option("--calibration", type=PATH, help="Step times to simulate with, made before the run.")
@click.option(
    "--max-error",
    type=click.FloatRange(min=0),
    metavar="SHARE",
    help="Exit with 1 if a makespan or a speedup is missed by more, or a flag stops the conclusion.",
)
@click.pass_context
def crosscheck(
    ctx: click.Context,
    measured: Path,
    simulated: Path | None,
    calibration: Path | None,
    max_error: float | None,
) -> None:
    """Hold a simulation of a measured run against it, and write crosscheck.html into MEASURED."""
    from tlt.analysis.crosscheck.report import present_crosscheck
    from tlt.commands.harmless_console import console
    from tlt.sim.validate.replay_measured import simulate_replay
    from tltsched.errors import InputError

    if simulated is None:
        if calibration is None:
            raise InputError("--calibration", None, "a calibration.json", "give it, or --simulated FOLDER")
        simulated = measured.resolve().with_name(f"{measured.resolve().name}.simulated")
        simulate_replay(measured, calibration, simulated)
    check = present_crosscheck(measured, simulated, console())
    if max_error is not None and (check.stopped() or check.worst_error() > max_error):
        click.echo(f"error: missed by {check.worst_error():.1%}, or a flag stops the conclusion", err=True)
        ctx.exit(CHECK_FAILED)
