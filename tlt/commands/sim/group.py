"""`tlt sim`: run one policy, compare several on the same lengths, recommend one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tlt.commands.options import (
    EXISTING_FOLDER,
    FILE,
    HELP,
    WholeGroup,
    draws_option,
    executor_option,
    jobs_option,
    names_of,
    out_folder,
    policies_option,
    renamed,
    report_option,
)
from tlt.commands.output import echo_fields, present
from tlt.commands.progress import progress, stage
from tlt.commands.sim.borrow import borrow
from tlt.commands.sim.catalogue import gpus, models
from tlt.commands.sim.counterfactual import counterfactual
from tlt.commands.sim.drafter import drafter
from tlt.commands.sim.export import export
from tlt.commands.sim.given import claimed, settings_given, simulates
from tlt.commands.sim.kstar import kstar
from tlt.commands.sim.lists import policies as list_policies
from tlt.commands.sim.lists import schedules as list_schedules
from tlt.commands.sim.plan import PLAN_CHOICES, plan_options, refuse_alone, search
from tlt.commands.sim.sweep import sweep

with_policies = policies_option(
    "Policies on the same lengths, the baseline first: a preset, static:DRAFT, goodput:DRAFT+DRAFT. "
    "POLICY@SCHEDULE sets the rollout schedule too, NAME(FIELD=VALUE) a parameter; `tlt sim policies` and "
    "`tlt sim schedules` list them."
)


@click.group(cls=WholeGroup, context_settings=HELP)
def sim() -> None:
    """Simulate RL steps on a GPU cluster, driven by response lengths."""


@sim.command()
@simulates
@click.option("--policy", help="Replaces the policy of the configuration; `tlt sim policies` lists them.")
@report_option
def run(policy: str | None, with_report: bool, as_json: bool, **given: Any) -> None:
    """Simulate one policy and write a run folder."""
    from tlt.sim import studies
    from tlt.sim.config import resolve
    from tlt.sim.simulation import Simulation
    from tlt.sim.unused import refuse_unused
    from tlt.sim.workload import load_workload

    settings = settings_given(given)
    resolved = resolve(settings, policy)
    refuse_unused(settings, resolved)
    simulation = Simulation(resolved, load_workload(resolved.workload, resolved.run.seed))
    label = policy or studies.label_of(settings)
    out = claimed("run", given, settings, policy=label)
    studies.run(simulation, label, out, stage)
    present(out, with_report, as_json)


@sim.command()
@simulates
@with_policies
@report_option
@draws_option(99, "Draws of the step times within their error, by linear response; 0: none.")
def compare(policies: str | None, with_report: bool, as_json: bool, draws: int, **given: Any) -> None:
    """Simulate several policies on the same lengths: time, speedup with interval, idle share, tokens/s.

    Intervals cover the spread over steps and the error of the step times; bounds say how far schedules could
    go.

    An interrupted comparison goes on with the policies that are not finished.
    """
    from tlt.sim import studies
    from tlt.sim.policy_set import policy_set

    settings = settings_given(given)
    checked = policy_set(settings, names_of(policies))
    out = claimed("compare", given, settings)
    studies.compare(checked, out, draws, stage)
    present(out, with_report, as_json)


@sim.command()
@simulates
@with_policies
@draws_option(39, "Simulations under drawn step times; not with --gpus-budget.")
@plan_options
@executor_option
@jobs_option
def recommend(
    policies: str | None, as_json: bool, draws: int, gpus_budget: int | None, executor: Any, jobs: int | None,
    **given: Any,
) -> None:  # fmt: skip
    """Name the policy and the draft configuration by batch size, the gain with its interval, and what it
    may lose.

    With --gpus-budget the cluster is chosen as well: GPU, tensor parallelism, engines, schedule and policy,
    how sure the choice is, and what to measure next to be surer.
    """
    from tlt.sim import studies
    from tlt.sim.parallel.executors import executor as opened
    from tlt.sim.policy_set import policy_set

    settings, names = settings_given(given), names_of(policies)
    choices = {name: given[name] for name in PLAN_CHOICES}
    if gpus_budget is not None:
        out = claimed("recommend --gpus-budget", given, settings, gpus_budget=gpus_budget, **choices)
        with progress("searching", counting="simulations") as shown:
            search(settings, names, out, shown.step, gpus_budget=gpus_budget, executor=executor, jobs=jobs,
                   **choices)  # fmt: skip
        present(out, as_json=as_json)
        return
    refuse_alone(choices)
    checked = policy_set(settings, names)
    out = claimed("recommend", given, settings)
    with opened(executor, jobs or 1) as running:  # a process takes seconds to start
        studies.recommend(checked, out, draws, stage, running)
    present(out, as_json=as_json)


@sim.command("validate-training")
@click.argument("run_folder", type=EXISTING_FOLDER)
@click.option("--calibration", required=True, metavar="NAME_OR_FILE", help="Step times to simulate with.")
@out_folder()
@click.option(
    "--save-drift",
    type=FILE,
    metavar="NAME.json",
    help="Write the drift curve of all steps of one policy, for drafter.drift.",
)
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
    prediction = predict_training(run_folder, calibration, out)
    for sentence in sentences(prediction):
        click.echo(sentence)
    if curve is not None and save_drift is not None:
        write_json(save_drift, judged(curve, prediction))
        click.echo(f"{save_drift}: {curve.describe()}")
    click.echo(out)


@sim.command("fit-acceptance")
@click.argument("run_folder", type=EXISTING_FOLDER)
@click.option("--steps", "written", metavar="FIRST-LAST", help="RL steps to fit; default: all of the run.")
@click.option(
    "--out", "file", type=FILE, required=True, metavar="NAME.json", help="The law, for acceptance.law."
)
def fit_acceptance(run_folder: Path, written: str | None, file: Path) -> None:
    """Fit how acceptance differs between requests, positions and prompts, from the drafts of a run.

    RUN_FOLDER is a run, or a comparison of runs with the same drafter, live or simulated.
    """
    from tlt.sim.acceptance.fitted import fit_runs, steps_between
    from tlt.traces.runs.runfolder import write_json
    from tltsched.errors import InputError

    if file.suffix != ".json" or not file.parent.is_dir():
        raise InputError("--out", str(file), "NAME.json in a folder that exists", "choose another path")
    law = fit_runs(run_folder, file.stem, None if written is None else steps_between(written))
    write_json(file, law)
    click.echo(law.describe())
    click.echo(f"{file}: use it as --set acceptance.law={file}")


@sim.command()
def fields() -> None:
    """List every field of a configuration: name, default, meaning."""
    from tlt.sim.config import Config

    echo_fields(Config)


@sim.command()
@click.argument("name", required=False)
def calibrations(name: str | None) -> None:
    """List the shipped calibrations, or show NAME (or a calibration.json): origin, fit, errors, ranges."""
    from tlt.sim.steptimes.calibration import describe_calibration, load, shipped_names

    for each in [name] if name else shipped_names():
        click.echo(describe_calibration(load(each)))


sim.add_command(renamed(validate_training, "retrain"))
sim.add_command(sweep)
sim.add_command(list_policies)
sim.add_command(list_schedules)
sim.add_command(kstar)
sim.add_command(models)
sim.add_command(gpus)
sim.add_command(export)
sim.add_command(counterfactual)
sim.add_command(borrow)
sim.add_command(drafter)
