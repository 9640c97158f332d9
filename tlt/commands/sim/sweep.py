"""`tlt sim sweep`: every combination of values of some fields, as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tlt.commands.options import executor_option, jobs_option
from tlt.commands.output import echo_json
from tlt.commands.progress import progress
from tlt.commands.sim.given import claimed, settings_given, simulates

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 12  # rows of the table on the terminal


@click.command()
@simulates
@click.option(
    "--grid", "axes", multiple=True, required=True, metavar="FIELD=VALUE,...",
    help="A field and its values, such as hardware.gpus=32,64; may be repeated. "
    "policy=none,tlt@tail_batching sets policies.",
)  # fmt: skip
@executor_option
@jobs_option
def sweep(axes: tuple[str, ...], executor: Any, jobs: int | None, as_json: bool, **given: Any) -> None:
    """Simulate every combination of the values of some fields, and write one table: sweep.csv and .parquet.

    What is done is kept: stopped, or asked for more values, it goes on. Combinations that cannot be are rows
    with the reason. Intervals are of the spread over RL steps alone; `tlt sim compare` adds the errors of
    step times and acceptance.
    """
    from tlt.sim.parallel.executors import executor as opened
    from tlt.sim.sweep.grid import axis, points
    from tlt.sim.sweep.run import TEXT
    from tlt.sim.sweep.run import sweep as run_sweep

    swept = [axis(each) for each in axes]
    settings = settings_given(given)
    found = points(settings, swept)
    out = claimed("sweep", given, settings)
    with progress("sweep", total=len(found)) as shown, opened(executor, jobs) as running:
        table = run_sweep(found, swept, out, running, lambda done, _: shown.reach(done, "sweep"))
    if as_json:
        echo_json(table.astype(object).where(table.notna(), None).to_dict("records"))
        return
    _show(table, [each.field for each in swept])
    click.echo(out / TEXT)


def best_sentences(ran: pd.DataFrame, fields: list[str]) -> list[str]:
    """Say which configuration takes the least for a trained token, how sure that is, and whether its numbers
    lie inside.

    ran: rows of a sweep, the best first; fields: its axes, whose values are text. Those that cannot be ranked
    are left out, and said.
    """
    out = ran[ran["unranked"] != ""]
    ran = ran[ran["unranked"] == ""]
    left_out = [
        f"Not ranked: {_where(row, fields)}: {row['unranked']}." for _, row in out.head(SHOWN).iterrows()
    ]
    if not len(ran):
        return left_out
    best, told = ran.iloc[0], []
    overlap = int((ran["s_per_mtoken_low"] < best["s_per_mtoken_high"]).sum()) - 1
    if overlap > 0:
        told.append(
            f"Over RL steps its interval overlaps that of {overlap} other{'s' if overlap > 1 else ''}: "
            "`tlt sim compare` pairs the steps and says which is faster."
        )
    for field in fields:
        try:
            values = sorted(float(value) for value in ran[field].unique())
        except ValueError:  # not an axis of numbers
            continue
        at = values.index(float(best[field]))
        here = f"{field} = {best[field]}"
        if 0 < at < len(values) - 1:
            told.append(f"{here} lies inside, between {values[at - 1]:g} and {values[at + 1]:g}.")
        elif len(values) > 1:
            told.append(f"{here} is the {'largest' if at else 'least'} that was tried: go on there.")
    words = f"Best: {_where(best, fields)}: {best['s_per_mtoken']:.4g} s for a million trained tokens."
    return [words, *told, *left_out]


def _where(row: pd.Series, fields: list[str]) -> str:
    return ", ".join(f"{field}={row[field]}" for field in fields)


def _show(table: pd.DataFrame, fields: list[str]) -> None:
    """Print the first rows by seconds for a million trained tokens, and how many could not run."""
    from tabulate import tabulate

    ran = table[table["error"] == ""].sort_values("s_per_mtoken", kind="stable")
    ranked = ran[ran["unranked"] == ""]
    columns = ("s_per_mtoken", "s_per_mtoken_low", "s_per_mtoken_high", "idle_share")
    head = ranked[[*fields, *columns]].head(SHOWN).to_numpy().tolist()
    click.echo(tabulate(head, [*fields, "s/Mtoken", "low", "high", "idle"], floatfmt=".3g"))
    failed = table[table["error"] != ""]
    more = f"; {len(failed)} could not run, the first: {failed['error'].iloc[0]}" if len(failed) else ""
    assumed = "; ".join(sorted({source for source in ran["cost_source"] if source}))
    click.echo(f"{len(ran)} of {len(table)} configurations ran{more}")
    click.echo(f"simulated; step times: {assumed}")
    for sentence in best_sentences(ran, fields):
        click.echo(sentence)
