"""`tlt sim`: run one policy, compare several on the same lengths, recommend one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click

TREE_ARMS = "none,static:10_8_16,tlt_released,tlt,goodput_trees"
CHAIN_ARMS = "none,static:2,static:4,tlt_chains,goodput"


class Tools(Protocol):
    """What the root command lends of other packages."""

    def present(self, folder: Path) -> None:
        """Write and print the report of a folder."""


_config = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file; `tlt sim fields` lists what it may hold.",
)
_assignments = click.option(
    "--set", "assignments", multiple=True, metavar="A.B=VALUE", help="Set one field; may be repeated."
)
_out = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the results."
)
_arms = click.option(
    "--arms",
    metavar="POLICY,...",
    help="Policies on the same lengths, the baseline first: a preset, static:ARM, goodput:ARM+ARM.",
)
_report = click.option("--report/--no-report", "with_report", default=True, help="Write report and pictures.")


@click.group()
def sim() -> None:
    """Simulate RL steps on a GPU cluster, driven by response lengths."""


@contextmanager
def _bar(description: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar with time left on stderr; yields a function that advances it by one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # In a pipe a bar leaves blank lines behind, and scripts read errors from there.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=total)

        def advance(text: str) -> None:
            progress.update(task, advance=1, description=text)

        yield advance


def _arm_names(text: str | None, settings: dict[str, Any]) -> list[str]:
    """Return the arms that the user named, or those that suit the acceptance law."""
    from sim.config import resolve

    if text is not None:
        return [arm.strip() for arm in text.split(",") if arm.strip()]
    trees = resolve(settings, "none").acceptance.kind == "published_tree"
    return (TREE_ARMS if trees else CHAIN_ARMS).split(",")


@sim.command()
@_config
@_assignments
@click.option("--policy", help="Replaces the policy of the configuration.")
@_out
@_report
@click.pass_obj
def run(
    tools: Tools,
    config: Path | None,
    assignments: tuple[str, ...],
    policy: str | None,
    out: Path,
    with_report: bool,
) -> None:
    """Simulate one policy and write a run folder."""
    from sim.comparison import run_arm
    from sim.config import resolve
    from sim.workload import load_workload
    from traces.settings import settings_of

    settings = settings_of(config, assignments)
    resolved = resolve(settings, policy)
    named = settings.get("policy", "tlt")
    label = policy or (named if isinstance(named, str) else named["kind"])
    trace = load_workload(resolved.workload, resolved.run.seed)
    with _bar(label, resolved.workload.steps) as advance:
        run_arm(resolved, trace, label, out, lambda arm, _: advance(arm))
    if with_report:
        tools.present(out)
    else:
        click.echo(out)


@sim.command()
@_config
@_assignments
@_arms
@_out
@_report
@click.pass_obj
def compare(
    tools: Tools,
    config: Path | None,
    assignments: tuple[str, ...],
    arms: str | None,
    out: Path,
    with_report: bool,
) -> None:
    """Simulate several policies on the same lengths: time, speedup with interval, idle share, tokens/s.

    An interrupted comparison goes on with the arms that are not finished.
    """
    from sim.comparison import compare as run_all
    from sim.config import resolve
    from traces.settings import settings_of

    settings = settings_of(config, assignments)
    names = _arm_names(arms, settings)
    steps = resolve(settings, "none").workload.steps
    with _bar("simulating", steps * len(names)) as advance:
        run_all(settings, names, out, lambda arm, _: advance(arm))
    if with_report:
        tools.present(out)
    else:
        click.echo(out)


@sim.command()
@_config
@_assignments
@_arms
@_out
@click.option("--draws", type=click.IntRange(0, 1000), default=39, show_default=True,
              help="Simulations under step times drawn within their error.")  # fmt: skip
@click.pass_obj
def recommend(
    tools: Tools,
    config: Path | None,
    assignments: tuple[str, ...],
    arms: str | None,
    out: Path,
    draws: int,
) -> None:
    """Name the policy and the arm by batch size, the gain with its interval, and whether it could flip."""
    import numpy as np

    from sim.advice import advise, draw_costs, write_advice
    from sim.comparison import compare as run_all
    from sim.config import resolve
    from sim.simulation import Simulation
    from traces.settings import settings_of

    settings = settings_of(config, assignments)
    names = _arm_names(arms, settings)
    baseline = resolve(settings, names[0])
    with _bar("simulating", baseline.workload.steps * len(names)) as advance:
        trace = run_all(settings, names, out, lambda arm, _: advance(arm))
    with _bar("drawing step times", draws + 1) as advance:
        drawn = draw_costs(settings, names, trace, draws, lambda _: advance("drawing step times"))
    rng = np.random.default_rng(np.random.SeedSequence(baseline.run.seed, spawn_key=(3,)))
    write_advice(out, advise(Simulation(baseline, trace), rng), drawn)
    tools.present(out)


@sim.command("retrain")
@click.argument("run_folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--calibration", required=True, metavar="NAME_OR_FILE", help="Step times to simulate with.")
@_out
@click.option(
    "--save-drift", type=click.Path(dir_okay=False, path_type=Path), metavar="NAME.json",
    help="Write the drift curve of all steps of one arm, for drafter.drift.",
)  # fmt: skip
def retrain_command(run_folder: Path, calibration: str, out: Path, save_drift: Path | None) -> None:
    """Fit a measured training run on the first half of its steps, and predict the second half.

    RUN_FOLDER is what `tlt real train` wrote: a comparison, or the run folder of one arm.
    """
    from sim.retrain import drift_curve, judged, retrain
    from tltsched.errors import InputError
    from traces.retrain import sentences
    from traces.runfolder import write_json

    curve = None
    if save_drift is not None:
        if save_drift.suffix != ".json" or not save_drift.parent.is_dir():
            raise InputError(
                "--save-drift", str(save_drift), "NAME.json in a folder that exists", "choose another path"
            )
        curve = drift_curve(run_folder, save_drift.stem)
    told = retrain(run_folder, calibration, out)
    for sentence in sentences(told):
        click.echo(sentence)
    if curve is not None and save_drift is not None:
        write_json(save_drift, judged(curve, told))
        click.echo(f"{save_drift}: {curve.describe()}")
    click.echo(out)


@sim.command()
def fields() -> None:
    """List every field of a configuration: name, default, meaning."""
    from sim.config import Config
    from traces.settings import fields as all_fields

    for name, default, meaning in all_fields(Config):
        click.echo(f"{name} = {default}\n    {meaning}")


@sim.command()
@click.argument("name", required=False)
def calibrations(name: str | None) -> None:
    """List the shipped calibrations, or show NAME (or a calibration.json): origin, fit, errors, ranges."""
    from sim.calibration import describe_calibration, load, shipped_names

    for each in [name] if name else shipped_names():
        click.echo(describe_calibration(load(each)))
