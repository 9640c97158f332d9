"""`tlt real`: prepare a model, calibrate a live engine, replay recorded lengths on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from tlt.commands.real_check_export import check_export
from tlt.commands.real_drafter import drafter
from tlt.commands.real_warm_up import warm_up

if TYPE_CHECKING:
    import msgspec

    from tlt.realrun.config import RealConfig
    from tlt.traces.results.calibration_points import MeasuredPoints
    from tltsched.draft_config import DraftConfig
    from tltsched.step_times import StepTimeTable

POLICIES = "none,static:2,static:4"
MODEL, HEAD, DRAFT = "model", "eagle3", "draft"  # what `tlt real model` leaves in its folder


class Tools(Protocol):
    """What the root command lends of other packages."""

    def present(self, folder: Path) -> None:
        """Write and print the report of a folder."""

    def fit_points(self, measured: MeasuredPoints) -> msgspec.Struct:
        """Return the calibration of measured points."""

    def step_times(
        self, calibration: Path, policies: tuple[DraftConfig, ...], max_requests: int
    ) -> StepTimeTable:
        """Return the calibrated times of policies with vLLM's drafter kept in step."""


_config = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file; `tlt real fields` lists what it may hold.",
)
_assignments = click.option(
    "--set", "assignments", multiple=True, metavar="A.B=VALUE", help="Set one field; may be repeated."
)


@click.group()
def real() -> None:
    """Run the same scheduler on a live engine (vLLM): calibrate it, replay lengths on it."""


