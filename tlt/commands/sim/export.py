"""`tlt sim export`: the advice in the form that an engine loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from tlt.commands.options import EXISTING_FOLDER, FILE, configured, draft_configs_option, names_of

if TYPE_CHECKING:
    from tlt.sim.advise.export.formats import Format
    from tlt.sim.simulation import Simulation

FORMATS = ("vllm", "verl", "sglang", "sglang-flags", "trtllm", "fastrl")


@click.command()
@click.argument("folder", required=False, type=EXISTING_FOLDER)
@configured("TOML file instead of FOLDER; `tlt sim fields` lists what it may hold.")
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="Who is to read it.")
@draft_configs_option("Candidates such as off,1,2,4. Default: those of the law.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 0.5),
    default=0.01,
    show_default=True,
    help="Share of tokens/s that may be given up for fewer changes.",
)
@click.option(
    "--method", default="eagle3", show_default=True, help="Kind of drafter, as the engine names it."
)
@click.option("--draft-model", metavar="NAME_OR_PATH", help="Drafter that the engine is to load.")
@click.option("--out", type=FILE, required=True, help="File to write.")
def export(
    folder: Path | None,
    config: Path | None,
    assignments: tuple[str, ...],
    form: str,
    draft_configs: str | None,
    tolerance: float,
    method: str,
    draft_model: str | None,
    out: Path,
) -> None:
    """Write the best draft configuration by batch in the form that an engine loads, and where it comes from.

    FOLDER is what `tlt sim recommend`, compare or run wrote. FILE.provenance.json beside the file holds the
    calibration, the acceptance, the gains and what may be lost.
    """
    from tlt.sim.advise.export.files import SUFFIX
    from tlt.sim.advise.export.files import export as write
    from tlt.sim.advise.export.formats import Target
    from tlt.sim.advise.kstar import drafting_configs

    simulation = _simulation(folder, config, assignments)
    chosen, engine = simulation.config, simulation.config.engine
    target = Target(
        method=method, draft_model=draft_model, max_running=engine.max_running, tp=chosen.hardware.tp,
        chunk_tokens=engine.chunk_tokens, prefix_caching=engine.prefix_caching,
    )  # fmt: skip
    named = drafting_configs(simulation.config, names_of(draft_configs) or ())
    made, origin = write(simulation, cast("Format", form), named, tolerance, target, out)
    click.echo(f"{out} ({origin.policy})")
    click.echo(f"origin: {out}{SUFFIX}")
    click.echo(f"step times: {origin.step_times}; acceptance: {origin.acceptance}")
    click.echo(f"names of settings: {origin.names_from}; checked by the engine: {origin.checked_by_engine}")
    for warning in (*origin.warnings, *made.notes):
        click.echo(f"! {warning}")
    click.echo(f"use it:\n{made.usage}")


def _simulation(folder: Path | None, config: Path | None, assignments: tuple[str, ...]) -> Simulation:
    from tlt.sim.advise.export.files import simulation_of
    from tlt.sim.policy_set import policy_set
    from tlt.traces.common.settings import settings_of
    from tltsched.errors import InputError

    if folder is not None:
        if config is not None or assignments:
            raise InputError("FOLDER", str(folder), "a folder, or --config and --set", "give one of them")
        return simulation_of(folder)
    if config is None and not assignments:
        raise InputError("FOLDER", None, "a folder, or --config and --set", "give one of them")
    return policy_set(settings_of(config, assignments), ["none"]).baseline
