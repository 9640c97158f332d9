"""`tlt real`: prepare a model, calibrate a live engine, replay recorded lengths on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tlt.commands.options import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    HELP,
    PATH,
    WholeGroup,
    calibration_option,
    configured,
    names_of,
    out_folder,
    policies_option,
    report_option,
)
from tlt.commands.output import echo_fields, present, step_times_of
from tlt.commands.progress import progress
from tlt.commands.real.check_export import check_export
from tlt.commands.real.drafter import drafter
from tlt.commands.real.plugin import collect, step_times
from tlt.commands.real.warm_up import warm_up
from tltsched.errors import InputError

if TYPE_CHECKING:
    from tlt.realrun.config import RealConfig
    from tlt.traces.results.calibration_points import MeasuredPoints

POLICIES = "none,static:2,static:4"
TRAINED_POLICIES = "none,static:4/frozen,tlt_chains/online"
MODEL, HEAD, DRAFT = "model", "eagle3", "draft"  # what `tlt real model` leaves in its folder


real_config = configured("TOML file; `tlt real fields` lists what it may hold.")
train_config = configured("TOML file; `tlt real train-fields` lists what it may hold.")


@click.group(cls=WholeGroup, context_settings=HELP)
def real() -> None:
    """Run the same scheduler on a live engine (vLLM): calibrate it, replay lengths on it."""


def _resolve(config: Path | None, assignments: tuple[str, ...]) -> RealConfig:
    from tlt.realrun.config import RealConfig
    from tlt.traces.common.settings import convert, settings_of

    return convert(settings_of(config, assignments), RealConfig, "tlt real fields")


@real.command()
@click.argument("name")
@out_folder("Folder.")
@click.option("--shape-only", is_flag=True, help="No weights: the engine fills them at random (timing).")
@click.option("--vocab", type=click.IntRange(1), help="Another vocabulary size (tiny only).")
@click.option("--draft-vocab", type=click.IntRange(1), default=32_000, show_default=True,
              help="Vocabulary of the EAGLE-3 head, at most that of the model.")  # fmt: skip
@click.option("--draft-model", is_flag=True, help="Also a draft model: the model with noise in its weights.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of random weights.")
def model(
    name: str, out: Path, shape_only: bool, vocab: int | None, draft_vocab: int, draft_model: bool, seed: int
) -> None:
    """Prepare the model NAME (a named shape) and an EAGLE-3 head of random weights for it.

    NAME may also be the path of a published config.json: its shape is prepared without weights.
    """
    from tlt.realrun.models.drafter import make_draft_model, make_head
    from tlt.realrun.models.target import prepare_model
    from tlt.realrun.prompts import vocabulary

    out.mkdir(parents=True, exist_ok=True)
    prepare_model(name, out / MODEL, shape_only=shape_only, vocab=vocab, seed=seed, report=click.echo)
    make_head(out / MODEL, out / HEAD, min(draft_vocab, vocabulary(out / MODEL)), seed, click.echo)
    if draft_model:
        make_draft_model(out / MODEL, out / DRAFT, seed=seed, report=click.echo)
    settings = [f"model.folder={out / MODEL}", f"model.name={name}", f"drafter.folder={out / HEAD}"]
    settings += ["model.random_weights=true"] if shape_only or name.endswith(".json") else []
    click.echo("use it with: " + " ".join(f"--set {setting}" for setting in settings))


@real.command()
@real_config
@click.option(
    "--out", type=FILE, required=True, help="The calibration; the points go beside it, as NAME.points.json."
)
@click.option("--compare", "old", help="A calibration of before, by name or path: say what changed.")
@click.option("--refit", type=EXISTING_FILE, help="NAME.points.json: fit it again, as the law now is.")
def calibrate(
    config: Path | None, assignments: tuple[str, ...], out: Path, old: str | None, refit: Path | None
) -> None:
    """Measure step times of the engine and fit them; an interrupted calibration goes on where it was.

    With --compare and an OUT that is there already, that one is compared and nothing is measured. With
    --refit no engine is started: the points of an earlier calibration are fitted anew.
    """
    from tlt.sim.steptimes.calibration import load
    from tlt.sim.steptimes.compare import compare
    from tlt.sim.steptimes.fit_live import fit_points
    from tlt.traces.runs.runfolder import write_json

    before = load(old) if old else None
    if before is not None and out.is_file() and refit is None:
        click.echo(compare(before, load(str(out))).text())
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    if refit is None:
        measured = _measured(_resolve(config, assignments), out)
    else:
        measured = _points_of(refit, config, assignments)
    fitted = fit_points(measured)
    write_json(out, fitted)
    click.echo(out)
    if before is not None:
        click.echo(compare(before, fitted).text())


def _measured(config: RealConfig, out: Path) -> MeasuredPoints:
    """Measure the points of a calibration that will be `out`, with progress on the terminal."""
    from tlt.realrun.calibrate.sweep import calibrate as measure
    from tlt.realrun.workers.executor import WorkerError

    with progress("starting", 1.0) as shown:
        try:
            return measure(
                config,
                out.with_suffix(".points.json"),
                lambda done, total, what: shown.reach(done / total if total else 0.0, what),
            )
        except WorkerError as error:
            raise click.ClickException(str(error)) from None


def _points_of(path: Path, config: Path | None, assignments: tuple[str, ...]) -> MeasuredPoints:
    """Read the points of an earlier calibration; raises InputError for another file or settings beside it."""
    from tlt.traces.results.calibration_points import MeasuredPoints
    from tlt.traces.runs.runfolder import read_struct

    if config is not None or assignments:
        given = "--config" if config is not None else f"--set {assignments[0]}"
        allowed = "none: the points hold the settings that they were measured with"
        raise InputError("settings beside --refit", given, allowed, "leave it out")
    return read_struct(path, MeasuredPoints)


@real.command()
@real_config
@policies_option(
    "none, static:K, tlt_chains, goodput or goodput:off+1+2; the baseline first.",
    default=POLICIES,
    show_default=True,
)
@calibration_option
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Workers as processes here, or on the nodes of a Ray cluster (RAY_ADDRESS, else a new one).",
)
@out_folder("Folder.")
@report_option
def replay(
    config: Path | None, assignments: tuple[str, ...], policies: str, calibration: Path | None,
    executor: str, out: Path, with_report: bool,
) -> None:  # fmt: skip
    """Generate the same lengths under each policy, policies interleaved, and compare them.

    An interrupted replay goes on with the rollouts that are not finished.
    """
    from tlt.realrun.replay.replay import replay as run_all
    from tlt.realrun.workers.executor import WorkerError

    resolved = _resolve(config, assignments)
    names = names_of(policies) or []
    with progress("starting", len(names) * resolved.workload.rollouts + 1) as shown:
        try:
            run_all(resolved, names, out, shown.step, step_times_of(calibration), on_ray=executor == "ray")
        except WorkerError as error:
            raise click.ClickException(str(error)) from None
    present(out, with_report)


@real.command()
@train_config
@policies_option(
    "The baseline first; online policies train the drafter on idle workers.",
    "POLICY[/online|/frozen],...",
    default=TRAINED_POLICIES,
    show_default=True,
)
@calibration_option
@out_folder("Folder.")
def train(
    config: Path | None, assignments: tuple[str, ...], policies: str, calibration: Path | None,
    out: Path,
) -> None:  # fmt: skip
    """Train a policy by GRPO under each policy, from the same weights and seeds; `tlt report train` compares.

    A run that was stopped goes on from its last checkpoint.
    """
    from tlt.realrun.training.train import train as run_all
    from tlt.realrun.training_config import TrainConfig
    from tlt.realrun.workers.executor import WorkerError
    from tlt.traces.common.settings import convert, settings_of

    resolved = convert(settings_of(config, assignments), TrainConfig, "tlt real train-fields")
    names = names_of(policies) or []
    with progress("starting", len(names) * (resolved.steps + 1)) as shown:
        try:
            run_all(resolved, names, out, shown.step, step_times_of(calibration))
        except WorkerError as error:
            raise click.ClickException(str(error)) from None
    click.echo(out)


@real.command("export-policy")
@click.argument("run_folder", type=EXISTING_FOLDER)
@click.option("--model", "model_folder", type=EXISTING_FOLDER,
              help="The model that the run started from, if it has moved.")  # fmt: skip
@click.option("--out", type=PATH, required=True, help="New folder of the model.")
def export_policy(run_folder: Path, model_folder: Path | None, out: Path) -> None:
    """Write the policy that RUN_FOLDER trained as a model folder that engines and transformers read.

    RUN_FOLDER is that of one policy of `tlt real train`; its newest checkpoint is taken.
    """
    from tlt.realrun.training.export_policy import export_policy as write

    click.echo(write(run_folder, out, click.echo, model_folder))


real.add_command(check_export)
real.add_command(warm_up)
real.add_command(drafter)
real.add_command(collect)
real.add_command(step_times)


@real.command("train-fields")
def train_fields() -> None:
    """List every field of a training configuration: name, default, meaning."""
    from tlt.realrun.training_config import TrainConfig

    echo_fields(TrainConfig)


@real.command()
def fields() -> None:
    """List every field of a configuration: name, default, meaning."""
    from tlt.realrun.config import RealConfig

    echo_fields(RealConfig)
