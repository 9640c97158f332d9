"""What is given to every command that simulates: settings, seconds of a log, a fitted factor, the folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tlt.commands.options import (
    EXISTING_FOLDER,
    Command,
    configured,
    force_option,
    json_option,
    out_folder,
)

OPTIONS: tuple[Callable[[Any], Any], ...] = (
    configured("TOML file; `tlt sim fields` lists what it may hold."),
    click.option(
        "--phases", type=click.Path(exists=True, path_type=Path),
        help="Seconds of phases, in the mean: a log, or what `tlt trace import --phases` wrote.",
    ),
    click.option(
        "--fitted", type=EXISTING_FOLDER, metavar="FOLDER",
        help="A counterfactual whose fitted factor on step times is taken (cost.scale).",
    ),
    out_folder("Folder for the results, of this question alone."),
    force_option,
    json_option,
)  # fmt: skip


def simulates(command: Command) -> Command:
    """Add these options to a command; it hands them on to `settings_given` and `claimed`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def settings_given(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings: those of logs, the file's on top, then each assignment. Raises InputError."""
    from tlt.traces.common.settings import merge, settings_of

    own = settings_of(given["config"], given["assignments"])
    logged: dict[str, Any] = {}
    if given["phases"] is not None:
        from tlt.sim.config import WorkloadConfig
        from tlt.sim.counterfactual.handed_on import settings_of_phases

        steps = own.get("workload", {}).get("steps", WorkloadConfig().steps)
        logged = settings_of_phases(given["phases"], steps if isinstance(steps, int) else 1)
    if given["fitted"] is not None:
        from tlt.sim.counterfactual.handed_on import fitted_scale

        logged = merge(logged, {"cost": {"scale": fitted_scale(given["fitted"])}})
    return merge(logged, own)


def refuse_set(assignments: tuple[str, ...], unused: dict[str, str]) -> None:
    """Raise InputError for a `--set` of what a command does not use.

    A file of settings may hold it, since several commands read one file. `unused`: a field or section, and
    why it is nothing here.
    """
    from tltsched.errors import InputError

    for assignment in assignments:
        path, _, value = assignment.partition("=")
        for name, why in unused.items():
            if path == name or path.startswith(f"{name}."):
                raise InputError(path, value, f"nothing here: {why}", "leave it out")


def claimed(command: str, given: dict[str, Any], settings: dict[str, Any], **asked: Any) -> Path:
    """Return the folder of --out, taken for this command and question; raises InputError."""
    from tlt.traces.results.study import claim

    out: Path = given["out"]
    claim(out, command, settings | asked, force=given["force"])
    return out
