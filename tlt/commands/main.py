"""The command `tlt`: finds the command groups of the packages, loads one when it is used, and reports errors.

This is the only place that knows all packages: what one needs of another it gets from here.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tltsched.errors import InputError

if TYPE_CHECKING:
    from tlt.sim.steptimes.calibration import Calibration
    from tlt.traces.results.calibration_points import MeasuredPoints
    from tltsched.draft_config import DraftConfig
    from tltsched.step_times import StepTimeTable

# command -> (where it is, what `tlt --help` says), so that help loads no package
COMMANDS = {
    "trace": ("tlt.commands.trace:trace", "Response lengths: describe, sample, fit, convert."),
    "sim": ("tlt.commands.sim:sim", "Simulate a cluster: run, compare policies, recommend one."),
    "real": ("tlt.commands.real:real", "Run the scheduler on a live engine: calibrate, replay lengths."),
    "report": ("tlt.commands.report:report", "Make the report of a run folder or a comparison folder."),
}
INTERRUPTED, BAD_INPUT = 130, 2
NO_CHUNKS = float("inf")  # prefill is no part of the step times of a policy


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of COMMANDS."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


class Toolbox:
    """What the commands of one package use of another; each loads its package when it is called."""

    def present(self, folder: Path) -> None:
        """Write the report of a run or comparison folder and print its table, verdict and paths."""
        from rich.console import Console

        from tlt.analysis.report import present as write_and_print

        write_and_print(folder, Console())

    def fit_points(self, measured: MeasuredPoints) -> Calibration:
        """Fit the law of step times to measured points."""
        from tlt.sim.steptimes.fit_live import fit_points

        return fit_points(measured)

    def step_times(
        self, calibration: Path, policies: tuple[DraftConfig, ...], max_requests: int
    ) -> StepTimeTable:
        """Return the calibrated times of policies on an engine that keeps its drafter in step."""
        from tlt.sim.steptimes.calibration import load
        from tlt.sim.steptimes.tables import StepCosts

        coefficients = load(str(calibration)).coefficients
        return StepCosts(coefficients, "k0", max_requests, NO_CHUNKS, 0, 0.0).step_times(policies)

    def simulate(self, run_folder: Path, calibration: Path, out: Path) -> None:
        """Simulate the requests of a measured run under the scheduler that it ran under."""
        from tlt.sim.validate.replay_measured import simulate_replay

        simulate_replay(run_folder, calibration, out)


@click.group(cls=LazyGroup)
@click.version_option(package_name="tlt-sim")
def cli() -> None:
    """Idle GPU time of long-tail rollouts, and the speculative-decoding policy that uses it best."""


def main() -> None:
    """Run `tlt`. Exit codes: 0 done, 1 a check failed, 2 bad input, 3 books do not close, 130 stopped."""
    try:
        sys.exit(cli.main(standalone_mode=False, obj=Toolbox()))
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(BAD_INPUT)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped; the same command goes on where it can", err=True)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
