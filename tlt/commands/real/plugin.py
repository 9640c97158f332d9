"""`tlt real collect` and `tlt real step-times`: what goes into the vLLM plugin, and what comes out of it."""

from __future__ import annotations

from pathlib import Path

import click

from tlt.commands.options import EXISTING_FOLDER, FILE
from tlt.commands.output import step_times_of
from tltsched.errors import InputError


@click.command()
@click.argument("folder", type=EXISTING_FOLDER)
def collect(folder: Path) -> None:
    """Make a run folder of FOLDER, in which the plugin wrote what the engines of a job did.

    It is made anew by each call, so that a job may be looked at while it runs.
    """
    from tlt.traces.live.run_folder import collect as make

    summary = make(folder)
    engines = "1 engine" if summary.workers == 1 else f"{summary.workers} engines"
    click.echo(
        f"{folder}: {summary.steps:,} rollouts of {engines}, "
        f"{summary.response_tokens:,} response tokens, policy {summary.policy}"
    )
    for warning in summary.warnings:
        click.echo(f"  {warning}")


@click.command("step-times")
@click.argument("calibration")
@click.option(
    "--policy", required=True, help="Whose draft configurations are needed, as --policies takes it."
)
@click.option("--max-running", type=click.IntRange(1), required=True, help="Largest batch of an engine.")
@click.option("--out", type=FILE, required=True, help="JSON file.")
def step_times(calibration: str, policy: str, max_running: int, out: Path) -> None:
    """Write the step times of CALIBRATION that a policy needs, for `step_times.source` of the plugin.

    CALIBRATION is a file, or the name of a shipped one (`tlt sim calibrations`).
    """
    from tlt.plugin.drafting import chains_of
    from tlt.traces.runs.runfolder import write_json
    from tltsched.policies import parse_policy

    drafts = chains_of("--policy", policy, parse_policy(policy)).draft_configs
    times = step_times_of(calibration)
    if times is None:
        raise InputError("CALIBRATION", calibration, "a calibration", "name one")
    write_json(out, times(drafts, max_running))
    click.echo(out)
