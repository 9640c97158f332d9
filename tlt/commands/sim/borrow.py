"""`tlt sim borrow`: step times out of AISimulate's tables, as a calibration."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tlt.commands.options import EXISTING_FILE, FILE, PATH, configured, numbers_of
from tlt.commands.progress import progress

if TYPE_CHECKING:
    from tlt.sim.borrowed.calibration import About
    from tlt.sim.borrowed.questions import Subject
    from tlt.sim.config import Config

SHARES = (0.1, 0.5, 0.95)  # of the response lengths, at which contexts are asked for
DRAFTS = "1,2,3,4,6,8"


@click.command()
@configured("TOML file; `tlt sim fields` lists what it may hold.")
@click.option("--python", type=PATH, required=True, help="Interpreter of an environment with aisimulate.")
@click.option("--model", metavar="NAME_OR_FOLDER", help="Default: the configuration of hardware.model.")
@click.option("--system", help="AISimulate's name of the GPU. Default: that of hardware.gpu.")
@click.option("--engine", type=click.Choice(("vllm", "sglang", "trtllm")), default="vllm", show_default=True)
@click.option("--head", type=EXISTING_FILE, help="config.json of an EAGLE-3 head. Default: one layer.")
@click.option("--ks", "drafts", default=DRAFTS, show_default=True, metavar="K,...", help="Chains to ask for.")
@click.option("--own", type=PATH, help="Points of your own that correct it: a calibration, or a live run.")
@click.option("--out", type=FILE, required=True, help="The calibration, for cost.source.")
def borrow(
    config: Path | None,
    assignments: tuple[str, ...],
    python: Path,
    model: str | None,
    system: str | None,
    engine: str,
    head: Path | None,
    drafts: str,
    own: Path | None,
    out: Path,
) -> None:
    """Ask AISimulate for the engine steps that this configuration needs, and write them as a calibration.

    It runs in an environment of its own, which --python names; without one, the error says how to make it.
    A log corrects the result as any other calibration: `tlt sim counterfactual` fits it to the log's seconds.
    """
    from tlt.sim.borrowed.aisimulate import ask, system_of
    from tlt.sim.borrowed.calibration import borrowed
    from tlt.sim.borrowed.correct import read_own
    from tlt.sim.borrowed.questions import grid
    from tlt.sim.config import resolve
    from tlt.sim.steptimes.calibration import describe_calibration
    from tlt.traces.common.settings import settings_of
    from tlt.traces.runs.runfolder import write_json

    resolved = resolve(settings_of(config, assignments), "none")
    _refuse_spread(resolved)
    points = read_own(own) if own else ()
    about = _about(resolved, tuple(numbers_of("--ks", drafts, int)), out.stem)
    questions = grid(about.max_running, _contexts_tokens(resolved), about.ks)
    named = system_of(about.gpu.name, system)
    with tempfile.TemporaryDirectory() as made:
        subject = _subject(resolved, model, named, engine, head, Path(made))
        with progress(f"asking AISimulate for {len(questions)} engine steps"):
            answers = ask(python.absolute(), subject, questions)
    calibration = borrowed(answers, about, points)
    write_json(out, calibration)
    click.echo(describe_calibration(calibration))
    click.echo(f"{out}: use it as --set cost.source={out}")


def _refuse_spread(config: Config) -> None:
    from tltsched.errors import InputError

    hardware = config.hardware
    for name in ("pp", "attention_dp"):
        if getattr(hardware, name) > 1:
            fix = "set it to 1, or take a roofline: cost.source = 'roofline'"
            raise InputError(
                f"hardware.{name}", getattr(hardware, name), "1 where step times are borrowed", fix
            )


def _about(config: Config, ks: tuple[int, ...], name: str) -> About:
    from tlt.sim.borrowed.calibration import About
    from tlt.traces.catalogue.gpus import gpu_spec
    from tlt.traces.catalogue.models import model_shape

    return About(
        name=name, model=config.hardware.model, shape=model_shape(config.hardware.model),
        gpu=gpu_spec(config.hardware.gpu), date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        max_running=config.engine.max_running, ks=ks, assumed=config.cost.roofline,
    )  # fmt: skip


def _contexts_tokens(config: Config) -> list[int]:
    """Return the contexts at which responses of the workload are short, half-way and nearly done."""
    from tlt.sim.workload import load_workload

    rows = load_workload(config.workload, config.run.seed).rows
    prompt = float(rows["prompt_tokens"].mean())
    return [round(prompt + tokens) for tokens in rows["response_tokens"].quantile(list(SHARES))]


def _subject(
    config: Config, model: str | None, system: str, engine: str, head: Path | None, place: Path
) -> Subject:
    """Return whose engine steps are asked for; a configuration that ships is written into `place`."""
    from tlt.realrun.models.drafter import head_config
    from tlt.realrun.models.target import config_json
    from tlt.sim.borrowed.questions import Subject
    from tlt.traces.catalogue.models import model_shape
    from tlt.traces.runs.runfolder import read_struct, write_json

    hardware = config.hardware
    shape = model_shape(hardware.model)
    written = config_json(shape, "bfloat16")
    drafter = (
        read_struct(head, dict[str, Any]) if head
        else head_config(written, config.cost.roofline.draft_vocab)
    )  # fmt: skip
    if model is None:
        write_json(place / "config.json", written)
    return Subject(
        model=model or str(place), system=system, engine=engine, tp=hardware.tp,
        experts_parallel=hardware.ep if shape.experts else None,
        draft_config=drafter,
    )  # fmt: skip
