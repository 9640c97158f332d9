"""The training side of one worker: its responses, its share of the policy's update, its drafter head.

Each worker keeps what it generated. Log-probabilities, hidden states and gradients are made where the tokens
are, and only gradients and what the heads have learned are summed over workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch

from tlt.realrun.engine.model_files import read_tensors
from tlt.realrun.engine.protocol import Engine, EngineRequest
from tlt.realrun.models.drafter import aux_layers
from tlt.realrun.problems.load import load_problems
from tlt.realrun.training.drafter import Drafter
from tlt.realrun.training.flat_state import write_state
from tlt.realrun.training.policy.collective import Collective
from tlt.realrun.training.policy.grpo import Update
from tlt.realrun.training.policy.model import Sample, Scored, load_policy
from tlt.realrun.workers.messages import HeadStep, Phase, PrepareTraining, Probe, Publish

POLICY = "policy.safetensors"


class Trainer:
    """All of one worker that is neither its engine nor its channel."""

    def __init__(self, order: PrepareTraining) -> None:
        config, device = order.config, order.config.engine.device
        self.config = config
        self.rank = order.ranks.index(order.worker)
        torch.manual_seed(config.seed)
        self.policy = load_policy(config)
        self.reference = load_policy(config) if config.update.kl_coefficient else None
        self.update = Update(self.policy, config.update)
        self.problems = load_problems(config)
        self.collective = Collective(self.rank, len(order.ranks), order.host, order.port, device)
        self.drafter = Drafter(config, self.policy, self.rank) if order.train_head else None
        self.step = -1
        self._samples: dict[int, Sample] = {}
        self._scored: dict[int, Scored] = {}
        self._resumed = bool(order.checkpoint)
        if order.checkpoint:
            self._load(Path(order.checkpoint))

    def warm_up(self) -> None:
        """Run each kind of pass once, and a sum over workers, so that no step pays for first calls.

        No weight changes: the gradients are thrown away.
        """
        length = min(self.config.rollout.max_response_tokens, self.config.update.token_budget - 1)
        self.problems.score(0, 0, (0,))  # loads what makes problems
        samples = [Sample(0, (0,), (0,) * length)]
        layers = aux_layers(self.policy.layers) if self.drafter else ()
        scored = list(self.policy.log_probs(samples, self.config.engine.temperature, layers))
        old = [each.log_probs for each in scored]
        self.update.accumulate(samples, old, [0.0], None, length, self.config.engine.temperature)
        self.collective.sum_(self.update.gradients())
        self.update.clear()
        if self.drafter and scored[0].features is not None:
            self.drafter.warm_up(scored[0].features)
        self.settle()

    # --- rollout --------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Forget the responses of the step before."""
        if step == self.step:
            return
        self.step = step
        self._samples.clear()
        self._scored.clear()
        if self.drafter:
            self.drafter.begin_step(step)

    def keep(self, request: EngineRequest, tokens: tuple[int, ...]) -> None:
        """Take a response that the engine has finished."""
        self._samples[request.id] = Sample(request.id, request.prompt_token_ids, tokens)

    def score_early(self) -> int:
        """Take log-probabilities of a few responses that have none; returns how many they are."""
        update = self.config.update
        return self._score_some(min(update.early_token_budget, update.token_budget))

    def _score_some(self, budget: int) -> int:
        """Take log-probabilities of one pack of `budget` tokens; returns how many responses it held."""
        waiting = [sample for number, sample in sorted(self._samples.items()) if number not in self._scored]
        pack: list[Sample] = []
        tokens = 0
        for sample in waiting:
            tokens += len(sample.prompt) + len(sample.response)
            if pack and tokens > budget:
                break
            pack.append(sample)
        self._score(pack)
        return len(pack)

    def _score(self, samples: Sequence[Sample]) -> None:
        layers = aux_layers(self.policy.layers) if self.drafter else ()
        for scored in self.policy.log_probs(samples, self.config.engine.temperature, layers, self.step):
            self._scored[scored.sample.id] = scored
            if self.drafter and scored.features is not None:
                self.drafter.add(scored.features)

    def train_head(self) -> HeadStep | None:
        """Train the head on one batch; None if there is nothing to train on."""
        return self.drafter.train() if self.drafter else None

    # --- phases ---------------------------------------------------------------------------------------

    def rewards(self) -> dict[int, float]:
        """Return the reward of every response of this worker."""
        return {
            number: self.problems.score(self.step, number // self.config.rollout.samples, sample.response)
            for number, sample in sorted(self._samples.items())
        }

    def log_probs(self) -> None:
        """Take the log-probabilities that are still missing."""
        while self._score_some(self.config.update.token_budget):
            pass

    def probe(self) -> bool:
        """Measure one more head on what was generated in this step; returns whether one was left."""
        return self.drafter is not None and self.drafter.probe()

    def probes(self, needed: bool) -> tuple[Probe, ...]:
        """Return what is known of the heads in this step; with `needed`, measure what is not."""
        if self.drafter is None:
            return ()
        while needed and self.drafter.probe():
            pass
        return self.drafter.probes()

    def update_policy(self, order: Phase) -> dict[str, float]:
        """Do one optimizer step a minibatch, together with all workers; returns facts that add up."""
        facts: dict[str, float] = {}
        for requests, tokens in order.minibatches:
            mine = [self._scored[request] for request in requests if request in self._scored]
            values = [order.advantages[scored.sample.id] for scored in mine]
            samples = [scored.sample for scored in mine]
            part = self.update.accumulate(
                samples,
                [scored.log_probs for scored in mine],
                values,
                self._reference_log_probs(samples),
                tokens,
                self.config.engine.temperature,
            )
            self.collective.sum_(self.update.gradients())
            norm = self.update.apply(self.update.learning_rate(self.step))
            for name, value in (*part.items(), ("grad_norm", norm / self.collective.size)):
                facts[name] = facts.get(name, 0.0) + value / len(order.minibatches)
        return facts

    def _reference_log_probs(self, samples: Sequence[Sample]) -> list[torch.Tensor] | None:
        if self.reference is None:
            return None
        by_id = {
            scored.sample.id: scored.log_probs
            for scored in self.reference.log_probs(samples, self.config.engine.temperature)
        }
        return [by_id[sample.id] for sample in samples]

    def settle(self) -> None:
        """Wait for what was handed to the device, so that the engine has it to itself."""
        if self.config.engine.device == "cuda":
            torch.cuda.synchronize()

    def serve(self, engine: Engine, of_head: Engine) -> None:
        """Give new engines what they cannot have read from a folder: what a checkpoint held.

        `engine` generates next; `of_head` drafts with the head, and is another one under a fallback.
        """
        if self._resumed:
            engine.load_policy(self.policy.state(), 0)
            if self.drafter:
                self.drafter.serve(of_head, 0)

    def sync(self, engine: Engine) -> None:
        """Give the engine the policy's weights, and the head its new target."""
        engine.load_policy(self.policy.state(), (self.step + 1) * self.config.update.minibatches)
        if self.drafter:
            self.drafter.follow()

    def publish(self, order: Publish, engine: Engine) -> float:
        """Average the heads over the workers and serve the result; returns the seconds this took."""
        assert self.drafter is not None
        start_s = perf_counter()
        self.drafter.average(self.collective)
        self.drafter.serve(engine, order.version)
        if self.rank == 0:
            self.drafter.keep(Path(order.keep) / f"head-{order.version:04}.safetensors")
        return perf_counter() - start_s

    # --- checkpoint -----------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write this worker's part of a checkpoint: the policy is the same on all, so rank 0 writes it."""
        if self.rank == 0:
            write_state(folder / POLICY, self.update.state_dict())
        if self.drafter:
            self.drafter.save(folder)

    def _load(self, folder: Path) -> None:
        self.update.load_state_dict(read_tensors(folder / POLICY))
        if self.drafter:
            self.drafter.load(folder)

    def close(self) -> None:
        """Leave the group and finish what is being written."""
        self.collective.close()
        if self.drafter:
            self.drafter.close()
