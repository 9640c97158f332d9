"""GRPO: the clipped objective, and the optimizer step that all workers share.

The loss is a mean over the response tokens of the whole minibatch, on all workers (as in DAPO). Each worker
adds up the gradients of its own tokens, so the sum over workers is the gradient of that mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tlt.realrun.training.flat_state import State, load_optimizer, optimizer_state
from tlt.realrun.training.policy.model import PolicyModel, Sample
from tlt.realrun.training_config import UpdateConfig

FACTS = ("loss", "entropy", "kl", "ratio_mean", "clip_share")


class Terms(NamedTuple):
    """What each response token adds to the objective and to the facts about it: [rows] each."""

    loss: torch.Tensor
    kl: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor


def objective(
    log_probs: torch.Tensor, old: torch.Tensor, values: torch.Tensor, reference: torch.Tensor | None,
    config: UpdateConfig,
) -> Terms:  # fmt: skip
    """Return the clipped objective of each token; all arguments are [rows], `values` the advantages.

    A token is clipped where its ratio has left the range in the direction that its advantage pushes: it has
    no gradient then. The KL to the reference is the estimator r - log r - 1 with r = reference / policy
    (k3; Schulman 2020), which is never negative; 0 without a reference.
    """
    ratio = (log_probs - old).exp()
    low, high = 1.0 - config.clip_low, 1.0 + config.clip_high
    loss = -torch.minimum(ratio * values, ratio.clamp(low, high) * values)
    clipped = ((ratio < low) & (values < 0)) | ((ratio > high) & (values > 0))
    kl = torch.zeros_like(loss)
    if reference is not None:
        change = reference - log_probs
        kl = change.expm1() - change
        loss = loss + config.kl_coefficient * kl
    return Terms(loss, kl, ratio, clipped)


class Update:
    """The policy's gradient and its AdamW; weights, gradients and moments in float32."""

    def __init__(self, policy: PolicyModel, config: UpdateConfig) -> None:
        self.policy = policy
        self.config = config
        named = dict(policy.model.named_parameters())  # tied weights once
        self._names = list(named)
        self._parameters: list[torch.nn.Parameter] = list(named.values())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay,
            fused=policy.device == "cuda",
        )  # fmt: skip
        self.clear()

    def learning_rate(self, step: int) -> float:
        """Return the rate of an RL step: linear warm-up, then constant."""
        return self.config.learning_rate * min(1.0, (step + 1) / max(1, self.config.warmup_steps))

    def accumulate(
        self,
        samples: Sequence[Sample],
        old_log_probs: Sequence[torch.Tensor],
        values: Sequence[float],
        reference_log_probs: Sequence[torch.Tensor] | None,
        total_tokens: int,
        temperature: float,
    ) -> dict[str, float]:
        """Add the gradient of these responses; `values` are their advantages, log-probabilities are [tokens].

        `total_tokens` are the response tokens of the minibatch on all workers. Returns shares of means over
        those tokens, which add up over workers: loss, entropy, kl, ratio_mean, clip_share.
        """
        # Read once, at the end: each reading waits for the GPU.
        facts = torch.zeros(len(FACTS), device=self.policy.device)
        for packed in self.policy.packs(samples):
            mine = [samples[index] for index in packed.indices]
            with self.policy.autocast():
                hidden = self.policy.hidden(packed)
                rows = self.policy.rows(packed, hidden, [len(sample.prompt) for sample in mine], temperature)
            weights = [
                torch.full((len(sample.response),), values[index])
                for index, sample in zip(packed.indices, mine, strict=True)
            ]
            reference = (
                None
                if reference_log_probs is None
                else self._row([reference_log_probs[index] for index in packed.indices])
            )
            old = self._row([old_log_probs[index] for index in packed.indices])
            terms = objective(rows.log_probs, old, self._row(weights), reference, self.config)
            (terms.loss.sum() / total_tokens).backward()
            parts = (terms.loss, rows.entropy, terms.kl, terms.ratio, terms.clipped)
            facts += torch.stack([part.detach().sum() for part in parts]) / total_tokens
        return dict(zip(FACTS, facts.tolist(), strict=True))

    def _row(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Return what belongs to the samples of a pack as one tensor on the device."""
        return torch.cat(parts).to(self.policy.device)

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients, shaped as parameters, zeros where none was added; to be summed in place."""
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None
            gradients.append(parameter.grad)
        return gradients

    def apply(self, learning_rate: float) -> float:
        """Clip, step, clear; returns the gradient's norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.config.grad_clip))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self.clear()
        return norm

    def clear(self) -> None:
        """Set all gradients to zeros: a worker without responses takes part in the sum as well."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def state_dict(self) -> State:
        """Return weights and moments, as they are: what comes later changes them."""
        weights = dict(zip(self._names, self._parameters, strict=True))
        return {**weights, **optimizer_state(self._optimizer, self._names)}

    def load_state_dict(self, state: State) -> None:
        """Put back what `state_dict` returned."""
        with torch.no_grad():
            for name, parameter in zip(self._names, self._parameters, strict=True):
                parameter.copy_(state[name])
        load_optimizer(self._optimizer, self._names, state)
