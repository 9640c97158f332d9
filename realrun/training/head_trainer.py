"""Training of an EAGLE-3 head, and how well it predicts.

The loss is the cross entropy with the target's distribution over the draft vocabulary at each unrolled step,
later steps weighing less, plus optionally the smooth L1 distance to the target's last state (EAGLE; TLT's
released weights are 0.1 and 1.0). Only chains that start in the response count.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from realrun.training.config import HeadConfig
from realrun.training.features import Features
from realrun.training.flat_state import State, load_optimizer, optimizer_state
from realrun.training.head import Head

PROBE_STEPS = 4


class HeadLoss(NamedTuple):
    """One training step: chain starts in it, and the loss."""

    tokens: int
    loss: float


class Agreement(NamedTuple):
    """How well drafts agree, by position: the share of chains accepted up to there, and the chains.

    `greedy` if target and head take their most likely token; `sampled` is expected if both are sampled at
    temperature 1 (the sum of the smaller probability, Leviathan et al. 2023), positions taken as independent.
    """

    greedy: tuple[float, ...]
    sampled: tuple[float, ...]
    chains: int


class Batch(NamedTuple):
    """Responses side by side, padded: [B, T] tokens, [B, T, ...] states, [B, S] chain starts that count."""

    tokens: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor
    counts: torch.Tensor


def collate(features: Sequence[Features], steps: int, device: str) -> Batch:
    """Return a batch whose chains of `steps` drafts stay inside their response."""
    longest = max(len(each) for each in features)
    longest = max(longest, steps + 2)
    starts = longest - steps - 1
    tokens = torch.zeros((len(features), longest), dtype=torch.long)
    aux = torch.zeros((len(features), longest, features[0].aux.shape[-1]), dtype=features[0].aux.dtype)
    last = torch.zeros((len(features), longest, features[0].last.shape[-1]), dtype=features[0].last.dtype)
    counts = torch.zeros((len(features), starts), dtype=torch.bool)
    for row, each in enumerate(features):
        length = len(each)
        tokens[row, :length], aux[row, :length], last[row, :length] = each.tokens, each.aux, each.last
        counts[row, each.prompt_tokens - 1 : max(length - steps - 1, 0)] = True
    return Batch(*(part.to(device, non_blocking=True) for part in (tokens, aux, last, counts)))


class HeadTrainer:
    """A head, its optimizer, and the target that it predicts."""

    def __init__(
        self, head: Head, embedding: torch.Tensor, output_layer: torch.Tensor, config: HeadConfig,
        device: str, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """`embedding` and `output_layer` [vocabulary, H] are the target's; `dtype` is what is computed in."""
        self.head = head.to(device)
        self.config = config
        self._device, self._dtype = device, dtype
        self._names = [name for name, _ in head.named_parameters()]
        self._parameters = list(head.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay,
            fused=device == "cuda",
        )  # fmt: skip
        self._steps = 0
        self._baseline = [parameter.detach().clone() for parameter in self._parameters]
        self.set_target(embedding, output_layer)

    def set_target(self, embedding: torch.Tensor, output_layer: torch.Tensor) -> None:
        """Predict another target from now on."""
        self._embedding = embedding.to(self._device)
        self._output = output_layer.to(self._device)[self.head.draft_ids].to(self._dtype)

    def step(self, features: Sequence[Features]) -> HeadLoss:
        """Do one optimizer step on these responses; one without a chain to train on changes nothing."""
        steps = self.config.unroll_steps
        batch = collate(features, steps, self._device)
        chains = int(batch.counts.sum())
        if not chains:
            return HeadLoss(0, 0.0)
        loss = self._loss(self.head, batch, steps)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, self.config.grad_clip)
        self._steps += 1
        rate = self.config.learning_rate * min(1.0, self._steps / max(1, self.config.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return HeadLoss(chains, float(loss.detach()))

    def _loss(self, head: Head, batch: Batch, steps: int) -> torch.Tensor:
        starts = batch.counts.shape[1]
        wanted = self._target(batch)
        total = torch.zeros((), device=self._device)
        with self._autocast():
            embedded = functional.embedding(batch.tokens, self._embedding)
            for step, state in enumerate(head.unrolled(embedded, batch.aux[:, :starts], steps), start=1):
                rows = state[batch.counts]
                logs = head.lm_head(rows).float().log_softmax(-1)
                label = wanted[:, step : step + starts][batch.counts]
                part = self.config.logit_weight * -(label * logs).sum(-1).mean()
                if self.config.hidden_weight:
                    truth = batch.last[:, step : step + starts][batch.counts]
                    part = part + self.config.hidden_weight * functional.smooth_l1_loss(rows, truth.float())
                total = total + self.config.step_decay ** (step - 1) * part
        return total

    @torch.no_grad()
    def _target(self, batch: Batch) -> torch.Tensor:
        """Return the target's distribution over the draft vocabulary, made to add up to 1 [B, T, draft]."""
        return functional.linear(batch.last.to(self._dtype), self._output).float().softmax(-1)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device, self._dtype, enabled=self._dtype != torch.float32)

    @torch.no_grad()
    def agreement(self, head: Head, features: Sequence[Features], full_output: torch.Tensor) -> Agreement:
        """Return how well `head` predicts these responses; `full_output` is the target's [vocabulary, H]."""
        batch = collate(features, PROBE_STEPS, self._device)
        starts = batch.counts.shape[1]
        greedy, sampled = [], []
        agrees: torch.Tensor | None = None
        overlap: torch.Tensor | None = None
        with self._autocast():
            embedded = functional.embedding(batch.tokens, self._embedding)
            for step, state in enumerate(
                head.unrolled(embedded, batch.aux[:, :starts], PROBE_STEPS), start=1
            ):
                drafts = head.lm_head(state[batch.counts]).float().softmax(-1)
                truth = batch.last[:, step : step + starts][batch.counts].to(self._dtype)
                target = functional.linear(truth, full_output.to(self._dtype)).float().softmax(-1)
                same = head.draft_ids[drafts.argmax(-1)] == target.argmax(-1)
                shared = torch.minimum(drafts, target[:, head.draft_ids]).sum(-1)
                agrees = same if agrees is None else agrees & same
                overlap = shared if overlap is None else overlap * shared
                greedy.append(float(agrees.float().mean()) if len(same) else 0.0)
                sampled.append(float(overlap.mean()) if len(same) else 0.0)
        return Agreement(tuple(greedy), tuple(sampled), int(batch.counts.sum()))

    # --- averaging over workers -----------------------------------------------------------------------

    def changes(self) -> list[torch.Tensor]:
        """Return what was learned since the last average, a tensor a parameter."""
        return [
            parameter.detach() - before
            for parameter, before in zip(self._parameters, self._baseline, strict=True)
        ]

    def take_average(self, summed: Sequence[torch.Tensor], tokens: float) -> None:
        """Become what it was at the last average plus `summed` / `tokens`."""
        with torch.no_grad():
            for parameter, before, change in zip(self._parameters, self._baseline, summed, strict=True):
                before += change / max(tokens, 1.0)
                parameter.copy_(before)

    def state_dict(self) -> State:
        """Return weights, moments and the number of optimizer steps; averaging must have been done."""
        weights = dict(zip(self._names, self._parameters, strict=True))
        steps = torch.tensor([self._steps])
        return {**weights, **optimizer_state(self._optimizer, self._names), "steps": steps}

    def load_state_dict(self, state: State) -> None:
        """Put back what `state_dict` returned."""
        with torch.no_grad():
            for name, parameter, before in zip(self._names, self._parameters, self._baseline, strict=True):
                parameter.copy_(state[name])
                before.copy_(state[name])
        load_optimizer(self._optimizer, self._names, state)
        self._steps = int(state["steps"])
