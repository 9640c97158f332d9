"""Supervised warm-up: a policy learns worked solutions before RL, so that some of its answers are right.

The loss is cross entropy over response tokens, the one that ends the turn included. Samples lie packed in
rows; weights are float32 and computed with in the model's own format. A model folder like the one that went
in comes out.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from tlt.realrun.config import Dtype
from tlt.realrun.models.folder import RECORD, Prepared, copy_all_but_weights
from tlt.realrun.training.policy.model import PolicyModel, Sample
from tlt.realrun.training.policy.packing import Pack
from tlt.traces.runs.runfolder import read_struct, write_json
from tltsched.errors import InputError

from .families import HELD_OUT, require_families
from .settings import TaskSettings, WarmUpConfig
from .worked import require_worked
from .worked_samples import WorkedSample, make_samples, sample_stream, template_of

REPORTS = 20  # lines of progress
HELD_OUT_REPORTS = 5


class Progress(msgspec.Struct, frozen=True):
    """Training since the last report. `tokens` are response tokens from the beginning."""

    step: int
    tokens: int
    loss: float
    learning_rate: float
    gradient_norm: float  # before clipping, of the last step
    tokens_per_s: float  # prompts included


class HeldOut(msgspec.Struct, frozen=True):
    """How well problems that are not trained on are foretold.

    `whole` is the mean probability of the whole worked solution when every token is sampled at temperature
    1, by family: at least so many answers are right.
    """

    tokens: int
    loss: float
    whole: dict[str, float]


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a warmed-up model was made."""

    base: str  # name of the folder it was made from
    date: str
    device: str
    seed: int
    tasks: TaskSettings
    warm_up: WarmUpConfig
    steps: int
    tokens: int
    samples: int
    elapsed_s: float
    before: HeldOut
    after: HeldOut


class WarmedUp(Prepared, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a warmed-up folder holds, in its prepared.json."""

    recipe: Recipe


class WarmUp:
    """A policy and its optimizer."""

    def __init__(self, folder: Path, config: WarmUpConfig, device: str) -> None:
        """Load the model in `folder`; raises InputError if the kernel of `config` cannot run on `device`."""
        facts = read_struct(folder / "config.json", dict[str, Any])
        single = "float32" in (facts.get("dtype"), facts.get("torch_dtype"))
        self.config = config
        dtype: Dtype = "float32" if single else "bfloat16"
        self.policy = PolicyModel(folder, device, dtype, config.token_budget, config.attention)
        self._weights = [weight for weight in self.policy.model.parameters() if weight.requires_grad]
        matrices = [weight for weight in self._weights if weight.dim() > 1]
        norms = [weight for weight in self._weights if weight.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices}, {"params": norms, "weight_decay": 0.0}],
            lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, fused=True,
        )  # fmt: skip

    def train(self, samples: Sequence[WorkedSample], rate: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Take one optimizer step; returns the summed loss and the gradient's norm, both on the device."""
        tokens = sum(len(sample.response) for sample in samples)
        total = torch.zeros((), device=self.policy.device)
        for losses in self.losses(samples):
            loss = losses.sum()
            (loss / tokens).backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self._weights, self.config.grad_clip)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total, norm

    def losses(self, samples: Sequence[WorkedSample]) -> Iterator[torch.Tensor]:
        """Yield the loss of each response token [rows], pack after pack."""
        for packed, prompts in self._packs(samples):
            yield self._pack_losses(packed, prompts)

    def held_out(self, samples: Sequence[WorkedSample]) -> HeldOut:
        """Return how well the samples are foretold."""
        whole: dict[str, list[float]] = {sample.task: [] for sample in samples}
        summed = 0.0
        for packed, prompts in self._packs(samples):
            with torch.no_grad():
                losses = self._pack_losses(packed, prompts).double().cpu()
            mine = [samples[index] for index in packed.indices]
            parts = losses.split([len(sample.response) for sample in mine])
            for sample, part in zip(mine, parts, strict=True):
                summed += float(part.sum())
                whole[sample.task].append(math.exp(-float(part.sum())))
        tokens = sum(len(sample.response) for sample in samples)
        return HeldOut(
            tokens, summed / tokens, {task: sum(parts) / len(parts) for task, parts in whole.items()}
        )

    def _packs(self, samples: Sequence[WorkedSample]) -> Iterator[tuple[Pack, list[int]]]:
        plain = [Sample(number, sample.prompt, sample.response) for number, sample in enumerate(samples)]
        for packed in self.policy.packs(plain):
            yield packed, [len(samples[index].prompt) for index in packed.indices]

    def _pack_losses(self, packed: Pack, prompts: list[int]) -> torch.Tensor:
        """Return the loss of each response token [rows]; logits are made again in the backward pass."""
        with self.policy.autocast():
            return -self.policy.rows(packed, self.policy.hidden(packed), prompts, 1.0).log_probs


