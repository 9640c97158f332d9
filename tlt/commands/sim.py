"""`tlt sim`: run one policy, compare several on the same lengths, recommend one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from tlt.commands.sim_counterfactual import counterfactual
from tlt.commands.sim_export import export
from tlt.commands.sim_kstar import kstar, names_of
from tlt.commands.sim_plan import plan_options, refuse_alone, search

if TYPE_CHECKING:
    from tlt.sim.policy_set import PolicySet


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
_policies = click.option(
    "--policies",
    metavar="POLICY,...",
    help="Policies on the same lengths, the baseline first: a preset, static:DRAFT, goodput:DRAFT+DRAFT. "
    "POLICY@SCHEDULE sets the rollout schedule too.",
)
_report = click.option("--report/--no-report", "with_report", default=True, help="Write report and pictures.")


@click.group()
def sim() -> None:
    """Simulate RL steps on a GPU cluster, driven by response lengths."""


@contextmanager
def _bar(description: str, total: int | None) -> Iterator[Callable[[str], None]]:
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


def _run_all(policies: PolicySet, out: Path) -> None:
    """Simulate every policy into a comparison folder."""
    from tlt.sim.comparison import compare

    steps = policies.baseline.config.workload.steps
    with _bar("simulating", steps * len(policies.names)) as advance:
        compare(policies, out, lambda policy, _: advance(policy))


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
    from tlt.sim.comparison import run_policy
    from tlt.sim.config import resolve
    from tlt.sim.simulation import Simulation
    from tlt.sim.workload import load_workload
    from tlt.traces.common.settings import settings_of

    settings = settings_of(config, assignments)
    resolved = resolve(settings, policy)
    named = settings.get("policy", "tlt")
    label = policy or (named if isinstance(named, str) else named["kind"])
    simulation = Simulation(resolved, load_workload(resolved.workload, resolved.run.seed))
    with _bar(label, resolved.workload.steps) as advance:
        run_policy(simulation, label, out, lambda policy, _: advance(policy))
    if with_report:
        tools.present(out)
    else:
        click.echo(out)


@sim.command()
@_config
@_assignments
@_policies
@_out
@_report
@click.option("--draws", type=click.IntRange(0, 1000), default=99, show_default=True,
              help="Draws of the step times within their error, by linear response; 0: none.")  # fmt: skip
@click.pass_obj
def compare(
    tools: Tools,
    config: Path | None,
    assignments: tuple[str, ...],
    policies: str | None,
    out: Path,
    with_report: bool,
    draws: int,
) -> None:
    """Simulate several policies on the same lengths: time, speedup with interval, idle share, tokens/s.

    Intervals cover the spread over steps and the error of the step times; bounds say how far any schedule
    could go.

    An interrupted comparison goes on with the policies that are not finished.
    """
    from tlt.sim.advise.bounds import write_bounds
    from tlt.sim.advise.sensitivity import write_cost_draws
    from tlt.sim.policy_set import policy_set
    from tlt.traces.common.settings import settings_of

    compared = policy_set(settings_of(config, assignments), names_of(policies))
    _run_all(compared, out)
    write_bounds(compared.baseline, out)
    if draws:
        with _bar("probing step times", len(compared.names)) as advance:
            write_cost_draws(compared, out, draws, advance)
    if with_report:
        tools.present(out)
    else:
        click.echo(out)


@sim.command()
@_config
@_assignments
@_policies
@_out
@click.option("--draws", type=click.IntRange(0, 1000), default=39, show_default=True,
              help="Simulations under drawn step times; not with --gpus-budget.")  # fmt: skip
@plan_options
@click.pass_obj
def recommend(
    tools: Tools,
    /,
    config: Path | None,
    assignments: tuple[str, ...],
    policies: str | None,
    out: Path,
    draws: int,
    gpus_budget: int | None,
    **choices: Any,
) -> None:
    """Name the policy and the policy by batch size, the gain with its interval, and whether it could flip.

    With --gpus-budget the cluster is chosen as well: GPU, tensor parallelism, engines, schedule and policy,
    how sure the choice is, and what to measure next to be surer.
    """
    from tlt.sim.advise.advice import advise, write_advice
    from tlt.sim.advise.bounds import write_bounds
    from tlt.sim.advise.sensitivity import simulate_draws
    from tlt.sim.policy_set import policy_set
    from tlt.traces.common.seeds import ADVICE, generator
    from tlt.traces.common.settings import settings_of

    settings, names = settings_of(config, assignments), names_of(policies)
    if gpus_budget is not None:
        with _bar("searching", None) as advance:
            search(settings, names, out, advance, gpus_budget=gpus_budget, **choices)
        tools.present(out)
        return
    refuse_alone(choices)
    compared = policy_set(settings, names)
    _run_all(compared, out)
    with _bar("drawing step times", draws + 1) as advance:
        drawn = simulate_draws(compared, draws, lambda _: advance("drawing step times"))
    rng = generator(compared.baseline.config.run.seed, ADVICE)
    write_advice(out, advise(compared.baseline, rng), drawn)
    write_bounds(compared.baseline, out)
    tools.present(out)


@sim.command("validate-training")
@click.argument("run_folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--calibration", required=True, metavar="NAME_OR_FILE", help="Step times to simulate with.")
@_out
@click.option(
    "--save-drift", type=click.Path(dir_okay=False, path_type=Path), metavar="NAME.json",
    help="Write the drift curve of all steps of one policy, for drafter.drift.",
)  # fmt: skip
def validate_training(run_folder: Path, calibration: str, out: Path, save_drift: Path | None) -> None:
    """Fit a measured training run on the first half of its steps, and predict the second half.

    RUN_FOLDER is what `tlt real train` wrote: a comparison, or the run folder of one policy.
    """
    from tlt.sim.validate.training.predict import drift_curve, judged, predict_training
    from tlt.traces.results.predicted_training import sentences
    from tlt.traces.runs.runfolder import write_json
    from tltsched.errors import InputError

    curve = None
    if save_drift is not None:
        if save_drift.suffix != ".json" or not save_drift.parent.is_dir():
            raise InputError(
                "--save-drift", str(save_drift), "NAME.json in a folder that exists", "choose another path"
            )
        curve = drift_curve(run_folder, save_drift.stem)
    told = predict_training(run_folder, calibration, out)
    for sentence in sentences(told):
        click.echo(sentence)
    if curve is not None and save_drift is not None:
        write_json(save_drift, judged(curve, told))
        click.echo(f"{save_drift}: {curve.describe()}")
    click.echo(out)


@sim.command()
def fields() -> None:
    """List every field of a configuration: name, default, meaning."""
    from tlt.sim.config import Config
    from tlt.traces.common.settings import fields as all_fields

    for name, default, meaning in all_fields(Config):
        click.echo(f"{name} = {default}\n    {meaning}")


@sim.command()
@click.argument("name", required=False)
def calibrations(name: str | None) -> None:
    """List the shipped calibrations, or show NAME (or a calibration.json): origin, fit, errors, ranges."""
    from tlt.sim.steptimes.calibration import describe_calibration, load, shipped_names

    for each in [name] if name else shipped_names():
        click.echo(describe_calibration(load(each)))


sim.add_command(kstar)
sim.add_command(export)
sim.add_command(counterfactual)
