"""`tlt sim kstar`: the best draft configuration over batch, context and acceptance, and from which acceptance
on it pays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import click

Number = TypeVar("Number", int, float)


class Tools(Protocol):
    """What the root command lends of other packages."""

    def present(self, folder: Path) -> None:
        """Write and print the report of a folder."""


def names_of(text: str | None) -> list[str] | None:
    """Return what a list separated by commas names; None where it was not given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def numbers_of(option: str, text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    """Return the numbers of a list separated by commas; raises InputError."""
    from tltsched.errors import InputError

    try:
        return [kind(name) for name in names_of(text) or ()]
    except ValueError:
        raise InputError(option, text, "numbers separated by commas", "correct the list") from None


@click.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file; `tlt sim fields` lists what it may hold.",
)
@click.option(
    "--set", "assignments", multiple=True, metavar="A.B=VALUE", help="Set one field; may be repeated."
)
@click.option(
    "--draft-configs",
    metavar="DRAFT,...",
    help="Candidates such as off,1,2,4; default: chains of 1 to 8, or trees.",
)
@click.option("--batches", metavar="N,...", help="Requests that one worker runs at once.")
@click.option("--contexts", metavar="TOKENS,...", help="Context of each request, in tokens.")
@click.option(
    "--acceptance", metavar="RATE,...", help="Chances that each further draft is accepted; not for trees."
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the results."
)
@click.pass_obj
def kstar(
    tools: Tools,
    config: Path | None,
    assignments: tuple[str, ...],
    draft_configs: str | None,
    batches: str | None,
    contexts: str | None,
    acceptance: str | None,
    out: Path,
) -> None:
    """Map the best draft configuration and its gain over batch, context and acceptance, with the break-even
    acceptance.

    `[cost]` of the configuration names the calibration, `[acceptance]` the law beside the rates.
    """
    from tlt.sim.advise.kstar import BATCHES, CONTEXTS, RATES, drafting_configs, kstar_map
    from tlt.sim.config import resolve
    from tlt.traces.common.settings import settings_of
    from tlt.traces.results.kstar import write_kstar

    resolved = resolve(settings_of(config, assignments), "none")
    found = kstar_map(
        resolved,
        drafting_configs(resolved, names_of(draft_configs) or ()),
        numbers_of("--batches", batches, int) or BATCHES,
        numbers_of("--contexts", contexts, float) or CONTEXTS,
        numbers_of("--acceptance", acceptance, float) or RATES,
    )
    write_kstar(out, found)
    tools.present(out)
