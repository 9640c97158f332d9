"""`tlt sim kstar`: what to draft at which batch, context and acceptance, and where it begins to pay."""

from __future__ import annotations

from typing import Any

import click

from tlt.commands.options import draft_configs_option, names_of, numbers_of
from tlt.commands.output import present
from tlt.commands.sim.given import claimed, refuse_set, settings_given, simulates

DECODE_ALONE = "decode alone is mapped, over --batches and --contexts"


@click.command()
@simulates
@draft_configs_option("Candidates such as off,1,2,4; default: chains of 1 to 8, or trees.")
@click.option("--batches", metavar="N,...", help="Requests that one worker runs at once.")
@click.option("--contexts", metavar="TOKENS,...", help="Context of each request, in tokens.")
@click.option(
    "--acceptance", metavar="RATE,...", help="Chances that each further draft is accepted; not for trees."
)
def kstar(
    draft_configs: str | None,
    batches: str | None,
    contexts: str | None,
    acceptance: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Map what to draft, its gain and the break-even acceptance over batch, context and acceptance.

    `[cost]` of the configuration names the calibration, `[acceptance]` the law beside the rates.
    """
    from tlt.sim.advise.kstar import BATCHES, CONTEXTS, RATES, drafting_configs, kstar_map
    from tlt.sim.config import resolve
    from tlt.sim.defaults import with_kind
    from tlt.sim.unused import refuse_unused
    from tlt.traces.results.kstar import write_kstar
    from tltsched.errors import InputError

    if given["phases"] is not None:
        raise InputError("--phases", str(given["phases"]), f"nothing here: {DECODE_ALONE}", "leave it out")
    refuse_set(given["assignments"], dict.fromkeys(("workload", "cluster", "phases", "policy"), DECODE_ALONE))
    settings, named = settings_given(given), names_of(draft_configs) or ()
    settings = with_kind(settings, [f"static:{name}" for name in named])
    resolved = resolve(settings, "none")
    refuse_unused(settings, resolved)
    best = kstar_map(
        resolved,
        drafting_configs(resolved, named),
        numbers_of("--batches", batches, int) or BATCHES,
        numbers_of("--contexts", contexts, float) or CONTEXTS,
        numbers_of("--acceptance", acceptance, float) or RATES,
    )
    asked = {"drafts": draft_configs, "batches": batches, "contexts": contexts, "rates": acceptance}
    out = claimed("kstar", given, settings, **asked)
    write_kstar(out, best)
    present(out, as_json=as_json)
