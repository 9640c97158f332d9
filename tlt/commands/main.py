"""The command `tlt`: finds the command groups, loads one when it is used, and reports errors."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from tlt.commands.failures import GOES_ON, Terminated, ended_by_sigterm, outside
from tlt.commands.options import HELP
from tlt.commands.terminal import harmless_streams
from tlt.version import VERSION
from tltsched.errors import InputError

# command -> (where it is, what `tlt --help` says), so that help loads no package
COMMANDS = {
    "trace": ("tlt.commands.trace.group:trace", "Response lengths: describe, sample, fit, convert."),
    "sim": ("tlt.commands.sim.group:sim", "Simulate a cluster: run, compare policies, recommend one."),
    "real": (
        "tlt.commands.real.group:real",
        "Run the scheduler on a live engine: calibrate, replay lengths.",
    ),
    "watch": ("tlt.commands.watch.command:watch", "Follow a live run and say what goes wrong."),
    "check": ("tlt.commands.check:check", "Check the installation."),
    "report": ("tlt.commands.report:report", "Make the report of a run folder or a comparison folder."),
}
TERMINATED, INTERRUPTED, BAD_INPUT = 143, 130, 2


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


@click.group(cls=LazyGroup, context_settings=HELP)
@click.version_option(VERSION, prog_name="tlt")
def cli() -> None:
    """Idle GPU time of long-tail rollouts, and the speculative-decoding policy that uses it best."""


def main(command: click.Command = cli) -> None:
    """Run `tlt`, or another command as it does.

    Exits with 0, 1 a check failed, 2 bad input or a disk, folder or memory that does not suffice, 3 GPU time
    does not add up, 130 or 143 stopped.
    """
    with harmless_streams():
        _run(command)


def _run(command: click.Command) -> None:
    try:
        with ended_by_sigterm():
            sys.exit(command.main(standalone_mode=False))
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(BAD_INPUT)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped; the same command goes on where it can", err=True)
        sys.exit(INTERRUPTED)
    except Terminated:
        click.echo(f"stopped by SIGTERM; {GOES_ON}", err=True)
        sys.exit(TERMINATED)
    except Exception as error:
        told = outside(error)
        if told is None:
            raise
        click.echo(f"error: {told}", err=True)
        sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
