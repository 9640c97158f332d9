"""How well a head predicts its target on recorded responses: what share of its drafts would be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from tlt.realrun.training.features import Features
from tlt.realrun.training.head.loss import collate
from tlt.realrun.training.head.module import Head
from tlt.realrun.training.head.rows import packed

PROBE_STEPS = 4
TARGET_ROWS = 1024  # rows of the target's logits that exist at a time: [1024, vocabulary] in float32


class Agreement(NamedTuple):
    """How well drafts agree, by position: the share of chains accepted up to there, and the chains.

    `greedy` if target and head take their most likely token; exact for greedy responses, since a chain that
    has agreed so far is one of recorded tokens. `sampled` is expected if both are sampled (the sum of the
    smaller probability, Leviathan et al. 2023), positions taken as independent.
    """

    greedy: tuple[float, ...]
    sampled: tuple[float, ...]
    chains: int

    def lengths_with_bonus(self) -> tuple[float, float]:
        """Return the tokens that a request gets with drafts at all positions: greedy, and if sampled."""
        return 1.0 + sum(self.greedy), 1.0 + sum(self.sampled)


class Compared(NamedTuple):
    """For each chain and each step [chains, steps]: equal choices, and the shared probability."""

    same: torch.Tensor
    shared: torch.Tensor


def measure(
    head: Head,
    features: Sequence[Features],
    embedding: torch.Tensor,
    output: torch.Tensor,
    temperature: float,
) -> Agreement:
    """Return the agreement of a head and its target, over all chains of PROBE_STEPS drafts.

    `embedding` and `output` [vocabulary, H] are the target's. `temperature` is that of sampled drafts and
    targets; 0 counts as 1.
    """
    chains = compare(head, features, embedding, output, temperature)
    count = len(chains.same)
    greedy = chains.same.float().cumprod(1).sum(0) / max(count, 1)
    sampled = chains.shared.cumprod(1).sum(0) / max(count, 1)
    return Agreement(tuple(greedy.tolist()), tuple(sampled.tolist()), count)


@torch.no_grad()
def compare(
    head: Head, features: Sequence[Features], embedding: torch.Tensor, output: torch.Tensor,
    temperature: float,
) -> Compared:  # fmt: skip
    """Return each chain's agreement at each step; chains are those that PROBE_STEPS drafts fit into.

    `embedding` and `output` [vocabulary, H] are the target's.
    """
    batch = collate(packed(features), PROBE_STEPS, str(embedding.device), whole=True)
    heat = temperature or 1.0
    needed, places = torch.cat([each.labels for each in batch.chains]).unique(return_inverse=True)
    best, likely = _target(batch.last.flatten(0, 1)[needed], output, head.draft_ids, heat)
    by_step = places.split([len(each.labels) for each in batch.chains])
    embedded = functional.embedding(batch.tokens, embedding)
    states = head.unrolled(embedded, batch.aux, batch.documents, PROBE_STEPS)
    same, shared = [], []
    for state, chains, at in zip(states, batch.chains, by_step, strict=True):
        logits = head.lm_head(state.flatten(0, 1)[chains.starts]).float()
        same.append(head.draft_ids[logits.argmax(-1)] == best[at])
        shared.append(torch.minimum((logits / heat).softmax(-1), likely[at]).sum(-1))
    return Compared(torch.stack(same, 1), torch.stack(shared, 1))


def _target(
    states: torch.Tensor, output: torch.Tensor, draft_ids: torch.Tensor, heat: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the target's choice [N], and its probabilities of what the head can draft [N, draft]."""
    best, likely = [], []
    for part in states.to(output.dtype).split(TARGET_ROWS):
        logits = functional.linear(part, output).float()
        best.append(logits.argmax(-1))
        likely.append((logits / heat).softmax(-1)[:, draft_ids])
    return torch.cat(best), torch.cat(likely)
