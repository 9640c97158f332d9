"""`tlt sim kstar`: what to draft at which batch, context and acceptance, and where it begins to pay."""

from __future__ import annotations

from pathlib import Path

import click

from tlt.commands.options import configured, draft_configs_option, names_of, numbers_of, out_folder
from tlt.commands.output import present


@click.command()
@configured("TOML file; `tlt sim fields` lists what it may hold.")
@draft_configs_option("Candidates such as off,1,2,4; default: chains of 1 to 8, or trees.")
@click.option("--batches", metavar="N,...", help="Requests that one worker runs at once.")
@click.option("--contexts", metavar="TOKENS,...", help="Context of each request, in tokens.")
@click.option(
    "--acceptance", metavar="RATE,...", help="Chances that each further draft is accepted; not for trees."
)
@out_folder()
def kstar(
    config: Path | None,
    assignments: tuple[str, ...],
    draft_configs: str | None,
    batches: str | None,
    contexts: str | None,
    acceptance: str | None,
    out: Path,
) -> None:
    """Map what to draft, its gain and the break-even acceptance over batch, context and acceptance.

    `[cost]` of the configuration names the calibration, `[acceptance]` the law beside the rates.
    """
    from tlt.sim.advise.kstar import BATCHES, CONTEXTS, RATES, drafting_configs, kstar_map
    from tlt.sim.config import resolve
    from tlt.traces.common.settings import settings_of
    from tlt.traces.results.kstar import write_kstar

    resolved = resolve(settings_of(config, assignments), "none")
    best = kstar_map(
        resolved,
        drafting_configs(resolved, names_of(draft_configs) or ()),
        numbers_of("--batches", batches, int) or BATCHES,
        numbers_of("--contexts", contexts, float) or CONTEXTS,
        numbers_of("--acceptance", acceptance, float) or RATES,
    )
    write_kstar(out, best)
    present(out)
