"""What an EAGLE-3 head is trained on: batches of drafting chains, and their loss.

A chain starts at a position of a response and drafts one token a step along the recorded tokens
(training-time test). Chain i at step k predicts what the target says at position i + k. It counts there if it
started in the response (or at the last prompt token) and what it drafts was recorded, so that short responses
and the ends of long ones train the first steps too.

The loss of a step is the cross entropy with the target's distribution over the draft vocabulary, made to add
up to 1 (so a head is not punished for what it cannot say), plus optionally the smooth L1 distance to the
target's last state (EAGLE; TLT's released weights are 0.1 and 1.0, with one step). It is the mean over
chains; step k weighs `step_decay` ** (k - 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tlt.realrun.training.features import Features
from tlt.realrun.training.head.module import Head
from tlt.realrun.training_config import HeadConfig

LOSS_ROWS = 2048  # rows of logits that exist at a time: [2048, draft vocabulary] in float32


class Batch(NamedTuple):
    """Responses side by side, padded at their ends: B rows of S chain starts and W tokens.

    `tokens` [B, W], `aux` [B, S, A x H], `last` [B, W, H]; `chains` and `labels` hold for each step the
    places of the chains that count among the B x S, and of what they predict among the B x W.
    """

    tokens: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor
    chains: tuple[torch.Tensor, ...]
    labels: tuple[torch.Tensor, ...]

    def to(self, device: str) -> Batch:
        """Return it on another device."""
        chains, labels = (tuple(each.to(device) for each in part) for part in (self.chains, self.labels))
        return Batch(self.tokens.to(device), self.aux.to(device), self.last.to(device), chains, labels)


def collate(features: Sequence[Features], steps: int, whole: bool = False) -> Batch:
    """Return a batch of chains of `steps` drafts on the host.

    With `whole`, a chain that does not count at every step counts at none.
    """
    longest = max(len(each) for each in features)
    starts = max(longest - 2, 1)
    width = max(starts + steps, longest)
    aux_size, size = features[0].aux.shape[-1], features[0].last.shape[-1]
    tokens = torch.zeros((len(features), width), dtype=torch.long)
    aux = torch.zeros((len(features), starts, aux_size), dtype=features[0].aux.dtype)
    last = torch.zeros((len(features), width, size), dtype=features[0].last.dtype)
    chains: list[list[torch.Tensor]] = [[] for _ in range(steps)]
    labels: list[list[torch.Tensor]] = [[] for _ in range(steps)]
    for row, each in enumerate(features):
        length = len(each)
        tokens[row, :length], last[row, :length] = each.tokens, each.last
        aux[row, : min(length, starts)] = each.aux[:starts]
        first = max(each.prompt_tokens - 1, 0)
        for step in range(1, steps + 1):
            # The state at position p predicts token p + 1, so the last one that is recorded is at length - 2.
            end = length - 1 - (steps if whole else step)
            mine = torch.arange(first, max(first, end))
            chains[step - 1].append(row * starts + mine)
            labels[step - 1].append(row * width + mine + step)
    return Batch(
        tokens, aux, last, tuple(map(torch.cat, chains)), tuple(map(torch.cat, labels))
    )  # fmt: skip


def unrolled_loss(
    head: Head, batch: Batch, embedding: torch.Tensor, output: torch.Tensor, config: HeadConfig
) -> torch.Tensor:
    """Return the loss [] of a batch whose first step has a chain.

    `embedding` [vocabulary, H] is the target's; `output` [draft vocabulary, H] are the rows of its output
    layer that the head can draft.
    """
    steps = len(batch.chains)
    wanted = target_distribution(batch.last, output)
    last = batch.last.flatten(0, 1)
    embedded = functional.embedding(batch.tokens, embedding)
    total = torch.zeros((), device=last.device)
    for step, state in enumerate(head.unrolled(embedded, batch.aux, steps)):
        chains, labels = batch.chains[step], batch.labels[step]
        if not len(chains):  # every response is shorter than this
            break
        rows = state.flatten(0, 1)[chains]
        part = config.logit_weight * _cross_entropy(head, rows, wanted, labels)
        if config.hidden_weight:
            distance = functional.smooth_l1_loss(rows, last[labels].float())
            part = part + config.hidden_weight * distance
        total = total + config.step_decay**step * part
    return total


@torch.no_grad()
def target_distribution(last: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Return the target's distribution over the draft vocabulary [B x W, draft], made to add up to 1."""
    return functional.linear(last.flatten(0, 1).to(output.dtype), output).float().softmax(-1)


def _cross_entropy(
    head: Head, rows: torch.Tensor, wanted: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Return the mean over rows [N, H]; their logits are made again in the backward pass, some at a time."""
    sums = [
        checkpoint(
            _summed_cross_entropy, part, head.lm_head.weight, wanted, label,
            use_reentrant=False, preserve_rng_state=False,
        )
        for part, label in zip(rows.split(LOSS_ROWS), labels.split(LOSS_ROWS), strict=True)
    ]  # fmt: skip
    return torch.stack(sums).sum() / len(rows)


def _summed_cross_entropy(
    rows: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    logs = functional.linear(rows, weight).float().log_softmax(-1)
    return -(wanted[labels] * logs).sum()
