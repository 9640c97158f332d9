"""What several commands print, and what they put together of several packages.

Libraries are imported inside functions, here and in the commands: `--help` must not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import msgspec

    from tltsched.draft_config import DraftConfig
    from tltsched.step_times import StepTimeTable

NO_CHUNKS = float("inf")  # prefill is no part of the step times of a policy


def present(folder: Path, with_report: bool = True, as_json: bool = False) -> None:
    """Write the report of a folder and print its table, verdict and paths, or its answer as JSON.

    Without a report the folder alone is printed, or the answer.
    """
    if not with_report and not as_json:
        click.echo(folder)
        return
    from tlt.analysis.report import answer_file, write_answer_of
    from tlt.analysis.report import present as write_and_print
    from tlt.commands.harmless_console import console
    from tlt.commands.progress import progress

    if not with_report:
        write_answer_of(folder)
    else:
        write_and_print(folder, console(quiet=as_json), writing=lambda: progress("writing the report"))
    if as_json:
        click.echo(answer_file(folder).read_text(encoding="utf-8").rstrip())


def refuse_taken(option: str, path: Path, force: bool) -> None:
    """Raise InputError if a file cannot be written: no such folder, a folder itself, or there already."""
    from tltsched.errors import InputError

    if not path.parent.is_dir():
        raise InputError(f"folder of {option}", str(path.parent), "a folder that exists", "make it first")
    if path.is_dir() or (path.exists() and not force):
        raise InputError(option, str(path), "a name that is free", "choose another name or add --force")


def echo_json(value: object) -> None:
    """Print a value as indented JSON."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def echo_fields(kind: type[msgspec.Struct]) -> None:
    """Print every field that a configuration may have: name, default, meaning."""
    from tlt.traces.common.settings import fields

    for name, default, meaning in fields(kind):
        click.echo(f"{name} = {default}\n    {meaning}")


def step_times_of(
    calibration: str | Path | None,
) -> Callable[[tuple[DraftConfig, ...], int], StepTimeTable] | None:
    """Return what gives calibrated times of draft configurations up to a batch; None without a calibration.

    The engine keeps its drafter in step. InputError comes from the call: of a calibration that there is not,
    or of draft configurations without times.
    """
    if calibration is None:
        return None

    def times(draft_configs: tuple[DraftConfig, ...], max_requests: int) -> StepTimeTable:
        from tlt.sim.steptimes.calibration import load
        from tlt.sim.steptimes.tables import StepCosts

        coefficients = load(str(calibration)).coefficients
        return StepCosts(coefficients, "k0", max_requests, NO_CHUNKS, 0, 0.0).step_times(draft_configs)

    return times


def limits_by(calibration: str | None) -> dict[str, Any]:
    """Return what the doctor's limits say of a calibration; raises InputError if there is none."""
    from tltsched.draft_config import OFF

    step_times = step_times_of(calibration)
    if step_times is None:
        return {}
    step_times((OFF,), 1)
    return {"calibration": calibration, "step_times": step_times}
