"""`tlt sim drafter`: train the drafter during the run, or leave it."""

from __future__ import annotations

from pathlib import Path

import click

from tlt.commands.options import configured, json_option
from tlt.commands.progress import progress
from tlt.commands.sim.given import refuse_set


@click.command("drafter")
@configured("TOML file; `tlt sim fields` lists what it may hold.")
@click.option("--policy", default="static:4", show_default=True, help="What drafts.")
@click.option("--run-steps", type=click.IntRange(1, 1_000_000), default=100, show_default=True,
              help="RL steps of the whole run.")  # fmt: skip
@click.option("--first-tokens", type=click.IntRange(0), default=0, metavar="TOKENS",
              help="Trained on before the run, where none exists (drafter.exists = false).")  # fmt: skip
@click.option("--price", type=click.FloatRange(0.0), metavar="USD", help="Of a GPU-hour.")
@json_option
def drafter(
    config: Path | None, assignments: tuple[str, ...], policy: str, run_steps: int, first_tokens: int,
    price: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Say whether to train the drafter during a run or to leave it, in GPU-hours and money, with a range."""
    import msgspec

    from tlt.sim.advise.train_drafter import train_or_leave
    from tlt.sim.policy_set import policy_set
    from tlt.traces.common.settings import settings_of

    refuse_set(assignments, {"workload.steps": "the run has --run-steps", "policy": "--policy says it"})
    simulations = policy_set(settings_of(config, assignments), ["none", policy]).simulations
    with progress("simulating a few steps at several ages of the drafter"):
        found = train_or_leave(simulations[policy], simulations["none"], policy, run_steps, first_tokens)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    for line in found.lines(price):
        click.echo(line)
