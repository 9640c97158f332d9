"""`tlt sim counterfactual`: what other policies and schedules would have done with an observed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click

from tlt.commands.sim_kstar import names_of

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class Tools(Protocol):
    """What the root command lends of other packages."""

    def present(self, folder: Path) -> None:
        """Write and print the report of a folder."""


@click.command()
@click.argument("run", type=click.Path(exists=True, path_type=Path))
@click.option("--config", type=FILE, help="TOML file; `tlt sim fields` lists what it may hold.")
@click.option(
    "--set", "assignments", multiple=True, metavar="A.B=VALUE", help="Set one field; may be repeated."
)
@click.option("--phases", type=FILE, help="Phase times that `tlt trace import --phases` wrote.")
@click.option(
    "--observed", metavar="POLICY", help="What the run was under; none, unless a run folder says else."
)
@click.option(
    "--policies", metavar="POLICY[@SCHEDULE],...",
    help="What to simulate on the same lengths beside the observed policy. Default: a few of each kind.",
)  # fmt: skip
@click.option("--gpus", type=click.IntRange(1), help="GPUs of the run (hardware.gpus).")
@click.option("--tp", type=click.IntRange(1), help="GPUs of one rollout worker (hardware.tp).")
@click.option("--price", type=click.FloatRange(0.0), metavar="USD", help="Of a GPU-hour.")
@click.option("--cap", type=click.IntRange(1, (1 << 31) - 1), metavar="TOKENS",
              help="Longest response that was allowed, for files that do not say.")  # fmt: skip
@click.option("--tokenizer", type=FILE, help="tokenizer.json of the model, for files that hold texts.")
@click.option("--draws", type=click.IntRange(0, 1000), default=99, show_default=True,
              help="Draws of the step times within their error; 0: none.")  # fmt: skip
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the results."
)
@click.option("--report/--no-report", "with_report", default=True, help="Write and print the report.")
@click.pass_obj
def counterfactual(tools: Tools, /, run: Path, out: Path, with_report: bool, **given: Any) -> None:
    """Reproduce RUN with the model, then say what other policies and schedules would have taken.

    RUN is a trace of `tlt trace import`, a file or folder that an RL framework wrote, or a run folder or
    comparison of this project. The error of the reproduction comes first.
    """
    from tlt.sim.counterfactual.answer import counterfactual as answer
    from tlt.sim.counterfactual.observed_run import observe
    from tlt.sim.counterfactual.settings import replay_of
    from tlt.traces.common.settings import merge, settings_of
    from tlt.traces.importers.reading.items import Options
    from tlt.traces.importers.reading.texts import tokeniser
    from tlt.traces.results.counterfactual import OBSERVED_TRACE

    hardware = {name: given[name] for name in ("gpus", "tp") if given[name] is not None}
    settings = merge(
        settings_of(given["config"], given["assignments"]), {"hardware": hardware} if hardware else {}
    )
    options = Options(given["cap"], tokenise=tokeniser(given["tokenizer"]) if given["tokenizer"] else None)
    with _spinner(f"reading {run.name}") as say:
        observed = observe(run, given["phases"], options)
        replay = replay_of(
            observed, settings, out / OBSERVED_TRACE, names_of(given["policies"]), given["observed"]
        )
        answer(
            replay,
            out,
            given["draws"],
            given["price"],
            lambda policy, step: say(f"{policy}: " + ("errors" if step < 0 else f"step {step}")),
        )
    if with_report:
        tools.present(out)
    else:
        click.echo(out)


@contextmanager
def _spinner(description: str) -> Iterator[Callable[[str], None]]:
    """Say on stderr what is done; yields a function that changes what is said."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:  # in a pipe it would leave lines behind, and scripts read errors from there
        yield lambda _: None
        return
    with console.status(description) as status:
        yield status.update