@contextmanager
def _bar(total: float) -> Iterator[Callable[[float, str], None]]:
    """Show a bar with time left on stderr; yields a function of (done, what)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # In a pipe a bar leaves blank lines behind, and scripts read errors from there.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda done, what: progress.update(task, completed=done, description=what)


def _resolve(config: Path | None, assignments: tuple[str, ...]) -> RealConfig:
    from tlt.realrun.config import RealConfig
    from tlt.traces.common.settings import convert, settings_of

    return convert(settings_of(config, assignments), RealConfig, "tlt real fields")


def _names(policies: str) -> list[str]:
    return [policy.strip() for policy in policies.split(",") if policy.strip()]


def _step_times(
    tools: Tools, calibration: Path | None
) -> Callable[[tuple[DraftConfig, ...], int], Any] | None:
    """Return what gives step times by policies and largest batch; None without a calibration."""
    if calibration is None:
        return None
    return lambda policies, most: tools.step_times(calibration, policies, most)


@real.command()
@click.argument("name")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder.")
@click.option("--shape-only", is_flag=True, help="No weights: the engine fills them at random (timing).")
@click.option("--vocab", type=click.IntRange(1), help="Another vocabulary size (tiny only).")
@click.option("--draft-vocab", type=click.IntRange(1), default=32_000, show_default=True,
              help="Vocabulary of the EAGLE-3 head, at most that of the model.")  # fmt: skip
@click.option("--draft-model", is_flag=True, help="Also a draft model: the model with noise in its weights.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of random weights.")
def model(
    name: str, out: Path, shape_only: bool, vocab: int | None, draft_vocab: int, draft_model: bool, seed: int
) -> None:
    """Prepare the model NAME (a named shape) and an EAGLE-3 head of random weights for it."""
    from tlt.realrun.models import make_draft_model, make_head, prepare_model
    from tlt.realrun.prompts import vocabulary

    out.mkdir(parents=True, exist_ok=True)
    prepare_model(name, out / MODEL, shape_only=shape_only, vocab=vocab, seed=seed, report=click.echo)
    make_head(out / MODEL, out / HEAD, min(draft_vocab, vocabulary(out / MODEL)), seed, click.echo)
    if draft_model:
        make_draft_model(out / MODEL, out / DRAFT, seed=seed, report=click.echo)
    settings = [f"model.folder={out / MODEL}", f"model.name={name}", f"drafter.folder={out / HEAD}"]
    settings += ["model.random_weights=true"] if shape_only else []
    click.echo("use it with: " + " ".join(f"--set {setting}" for setting in settings))


@real.command()
@_config
@_assignments
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True,
              help="The calibration; the points go beside it, as NAME.points.json.")  # fmt: skip
@click.pass_obj
def calibrate(tools: Tools, config: Path | None, assignments: tuple[str, ...], out: Path) -> None:
    """Measure step times of the engine and fit them; an interrupted calibration goes on where it was."""
    from tlt.realrun.calibrate.sweep import calibrate as measure
    from tlt.traces.runs.runfolder import write_json

    resolved = _resolve(config, assignments)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _bar(1.0) as show:
        measured = measure(
            resolved,
            out.with_suffix(".points.json"),
            lambda done, total, what: show(done / total if total else 0.0, what),
        )
    write_json(out, tools.fit_points(measured))
    click.echo(out)


@real.command()
@_config
@_assignments
@click.option("--policies", default=POLICIES, show_default=True, metavar="POLICY,...",
              help="none, static:K, tlt_chains, goodput or goodput:off+1+2; the baseline first.")  # fmt: skip
@click.option("--calibration", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Step times that goodput predicts with, made before.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder.")
@click.option("--report/--no-report", "with_report", default=True, help="Write report and pictures.")
@click.pass_obj
def replay(
    tools: Tools, config: Path | None, assignments: tuple[str, ...], policies: str, calibration: Path | None,
    out: Path, with_report: bool,
) -> None:  # fmt: skip
    """Generate the same lengths under each policy, policies interleaved, and compare them.

    An interrupted replay goes on with the rollouts that are not finished.
    """
    from tlt.realrun.replay.replay import replay as run_all
    from tlt.realrun.workers.local import WorkerError

    resolved = _resolve(config, assignments)
    names, times = _names(policies), _step_times(tools, calibration)
    done = 0
    with _bar(len(names) * resolved.workload.rollouts + 1) as show:

        def advance(what: str) -> None:
            nonlocal done
            done += 1
            show(done, what)

        try:
            run_all(resolved, names, out, advance, times)
        except WorkerError as error:
            raise click.ClickException(str(error)) from None
    if with_report:
        tools.present(out)
    else:
        click.echo(out)


@real.command()
@_config
@_assignments
@click.option("--policies", default="none,static:4/frozen,tlt_chains/online", show_default=True,
              metavar="POLICY[/online|/frozen],...",
              help="The baseline first; online policies train the drafter on idle workers.")  # fmt: skip
@click.option("--calibration", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Step times that goodput predicts with, made before.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder.")
@click.pass_obj
def train(
    tools: Tools, config: Path | None, assignments: tuple[str, ...], policies: str, calibration: Path | None,
    out: Path,
) -> None:  # fmt: skip
    """Train a policy by GRPO under each policy, from the same weights and seeds; `tlt report train` compares.

    A run that was stopped goes on from its last checkpoint.
    """
    from tlt.realrun.training.config import TrainConfig
    from tlt.realrun.training.train import train as run_all
    from tlt.realrun.workers.local import WorkerError
    from tlt.traces.common.settings import convert, settings_of

    resolved = convert(settings_of(config, assignments), TrainConfig, "tlt real train-fields")
    names = _names(policies)
    done = 0
    with _bar(len(names) * (resolved.steps + 1)) as show:

        def advance(what: str) -> None:
            nonlocal done
            show(done, what)
            done += 1

        try:
            run_all(resolved, names, out, advance, _step_times(tools, calibration))
        except WorkerError as error:
            raise click.ClickException(str(error)) from None
    click.echo(out)


real.add_command(check_export)
real.add_command(warm_up)
real.add_command(drafter)


@real.command("train-fields")
def train_fields() -> None:
    """List every field of a training configuration: name, default, meaning."""
    from tlt.realrun.training.config import TrainConfig
    from tlt.traces.common.settings import fields as all_fields

    for name, default, meaning in all_fields(TrainConfig):
        click.echo(f"{name} = {default}\n    {meaning}")


@real.command()
def fields() -> None:
    """List every field of a configuration: name, default, meaning."""
    from tlt.realrun.config import RealConfig
    from tlt.traces.common.settings import fields as all_fields

    for name, default, meaning in all_fields(RealConfig):
        click.echo(f"{name} = {default}\n    {meaning}")