def learning_rate(config: WarmUpConfig, tokens: float) -> float:
    """Return the rate after `tokens` response tokens: a linear rise, then a linear fall to 0."""
    done = min(1.0, tokens / config.tokens)
    if done < config.warmup_share:
        return config.learning_rate * done / config.warmup_share
    return config.learning_rate * (1 - done) / (1 - config.warmup_share or 1)


def batches(samples: Iterator[WorkedSample], batch_tokens: int) -> Iterator[list[WorkedSample]]:
    """Yield the samples of each optimizer step: `batch_tokens` or a little more, prompts included."""
    batch: list[WorkedSample] = []
    tokens = 0
    for sample in samples:
        batch.append(sample)
        tokens += len(sample.prompt) + len(sample.response)
        if tokens >= batch_tokens:
            yield batch
            batch, tokens = [], 0


def warm_up(
    folder: Path, out: Path, seed: int, tasks: TaskSettings, config: WarmUpConfig, *, device: str, date: str,
    clock: Callable[[], float], report: Callable[[Progress | HeldOut], None],
) -> WarmedUp:  # fmt: skip
    """Train the model in `folder` on worked solutions and write it to `out`, which must be new or empty.

    `clock` gives seconds. An interrupt leaves nothing behind. Raises InputError for families without worked
    solutions, a folder without a tokenizer, and an `out` that holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("--out", str(out), "a new or empty folder", "give another one")
    require_families(tasks.names)
    require_worked(tasks.names)
    template = template_of(folder)
    stream = sample_stream(template, tasks, seed, config.processes)
    try:
        held_out = make_samples(template, tasks, seed, HELD_OUT, 0, config.held_out)
        trainer = WarmUp(folder, config, device)
        began = clock()
        before = trainer.held_out(held_out)
        report(before)
        steps, tokens, samples = _train(trainer, stream, held_out, clock, report)
        after = trainer.held_out(held_out)
        report(after)
    finally:
        stream.close()
    recipe = Recipe(
        base=folder.name, date=date, device=_device_name(device), seed=seed, tasks=tasks,
        warm_up=config, steps=steps, tokens=tokens, samples=samples, elapsed_s=clock() - began,
        before=before, after=after,
    )  # fmt: skip
    return _write(folder, out, trainer.policy, recipe)


def _train(
    trainer: WarmUp, stream: Iterator[WorkedSample], held_out: Sequence[WorkedSample],
    clock: Callable[[], float], report: Callable[[Progress | HeldOut], None],
) -> tuple[int, int, int]:  # fmt: skip
    """Train until the configured response tokens are reached; returns steps, response tokens and samples."""
    config = trainer.config
    step = tokens = samples = 0
    since_tokens = since_all = reports = 0
    since, loss = clock(), torch.zeros((), device=trainer.policy.device)
    for batch in batches(stream, config.batch_tokens):
        step, samples = step + 1, samples + len(batch)
        answered = sum(len(sample.response) for sample in batch)
        tokens, since_tokens = tokens + answered, since_tokens + answered
        since_all += answered + sum(len(sample.prompt) for sample in batch)
        rate = learning_rate(config, tokens - answered / 2)
        summed, norm = trainer.train(batch, rate)
        loss += summed
        if tokens >= config.tokens * (reports + 1) / REPORTS:
            mean = float(loss) / since_tokens  # waits for the device, so the clock comes after it
            speed = since_all / (clock() - since)
            report(Progress(step, tokens, mean, rate, float(norm), speed))
            reports = tokens * REPORTS // config.tokens
            if tokens >= config.tokens:
                break
            if reports % (REPORTS // HELD_OUT_REPORTS) == 0:
                report(trainer.held_out(held_out))
            since_tokens = since_all = 0
            since, loss = clock(), torch.zeros_like(loss)
    return step, tokens, samples


def _device_name(device: str) -> str:
    return "cpu" if device == "cpu" else torch.cuda.get_device_name()


def _write(folder: Path, out: Path, policy: PolicyModel, recipe: Recipe) -> WarmedUp:
    """Write the model folder, which appears under its name only when it is complete."""
    from safetensors.torch import save_file

    known = read_struct(folder / RECORD, dict[str, Any]) if (folder / RECORD).is_file() else {}
    record = WarmedUp(
        kind="model", name=str(known.get("name", folder.name)), weights="warmed up", seed=recipe.seed,
        vocab=int(policy.model.config.vocab_size), recipe=recipe,
    )  # fmt: skip
    place = out.with_name(f"{out.name}.partial-{os.getpid()}")
    place.mkdir(parents=True)
    try:
        copy_all_but_weights(folder, place)
        weights = {name: weight.contiguous().cpu() for name, weight in policy.state().items()}
        save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
        write_json(place / RECORD, record)
        if out.exists():
            out.rmdir()
        place.rename(out)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return record
