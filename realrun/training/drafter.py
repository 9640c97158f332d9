"""The drafter of one worker: its head, what it learns from, and how it reaches the engines.

Every worker trains a copy of its own on its own responses, at its own pace. At the step boundary the changes
are averaged, weighted by trained tokens (local SGD), so that nobody ever waits inside the training loop and
the set of trainers may change at any moment.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import torch

from tlt.realrun.engine.model_files import read_tensors
from tlt.realrun.engine.protocol import Engine
from tlt.realrun.training.features import FeatureBuffer, Features
from tlt.realrun.training.flat_state import AsyncWriter, write_state
from tlt.realrun.training.head.module import Head, load_head
from tlt.realrun.training.head.rows import fill
from tlt.realrun.training.head.trainer import HeadTrainer
from tlt.realrun.training.policy.collective import Collective
from tlt.realrun.training.policy.model import PolicyModel
from tlt.realrun.training_config import TrainConfig
from tlt.realrun.workers.messages import HeadStep, Probe
from tlt.traces.common.seeds import HEAD_BATCHES, generator

PROBE_TOKENS = 2048  # of this step's responses, a worker


class Drafter:
    """Head, buffer and trainer of one worker; the head changes only if the policy is online."""

    def __init__(self, config: TrainConfig, policy: PolicyModel, rank: int) -> None:
        """Start from the head in drafter.folder, which all workers share."""
        self.config = config
        self.rank = rank
        self._policy = policy
        head = load_head(Path(config.drafter.folder))
        self.trainer = HeadTrainer(
            head, policy.embedding(), policy.output_layer(), config.head, policy.device, policy.dtype
        )
        self._initial = copy.deepcopy(head)
        self._serving = copy.deepcopy(head)
        self.buffer = FeatureBuffer(config.head.buffer_bytes, config.head.kept_steps)
        self._newest: list[Features] = []
        self._writer = AsyncWriter()
        self._trained_tokens = 0
        self.begin_step(0)

    def warm_up(self, features: Features) -> None:
        """Run the head there and back on some hidden states; no weight changes."""
        self.trainer.rehearse(fill(self.trainer.shape, lambda: features, self._rng, self.trainer.shape.rows))
        self._probe("serving", self._serving, [features])

    def begin_step(self, step: int) -> None:
        """Forget responses that are too old (tlt.realrun.training.features)."""
        self._newest.clear()
        self._probes: dict[str, tuple[Probe, ...]] = {}
        self.buffer.begin_step(step)
        self._rng = generator(self.config.seed, HEAD_BATCHES, step, self.rank)

    def add(self, features: Features) -> None:
        """Take the hidden states of a response of this step."""
        self._newest.append(features)
        self.buffer.add(features)

    def train(self) -> HeadStep | None:
        """Train on one batch; None if nothing was generated yet."""
        if not len(self.buffer):
            return None
        draw = partial(self.buffer.draw, self._rng, self.config.head.last_step_share)
        loss = self.trainer.step(fill(self.trainer.shape, draw, self._rng, len(self.buffer)))
        self._trained_tokens += loss.tokens
        return HeadStep(loss.tokens, loss.loss)

    def probe(self) -> bool:
        """Measure the serving head or the initial one on responses of this step; False if both were."""
        heads = {"serving": self._serving, "initial": self._initial}
        left = [name for name in heads if name not in self._probes]
        sample = self._sample()
        if not left or not sample:
            return False
        self._probes[left[0]] = self._probe(left[0], heads[left[0]], sample)
        return True

    def probes(self) -> tuple[Probe, ...]:
        """Return what was measured in this step."""
        return tuple(probe for measured in self._probes.values() for probe in measured)

    def _sample(self) -> list[Features]:
        """Return responses of this step, PROBE_TOKENS at most, the first ones."""
        sample: list[Features] = []
        for features in self._newest:
            if sum(len(each) for each in (*sample, features)) > PROBE_TOKENS:
                break
            sample.append(features)
        return sample

    def _probe(self, name: str, head: Head, sample: list[Features]) -> tuple[Probe, ...]:
        heat = self.config.engine.temperature
        result = self.trainer.agreement(head, sample, self._policy.output_layer(), heat)
        return tuple(
            Probe(name, position, greedy, sampled, result.chains)
            for position, (greedy, sampled) in enumerate(zip(result.greedy, result.sampled, strict=True))
        )

    def follow(self) -> None:
        """Take the policy's new embedding and output layer as what the head sees and predicts."""
        self.trainer.set_target(self._policy.embedding(), self._policy.output_layer())

    def average(self, collective: Collective) -> None:
        """Replace the head by the average over all workers of what was learned since the last time."""
        tokens = torch.tensor([float(self._trained_tokens)], device=self._policy.device)
        changes = [change * self._trained_tokens for change in self.trainer.changes()]
        collective.sum_([*changes, tokens])
        self.trainer.take_average(changes, float(tokens))
        self._trained_tokens = 0

    def serve(self, engine: Engine, version: int) -> None:
        """Give the engine the head as it is now."""
        engine.load_drafter(self.trainer.head.vllm_state(self._policy.dtype), version)
        self._serving.load_state_dict(self.trainer.head.state_dict())

    def keep(self, path: Path) -> None:
        """Write the head, trainable parts alone, without waiting for the disk."""
        self._writer.write(path, self.trainer.head.vllm_state(self._policy.dtype))

    def save(self, folder: Path) -> None:
        """Write what this worker needs to go on; the moments are its own."""
        write_state(folder / f"drafter-{self.rank}.safetensors", self.trainer.state_dict())

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        self.trainer.load_state_dict(read_tensors(folder / f"drafter-{self.rank}.safetensors"))

    def close(self) -> None:
        """Finish what is being written."""
        self._writer.close()
