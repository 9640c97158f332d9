"""A draft configuration: how one engine step drafts and verifies. A chain, a tree, or nothing drafted."""

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


def parse_draft_config(text: str) -> DraftConfig:
    """Read `off`, a chain length such as `4`, or a tree such as `8_4_48` (depth, top-k, tokens to verify).

    Raises InputError on anything else.
    """
    parts = text.strip().split("_")
    if text.strip() == "off":
        return OFF
    if not all(part.isdecimal() for part in parts) or len(parts) not in (1, 3):
        raise InputError(
            "draft_config",
            text,
            "off, K, or depth_topk_verify such as 8_4_48",
            "correct the draft configuration",
        )
    numbers = [int(part) for part in parts]
    return chain(numbers[0]) if len(numbers) == 1 else DraftConfig(*numbers)
