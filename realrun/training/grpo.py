"""GRPO: advantages within a group, the clipped objective, and the optimizer step that all workers share.

The loss is a mean over the response tokens of the whole minibatch, on all workers (as in DAPO). So each worker
adds up gradients of its own tokens, and their sum over workers is the gradient.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from realrun.training.config import UpdateConfig
from realrun.training.flat_state import State, load_optimizer, optimizer_state
from realrun.training.policy import Policy, Sample

EPSILON = 1e-6


def advantages(rewards: Sequence[float], groups: Sequence[int], scale: bool) -> list[float]:
    """Return reward less the group's mean, over its standard deviation with `scale` (GRPO).

    A group of equal rewards has advantages of 0.
    """
    members: dict[int, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        members.setdefault(group, []).append(reward)
    centre = {group: statistics.fmean(values) for group, values in members.items()}
    spread = {group: statistics.pstdev(values) if scale else 1.0 for group, values in members.items()}
    return [
        (reward - centre[group]) / (spread[group] + (EPSILON if scale else 0.0))
        for reward, group in zip(rewards, groups, strict=True)
    ]


class Update:
    """The policy's gradient and its AdamW; weights, gradients and moments in float32."""

    def __init__(self, policy: Policy, config: UpdateConfig) -> None:
        self.policy = policy
        self.config = config
        named = dict(policy.model.named_parameters())  # tied weights once
        self._names = list(named)
        self._parameters: list[torch.nn.Parameter] = list(named.values())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay,
            fused=policy.device == "cuda",
        )  # fmt: skip
        self._clear()

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
        """Add the gradient of these responses; `values` are their advantages.

        `total_tokens` are the response tokens of the minibatch on all workers. Returns facts that add up over
        workers: loss, entropy, kl, ratio_mean, clip_share.
        """
        facts = dict.fromkeys(("loss", "entropy", "kl", "ratio_mean", "clip_share"), 0.0)
        for packed in self.policy.packs(samples):
            mine = [samples[index] for index in packed.indices]
            old = torch.cat([old_log_probs[index] for index in packed.indices]).to(self.policy.device)
            weight = torch.cat(
                [
                    torch.full((len(sample.response),), values[index])
                    for index, sample in zip(packed.indices, mine, strict=True)
                ]
            ).to(self.policy.device)
            with self.policy.autocast():
                hidden = self.policy.hidden(packed)
                rows = self.policy.rows(packed, hidden, [len(sample.prompt) for sample in mine], temperature)
            ratio = (rows.log_probs - old).exp()
            low, high = 1.0 - self.config.clip_low, 1.0 + self.config.clip_high
            losses = -torch.minimum(ratio * weight, ratio.clamp(low, high) * weight)
            gap = torch.zeros_like(losses)
            if reference_log_probs is not None:
                reference = torch.cat([reference_log_probs[index] for index in packed.indices])
                change = reference.to(self.policy.device) - rows.log_probs
                gap = change.exp() - change - 1.0  # never negative, and unbiased (k3)
                losses = losses + self.config.kl_coefficient * gap
            loss = losses.sum() / total_tokens
            loss.backward()
            clipped = ((ratio < low) & (weight < 0)) | ((ratio > high) & (weight > 0))
            for name, value in (
                ("loss", loss * total_tokens), ("entropy", rows.entropy.sum()), ("kl", gap.sum()),
                ("ratio_mean", ratio.sum()), ("clip_share", clipped.sum()),
            ):  # fmt: skip
                facts[name] += float(value.detach()) / total_tokens
        return facts

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients, zeros where none was added, to be summed over workers in place."""
        found = []
        for parameter in self._parameters:
            assert parameter.grad is not None
            found.append(parameter.grad)
        return found

    def apply(self, learning_rate: float) -> float:
        """Clip, step, clear; returns the gradient's norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.config.grad_clip))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._clear()
        return norm

    def _clear(self) -> None:
        """Set all gradients to zeros: a worker without responses takes part in the sum as well."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def state_dict(self) -> State:
        """Return weights and moments."""
        weights = dict(zip(self._names, self._parameters, strict=True))
        return {**weights, **optimizer_state(self._optimizer, self._names)}

    def load_state_dict(self, state: State) -> None:
        """Put back what `state_dict` returned."""
        with torch.no_grad():
            for name, parameter in zip(self._names, self._parameters, strict=True):
                parameter.copy_(state[name])
        load_optimizer(self._optimizer, self._names, state)
