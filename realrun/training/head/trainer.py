"""Training of an EAGLE-3 head on one worker, and the averaging of what several have learned."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from tlt.realrun.training.features import Features
from tlt.realrun.training.flat_state import State, load_optimizer, optimizer_state
from tlt.realrun.training.head.agreement import Agreement, measure
from tlt.realrun.training.head.captured import CapturedPass
from tlt.realrun.training.head.loss import Batch, chain_starts, collate, unrolled_loss
from tlt.realrun.training.head.module import Head
from tlt.realrun.training.head.rows import Row, shape_of
from tlt.realrun.training_config import HeadConfig


class HeadLoss(NamedTuple):
    """One training step: chain starts in it, and the loss."""

    tokens: int
    loss: float


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
        self._embedding = embedding.to(device, copy=True)
        self._output = self._drafted(output_layer)
        self._captured: CapturedPass | None = None
        self.shape = shape_of(config)

    def set_target(self, embedding: torch.Tensor, output_layer: torch.Tensor) -> None:
        """Predict another target from now on; both [vocabulary, H]."""
        self._embedding.copy_(embedding)  # in place: a captured pass reads from there
        self._output.copy_(self._drafted(output_layer))

    def _drafted(self, output_layer: torch.Tensor) -> torch.Tensor:
        return output_layer.to(self._device)[self.head.draft_ids].to(self._dtype)

    def step(self, rows: Sequence[Row]) -> HeadLoss:
        """Do one optimizer step on rows of responses; without a chain to train on nothing changes."""
        chains = chain_starts(rows)
        if not chains:
            return HeadLoss(0, 0.0)
        loss = self._backward(rows)
        torch.nn.utils.clip_grad_norm_(self._parameters, self.config.grad_clip)
        self._steps += 1
        rate = self.config.learning_rate * min(1.0, self._steps / max(1, self.config.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._clear()
        return HeadLoss(chains, float(loss.detach()))

    def rehearse(self, rows: Sequence[Row]) -> None:
        """Do what a step does up to the gradient, and forget it."""
        if chain_starts(rows):
            self._backward(rows)
            self._clear()

    def _backward(self, rows: Sequence[Row]) -> torch.Tensor:
        """Return the loss [] of rows of self.shape at most, its gradients made."""
        into = self._captured.batch if self._captured else None
        shape = self.shape if self._device == "cuda" else None
        batch = collate(rows, self.config.unroll_steps, self._device, shape=shape, into=into)
        if shape is None:
            return self._run(batch)
        if self._captured is None:
            self._captured = CapturedPass(self._run, self._parameters, batch)
        return self._captured()

    def _run(self, batch: Batch) -> torch.Tensor:
        with self._autocast():
            loss = unrolled_loss(self.head, batch, self._embedding, self._output, self.config)
        loss.backward()
        return loss

    def _clear(self) -> None:
        """Forget gradients; a captured pass writes its own anew, where they are."""
        if self._captured is None:
            self._optimizer.zero_grad(set_to_none=True)

    def agreement(
        self, head: Head, features: Sequence[Features], full_output: torch.Tensor, temperature: float = 1.0
    ) -> Agreement:
        """Return how well `head` predicts these responses; `full_output` is the target's [vocabulary, H]."""
        with self._autocast():
            return measure(
                head, features, self._embedding, full_output.to(self._device, self._dtype), temperature
            )

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device, self._dtype, enabled=self._dtype != torch.float32)

    # --- averaging over workers -----------------------------------------------------------------------

    def changes(self) -> list[torch.Tensor]:
        """Return what was learned since the last average, a tensor a parameter, of its shape."""
        return [
            parameter.detach() - before
            for parameter, before in zip(self._parameters, self._baseline, strict=True)
        ]

    def take_average(self, summed: Sequence[torch.Tensor], tokens: float) -> None:
        """Become what it was at the last average plus `summed` / `tokens`.

        `summed` are the changes of all workers, each times the tokens it trained on; `tokens` are all of
        those. The moments of the optimizer stay this worker's own.
        """
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
