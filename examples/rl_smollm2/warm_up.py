"""`python -m examples.rl_smollm2.warm_up`: supervised training on worked solutions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from tlt.commands.main import main
from tlt.commands.options import EXISTING_FOLDER, PATH, configured
from tlt.realrun.engine import vllm_compat
from tlt.realrun.problems.protocol import ProblemsSetup
from tlt.traces.common.settings import convert, merge, settings_of

from .settings import TaskSettings, WarmUpFile

if TYPE_CHECKING:
    from .supervised import HeldOut, Progress

PROBLEMS = "examples/rl_smollm2/problems.py"


@click.command("warm-up")
@click.argument("model_folder", type=EXISTING_FOLDER)
@click.option("--out", type=PATH, required=True, help="New model folder to write.")
@configured("TOML file of a training run; its seed, [tasks.settings] and a section [warm_up] count.")
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
    file = _settings(config, assignments, tokens)
    tasks = ProblemsSetup(
        model_folder=model_folder, seed=file.seed, prompts=file.rollout.prompts, settings=file.tasks.settings,
        module=file.tasks.module,
    ).read(TaskSettings)  # fmt: skip
    vllm_compat.hide_cuda_companions()
    from .supervised import warm_up as train

    record = train(
        model_folder, out, file.seed, tasks, file.warm_up, device=device,
        date=datetime.now(UTC).date().isoformat(), clock=perf_counter,
        report=lambda facts: click.echo(_line(facts, file.warm_up.tokens)),
    )  # fmt: skip
    recipe = record.recipe
    click.echo(
        f"{recipe.samples:,} worked solutions, {recipe.tokens:,} response tokens, {recipe.steps:,} steps "
        f"in {recipe.elapsed_s:.0f} s on {recipe.device} (measured)"
    )
    click.echo(f"{out} written")


def _settings(config: Path | None, assignments: tuple[str, ...], tokens: int | None) -> WarmUpFile:
    settings = merge({"tasks": {"module": PROBLEMS}}, settings_of(config, assignments))
    if tokens is not None:
        settings = merge(settings, {"warm_up": {"tokens": tokens}})
    return convert(settings, WarmUpFile, "tlt real train-fields")


def _line(facts: Progress | HeldOut, total: int) -> str:
    from .supervised import HeldOut

    if isinstance(facts, HeldOut):
        whole = ", ".join(f"{task} {share:.1%}" for task, share in facts.whole.items())
        return f"held out: loss {facts.loss:.4f}; whole solution sampled with probability {whole}"
    return (
        f"step {facts.step:,}: {facts.tokens:,} of {total:,} tokens, loss {facts.loss:.4f}, "
        f"rate {facts.learning_rate:.1e}, gradient {facts.gradient_norm:.2f}, "
        f"{facts.tokens_per_s:,.0f} tokens/s with prompts"
    )


if __name__ == "__main__":
    main(warm_up)
