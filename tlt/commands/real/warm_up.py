"""`tlt real warm-up`: supervised training on worked solutions. torch is imported by the command alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tlt.commands.options import EXISTING_FOLDER, PATH, configured

if TYPE_CHECKING:
    from tlt.realrun.training.tasks.warm_up import HeldOut, Progress
    from tlt.realrun.training_config import TrainConfig


@click.command("warm-up")
@click.argument("model_folder", type=EXISTING_FOLDER)
@click.option("--out", type=PATH, required=True, help="New model folder to write.")
@configured("TOML file of a training run; its seed, [tasks] and [warm_up] count.")
@click.option("--tokens", type=click.IntRange(min=1), help="Response tokens trained on (warm_up.tokens).")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
def warm_up(
    model_folder: Path, out: Path, config: Path | None, assignments: tuple[str, ...], tokens: int | None,
    device: str,
) -> None:  # fmt: skip
    """Train a prepared model on worked solutions before RL, so that a share of its answers is right.

    Problems, their seeds and the mix of difficulties are those of the run's settings. Writes a model folder
    like MODEL_FOLDER, which vLLM loads, with the recipe in its prepared.json. Ctrl-C leaves nothing behind.
    """
    from datetime import UTC, datetime
    from time import perf_counter

    from tlt.realrun.engine import vllm_compat

    settings = _settings(config, assignments, tokens)
    vllm_compat.hide_cuda_companions()
    from tlt.realrun.training.tasks.warm_up import warm_up as train

    record = train(
        model_folder, out, settings, device=device, date=datetime.now(UTC).date().isoformat(),
        clock=perf_counter, report=lambda facts: click.echo(_line(facts, settings.warm_up.tokens)),
    )  # fmt: skip
    recipe = record.recipe
    click.echo(
        f"{recipe.samples:,} worked solutions, {recipe.tokens:,} response tokens, {recipe.steps:,} steps "
        f"in {recipe.elapsed_s:.0f} s on {recipe.device} (measured)"
    )
    click.echo(f"{out} written")


def _settings(config: Path | None, assignments: tuple[str, ...], tokens: int | None) -> TrainConfig:
    from tlt.realrun.training_config import TrainConfig
    from tlt.traces.common.settings import convert, merge, settings_of

    settings = settings_of(config, assignments)
    if tokens is not None:
        settings = merge(settings, {"warm_up": {"tokens": tokens}})
    return convert(settings, TrainConfig, "tlt real fields")


def _line(facts: Progress | HeldOut, total: int) -> str:
    from tlt.realrun.training.tasks.warm_up import HeldOut

    if isinstance(facts, HeldOut):
        whole = ", ".join(f"{task} {share:.1%}" for task, share in facts.whole.items())
        return f"held out: loss {facts.loss:.4f}; whole solution sampled with probability {whole}"
    return (
        f"step {facts.step:,}: {facts.tokens:,} of {total:,} tokens, loss {facts.loss:.4f}, "
        f"rate {facts.learning_rate:.1e}, gradient {facts.gradient_norm:.2f}, "
        f"{facts.tokens_per_s:,.0f} tokens/s with prompts"
    )
