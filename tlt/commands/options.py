"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Number = TypeVar("Number", int, float)

# Every group says so itself: click keeps the help option of a command from its first call on.
HELP = {"help_option_names": ["-h", "--help"]}
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
PATH = click.Path(path_type=Path)
TOKENS = click.IntRange(1, (1 << 31) - 1)


class WholeGroup(click.Group):
    """A group whose help says of each command the first sentence of its own help, to its end."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, command) for name, command in named if command is not None and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in shown])


class RenamedOption(click.Option):
    """An option whose first name is shown and whose other names, of earlier versions, still work."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the line of the help, with the first name alone."""
        shown = copy.copy(self)
        shown.opts = self.opts[:1]
        return click.Option.get_help_record(shown, ctx)


def renamed(command: click.Command, old: str) -> click.Command:
    """Return a command under the name that it had in an earlier version; no help lists it."""
    hidden = copy.copy(command)
    hidden.name, hidden.hidden = old, True
    return hidden


def config_option(help_text: str) -> Callable[[Command], Command]:
    """Return --config, a TOML file."""
    return click.option("--config", type=EXISTING_FILE, help=help_text)


assignments_option = click.option(
    "--set", "assignments", multiple=True, metavar="A.B=VALUE", help="Set one field; may be repeated."
)


def configured(help_text: str) -> Callable[[Command], Command]:
    """Return --config and --set together."""
    return lambda command: config_option(help_text)(assignments_option(command))


def out_folder(help_text: str = "Folder for the results.") -> Callable[[Command], Command]:
    """Return --out for commands that write a folder; nobody else writes to it meanwhile."""
    option = click.option("--out", type=FOLDER, required=True, help=help_text)
    return lambda command: option(_holding_out(command))


def _holding_out(command: Command) -> Command:
    @wraps(command)
    def held(*arguments: Any, **options: Any) -> Any:
        from tlt.traces.common.lock import holding

        with holding(options["out"]):
            return command(*arguments, **options)

    return held  # type: ignore[return-value]  # of the same signature


def policies_option(help_text: str, metavar: str = "POLICY,...", **more: Any) -> Callable[[Command], Command]:
    """Return --policies; `--arms` is its name of earlier versions."""
    return click.option("--policies", "--arms", cls=RenamedOption, metavar=metavar, help=help_text, **more)


def draft_configs_option(help_text: str) -> Callable[[Command], Command]:
    """Return --draft-configs; `--arms` is its name of earlier versions."""
    return click.option("--draft-configs", "--arms", cls=RenamedOption, metavar="DRAFT,...", help=help_text)


executor_option = click.option(
    "--executor", type=click.Choice(["processes", "ray"]), default="processes", show_default=True,
    help="Where simulations run: processes of this machine, or tasks of a Ray cluster (RAY_ADDRESS, or the "
    "one that runs here).",
)  # fmt: skip
jobs_option = click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes of this machine; default: one a CPU."
)
report_option = click.option(
    "--report/--no-report", "with_report", default=True, help="Write report and pictures."
)
calibration_option = click.option(
    "--calibration", type=EXISTING_FILE, help="Step times that goodput predicts with, made before."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
force_option = click.option("--force", is_flag=True, help="Replace an existing output.")
seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
tokenizer_option = click.option(
    "--tokenizer", type=PATH, help="tokenizer.json of the model, for files that hold texts."
)
responses_option = click.option(
    "--responses", type=click.IntRange(1, 1 << 16), metavar="N",
    help="Responses of a step, for metrics that do not say it.",
)  # fmt: skip
columns_option = click.option(
    "--columns", multiple=True, metavar="FIELD=COLUMN,...",
    help="What the columns of a file in no known format are; `tlt trace peek` proposes them.",
)  # fmt: skip
format_option = click.option(
    "--format", "format_name", metavar="NAME", help="Format; found from the contents without."
)


def cap_option(help_text: str) -> Callable[[Command], Command]:
    """Return --cap, a number of tokens."""
    return click.option("--cap", type=TOKENS, metavar="TOKENS", help=help_text)


def draws_option(default: int, help_text: str) -> Callable[[Command], Command]:
    """Return --draws, a number of draws of the step times."""
    return click.option(
        "--draws", type=click.IntRange(0, 1000), default=default, show_default=True, help=help_text
    )


def names_of(text: str | None) -> list[str] | None:
    """Return what a list separated by commas names; None where it was not given.

    Commas inside brackets separate parameters.
    """
    if text is None:
        return None
    return [name.strip() for name in re.split(r",(?![^()]*\))", text) if name.strip()]


def numbers_of(option: str, text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    """Return the numbers of a list separated by commas, none if it was not given; raises InputError."""
    from tltsched.errors import InputError

    try:
        return [kind(name) for name in names_of(text) or ()]
    except ValueError:
        raise InputError(option, text, "numbers separated by commas", "correct the list") from None
