"""How an engine drafts by itself, as a policy; and what vLLM is told so that another policy may choose K."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tltsched.errors import InputError
from tltsched.policies import PolicySpec
from tltsched.policies.base import Policy
from tltsched.step_times import AnyTimes
from tltsched.written.policy_name import policy_of

Ranges = Sequence[Sequence[int]]
# Batches whose graphs are captured; between two of them a batch is padded to the larger one.
GRAPH_BATCHES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224)


def own_policy(max_drafts: int, ranges: Ranges | None) -> str:
    """Return how an engine drafts by itself, as a policy.

    `ranges` is its num_speculative_tokens_per_batch_size, if it has one.
    """
    if not max_drafts:
        return "none"
    if not ranges:
        return f"static:{max_drafts}"
    return policy_of("vllm_table", [f"{first}-{last}={k}" for first, last, k in ranges])


def k_table(ks: Sequence[int], max_running: int) -> list[tuple[int, int, int]]:
    """Return ranges (first batch, last batch, K) in which every K stands once.

    vLLM captures graphs for the K that it finds in this table. Which K it uses is written into each plan, so
    the batches named here have no meaning. Raises InputError for values that vLLM cannot draft.
    """
    distinct = sorted(set(ks))
    if not distinct or distinct[0] < 0 or distinct[-1] < 1 or len(distinct) > max_running:
        allowed = f"1 to {max_running} (engine.max_running) different values, the largest at least 1"
        raise InputError("drafter.ks", tuple(ks), allowed, "correct the list")
    last = len(distinct)
    return [(i, max_running if i == last else i, k) for i, k in enumerate(distinct, start=1)]


def batches_up_to(largest: int, batches: Sequence[int] = GRAPH_BATCHES) -> tuple[int, ...]:
    """Return those of the batches that are smaller, rising, and the largest."""
    return (*(batch for batch in sorted(set(batches)) if batch < largest), largest)


def graph_tokens(batches: Sequence[int], ks: Sequence[int]) -> list[int]:
    """Return the token counts to capture graphs of: every batch with every K.

    vLLM's own choice ends at 512 tokens, so that K = 4 at batch 128 would run without graphs.
    """
    return sorted({batch * (k + 1) for batch in batches for k in ks})


def chains_of(field: str, name: str, spec: PolicySpec) -> Policy:
    """Return a policy only to ask it what it drafts; raises InputError for one that vLLM cannot follow."""
    policy = spec.build(random.Random(0), AnyTimes())  # noqa: S311 -- nothing is drawn
    trees = [str(draft) for draft in policy.draft_configs if not draft.is_chain]
    if trees:
        raise InputError(
            field, f"{name} with tree {trees[0]}", "chains: vLLM verifies no trees",
            "use static:K, or another policy that drafts chains",
        )  # fmt: skip
    if policy.when_off == "drafter_dropped":
        raise InputError(
            field, f"{name} with when_off drafter_dropped", "when_off k0: vLLM keeps the drafter in step",
            "use static:K, or another policy that keeps it in step",
        )  # fmt: skip
    return policy


def depths(policy: Policy) -> tuple[int, ...]:
    """Return every K that a policy may choose, rising."""
    return tuple(sorted({draft.depth for draft in policy.draft_configs}))


def scheduler_rng(seed: int, worker: int) -> random.Random:
    """Return the generator of one worker's scheduler: all drivers must draw alike, or a replay would not."""
    return random.Random(f"{seed}/{worker}")  # noqa: S311 -- of policies, not security
