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
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from tlt.realrun.training.features import Features
from tlt.realrun.training.head.module import Head
from tlt.realrun.training.head.rows import Row, Shape
from tlt.realrun.training_config import HeadConfig

LOSS_ROWS = 2048  # rows of logits that exist at a time: [2048, draft vocabulary] in float32


class Chains(NamedTuple):
    """Chains at one step, [N] each: where they started, what they predict there, and what each counts for.

    `starts` are places among the B x S of a batch, `labels` among its B x W.
    """

    starts: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


class Batch(NamedTuple):
    """Rows of responses: B rows of S chain starts and W tokens, padded at their ends.

    `tokens` [B, W]; `documents` [B, S] numbers the responses of a row; `aux` [B, S, A x H]; `last` [B, W, H];
    `chains` has an entry a step.
    """

    tokens: torch.Tensor
    documents: torch.Tensor
    aux: torch.Tensor
    last: torch.Tensor
    chains: tuple[Chains, ...]


def chain_starts(rows: Sequence[Row]) -> int:
    """Return how many chains of rows count at the first step."""
    return sum(max(len(each) - 1 - max(each.prompt_tokens, 1), 0) for row in rows for each in row)


def collate(
    rows: Sequence[Row], steps: int, device: str, *, whole: bool = False, shape: Shape | None = None,
    into: Batch | None = None,
) -> Batch:  # fmt: skip
    """Return a batch of chains of `steps` drafts on `device`.

    With `whole`, a chain that does not count at every step counts at none. With `shape` it has that, and a
    chain at every place, of weight 0 where none counts: its tensors are then as large for any rows, and are
    written `into` those of another such batch if there is one.
    """
    count, starts = shape or (len(rows), max(sum(map(len, row)) for row in rows))
    batch = into or _empty(rows[0][0], count, starts, steps, device)
    documents = torch.full((count, starts), -1)
    places: list[list[torch.Tensor]] = [[] for _ in range(steps)]
    for number, row in enumerate(rows):
        begin = 0
        for document, each in enumerate(row):
            end = begin + len(each)
            # Piece by piece to where it is needed: put together on the host, a batch would take longer to
            # write there than to train on.
            batch.tokens[number, begin:end].copy_(each.tokens, non_blocking=True)
            batch.aux[number, begin:end].copy_(each.aux, non_blocking=True)
            batch.last[number, begin:end].copy_(each.last, non_blocking=True)
            documents[number, begin:end] = document
            first = begin + max(each.prompt_tokens - 1, 0)
            for step in range(1, steps + 1):
                # The state at position p predicts token p + 1: the last that is recorded is the one before
                # the end.
                until = end - 1 - (steps if whole else step)
                places[step - 1].append(number * starts + torch.arange(first, max(first, until)))
            begin = end
    batch.documents.copy_(documents)
    width = starts + steps
    chains = [_chains(torch.cat(part), step, starts, width) for step, part in enumerate(places, start=1)]
    if shape is not None:
        chains = [_everywhere(each, step, shape, width) for step, each in enumerate(chains, start=1)]
    if into is None:
        return batch._replace(chains=tuple(Chains(*(part.to(device) for part in each)) for each in chains))
    for mine, given in zip(batch.chains, chains, strict=True):
        mine.weights.copy_(given.weights)
    return batch


def _empty(like: Features, count: int, starts: int, steps: int, device: str) -> Batch:
    """Return a batch without chains, of no tokens."""
    width = starts + steps
    return Batch(
        torch.zeros((count, width), dtype=torch.long, device=device),
        torch.full((count, starts), -1, device=device),
        torch.zeros((count, starts, like.aux.shape[-1]), dtype=like.aux.dtype, device=device),
        torch.zeros((count, width, like.last.shape[-1]), dtype=like.last.dtype, device=device),
        (),
    )


def _chains(places: torch.Tensor, step: int, starts: int, width: int) -> Chains:
    """Return chains that all count alike; `places` [N] are those of their starts."""
    labels = places // starts * width + places % starts + step
    return Chains(places, labels, torch.full(places.shape, 1.0 / max(len(places), 1)))


def _everywhere(chains: Chains, step: int, shape: Shape, width: int) -> Chains:
    """Return a chain a place of a batch, of weight 0 where `chains` has none."""
    weights = torch.zeros(shape.rows * shape.tokens)
    weights[chains.starts] = chains.weights
    dense = _chains(torch.arange(shape.rows * shape.tokens), step, shape.tokens, width)
    return Chains(dense.starts, dense.labels, weights)


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
    for step, state in enumerate(head.unrolled(embedded, batch.aux, batch.documents, steps)):
        chains = batch.chains[step]
        if not len(chains.starts):  # every response is shorter than this
            break
        rows = state.flatten(0, 1).index_select(0, chains.starts)
        part = config.logit_weight * cross_entropy(head, rows, wanted, chains)
        if config.hidden_weight:
            distance = functional.smooth_l1_loss(rows, last[chains.labels].float(), reduction="none")
            part = part + config.hidden_weight * (distance.mean(-1) * chains.weights).sum()
        total = total + config.step_decay**step * part
    return total


@torch.no_grad()
def target_distribution(last: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Return the target's distribution over the draft vocabulary [B x W, draft], made to add up to 1."""
    return functional.linear(last.flatten(0, 1).to(output.dtype), output).float().softmax(-1)


def cross_entropy(head: Head, rows: torch.Tensor, wanted: torch.Tensor, chains: Chains) -> torch.Tensor:
    """Return the weighted sum [] over the states `rows` [N, H] of chains; `wanted` [B x W, draft]."""
    loss: torch.Tensor = _CrossEntropy.apply(rows, head.lm_head.weight, wanted, chains.labels, chains.weights)
    return loss


class _CrossEntropy(torch.autograd.Function):
    """Cross entropy of states under an output layer; the gradient is made along, logits some rows at a time.

    Of a target distribution that adds up to 1, the gradient by logits is softmax less target, so that logits
    need not be made again for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor, labels: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        kind = torch.get_autocast_dtype(rows.device.type)
        kind = kind if torch.is_autocast_enabled(rows.device.type) else rows.dtype
        layer = weight.to(kind)
        total = torch.zeros((), device=rows.device)
        by_rows, by_weight = torch.empty_like(rows), torch.zeros_like(weight)
        for start in range(0, len(rows), LOSS_ROWS):
            part = slice(start, start + LOSS_ROWS)
            states, target = rows[part].to(kind), wanted[labels[part]]
            logs = functional.linear(states, layer).float().log_softmax(-1)
            total -= ((target * logs).sum(-1) * weights[part]).sum()
            slope = (logs.exp_() - target).mul_(weights[part, None]).to(kind)
            by_rows[part] = torch.matmul(slope, layer)
            by_weight += torch.matmul(slope.t(), states)
        ctx.save_for_backward(by_rows, by_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        by_rows, by_weight = ctx.saved_tensors
        return by_rows * slopes[0], by_weight * slopes[0], None, None, None
