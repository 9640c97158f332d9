"""`tlt real drafter`: make a head before RL, take one out of a run, measure one. Commands load torch."""

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
    configured,
    numbers_of,
)

if TYPE_CHECKING:
    from tlt.realrun.training.head.held_out import Measured
    from tlt.realrun.training_config import TrainConfig

train_config = configured("Of a training run; `tlt real train-fields` lists what it may hold.")


@click.group(cls=WholeGroup, context_settings=HELP)
def drafter() -> None:
    """Drafter heads: warm up before RL, export from a run, measure on held-out prompts."""


def _resolve(config: Path | None, assignments: tuple[str, ...]) -> TrainConfig:
    from tlt.realrun.training_config import TrainConfig
    from tlt.traces.common.settings import convert, settings_of

    return convert(settings_of(config, assignments), TrainConfig, "tlt real train-fields")


@drafter.command("warm-up")
@train_config
@click.option("--out", type=PATH, required=True, help="New folder of the head.")
@click.option("--responses", type=click.IntRange(2), default=512, show_default=True,
              help="Responses of the policy to learn from.")  # fmt: skip
@click.option("--tokens", type=click.IntRange(1), default=500_000, show_default=True,
              help="Response tokens trained on, repeats counted.")  # fmt: skip
@click.option("--draft-vocab", type=click.IntRange(1), default=8_192, show_default=True,
              help="Tokens that the head can draft: the most frequent ones.")  # fmt: skip
def warm_up(
    config: Path | None, assignments: tuple[str, ...], out: Path, responses: int, tokens: int,
    draft_vocab: int,
) -> None:  # fmt: skip
    """Train a new EAGLE-3 head on the policy's own responses to problems that RL does not use."""
    from tlt.realrun.engine.factory import MAKE_ENGINE
    from tlt.realrun.training.head.warm_up import warm_up_head

    warm_up_head(
        _resolve(config, assignments), out, responses=responses, tokens=tokens, draft_vocab=draft_vocab,
        factory=MAKE_ENGINE, report=click.echo,
    )  # fmt: skip
    click.echo(out)


@drafter.command()
@click.argument("weights", type=EXISTING_FILE)
@click.option("--model", "model_folder", type=EXISTING_FOLDER,
              required=True, help="The policy's folder.")  # fmt: skip
@click.option("--out", type=PATH, required=True, help="New folder.")
def export(weights: Path, model_folder: Path, out: Path) -> None:
    """Make a folder that stock vLLM serves from WEIGHTS, a file of a training run's heads folder."""
    from tlt.realrun.training.head.module import export_weights

    click.echo(export_weights(weights, out, model_folder))


@drafter.command()
@train_config
@click.option("--batches", default="1,4,16", show_default=True, help="Batch sizes, with commas.")
@click.option(
    "--prompts",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Held-out prompts; a batch takes them in turns of its size.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Times that each is generated, plain and drafting in turn.",
)
@click.option("--out", type=FILE, help="Also write the rows as JSON.")
def measure(
    config: Path | None, assignments: tuple[str, ...], batches: str, prompts: int, repeats: int,
    out: Path | None,
) -> None:  # fmt: skip
    """Measure what the head in drafter.folder gains over no speculation, for each K of drafter.ks.

    Batch sizes are measured in the order given, and what is measured is in the file at once: a run that is
    stopped keeps it.
    """
    from tlt.realrun.engine.factory import MAKE_ENGINE
    from tlt.realrun.training.head.held_out import measure_head
    from tlt.traces.runs.runfolder import write_json

    sizes = numbers_of("--batches", batches, int)
    rows: list[Measured] = []
    for measured in measure_head(
        _resolve(config, assignments), batches=sizes, prompts=prompts, repeats=repeats, factory=MAKE_ENGINE
    ):
        rows += measured
        for row in measured:
            click.echo(row.describe())
        if out is not None:
            write_json(out, rows)
