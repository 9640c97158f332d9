"""A draft configuration: how one engine step drafts and verifies. A chain, a tree, or nothing drafted.

How users write one stands in `tltsched.written.draft_config`.
"""

from __future__ import annotations

import msgspec

from tltsched.errors import InputError


class DraftConfig(msgspec.Struct, frozen=True, order=True, gc=False):
    """One speculation strategy of a decode engine step.

    `verify_tokens` counts the root: the target reads that many tokens of each request in an engine step, so a
    chain of K has K + 1 of them and no drafting has one. An engine step emits at most `depth + 1` tokens of a
    request, the bonus token included.
    """

    depth: int
    topk: int = 1
    verify_tokens: int = 1

    def __post_init__(self) -> None:
        if self.depth < 0 or self.topk < 1:
            raise InputError(
                "draft_config",
                str(self),
                "depth >= 0 and topk >= 1",
                "write it as K or depth_topk_verify",
            )
        if self.depth == 0 and (self.topk, self.verify_tokens) != (1, 1):
            raise InputError("draft_config", f"0_{self.topk}_{self.verify_tokens}", "off", "write off")
        if self.verify_tokens < 2 and self.depth > 0:
            raise InputError(
                "draft_config",
                str(self),
                "at least 2 tokens to verify",
                "count the root as one of them",
            )
        if self.depth > 0 and self.topk == 1 and self.verify_tokens != self.depth + 1:
            raise InputError(
                "draft_config",
                str(self),
                f"a chain verifies depth + 1 = {self.depth + 1} tokens",
                "fix it",
            )

    def __str__(self) -> str:
        if self.depth == 0:
            return "off"
        return str(self.depth) if self.topk == 1 else f"{self.depth}_{self.topk}_{self.verify_tokens}"

    @property
    def is_chain(self) -> bool:
        """Whether one token is drafted per pass (no tree)."""
        return self.topk == 1


OFF = DraftConfig(0)


def chain(k: int) -> DraftConfig:
    """Return the draft configuration that drafts `k` tokens in a row; `chain(0)` is OFF."""
    return DraftConfig(k, 1, k + 1) if k else OFF
