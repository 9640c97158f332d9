"""FastGRPO's capacity rule: what the GPU can verify in one pass is divided among the running requests.

Rule: N = capacity / batch tokens to verify a request, and a depth of log2(N / alpha). Of the draft
configurations given, the widest one that fits both is taken, the deeper one of two equally wide; none fits:
no drafting. So each draft configuration serves the batches up to capacity / max(verify_tokens, alpha *
2^depth), and the rule is a table in disguise. Acceptance and step times play no part. Source: arXiv
2509.21792 (the rule as reported; its top-k, N - 1, is left to the draft configurations given).
"""

from __future__ import annotations

from math import isfinite

from tltsched.commands import ResumeCost
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome, PolicyConfig, Rng, StepTimes, WhenOff
from tltsched.written.draft_config import WrittenDraftConfig, parse_draft_config


class FastGrpoConfig(PolicyConfig, tag="fastgrpo", frozen=True):
    """Draft as wide and as deep as the share of the GPU's capacity allows."""

    draft_configs: tuple[WrittenDraftConfig, ...]
    """Draft configurations to choose from, trees or chains; `off` is none of them."""
    capacity_tokens: int = 256
    """Tokens of one pass up to which reading the weights, not arithmetic, sets the time. The default is
    assumed: an H100 does 295 bf16 operations in the time of one byte (data sheet)."""
    alpha: float = 1.0
    """Divides N under the logarithm of the depth (assumed)."""
    when_off: WhenOff = "k0"
    """How the engine runs while nothing fits."""
    resume_cost: ResumeCost = "none"
    """What drafting again costs (only with when_off `drafter_dropped`)."""

    def __post_init__(self) -> None:
        draft_configs = [parse_draft_config(text) for text in self.draft_configs]
        if (
            not draft_configs
            or len(set(draft_configs)) != len(draft_configs)
            or any(draft_config.depth == 0 for draft_config in draft_configs)
        ):
            raise InputError(
                "draft_configs",
                self.draft_configs,
                "one or more, each once, none of them off",
                "correct the list",
            )
        self._normalise(draft_configs=tuple(map(str, draft_configs)))
        if self.capacity_tokens < 1:
            raise InputError("capacity_tokens", self.capacity_tokens, "1 or more", "give a count of tokens")
        if not (isfinite(self.alpha) and self.alpha > 0):
            raise InputError("alpha", self.alpha, "above 0", "give a positive number")

    def build(self, rng: Rng, times: StepTimes | None) -> FastGrpoPolicy:  # noqa: ARG002 (it needs neither)
        """Return the policy."""
        return FastGrpoPolicy(self)


class FastGrpoPolicy:
    """A choice holds down to the batch at which a larger draft configuration begins to fit."""

    def __init__(self, config: FastGrpoConfig) -> None:
        self.when_off: WhenOff = config.when_off
        self.resume_cost: ResumeCost = config.resume_cost
        widest_first = sorted(
            (parse_draft_config(text) for text in config.draft_configs),
            key=lambda draft_config: (draft_config.verify_tokens, draft_config.depth),
            reverse=True,
        )
        self.draft_configs: tuple[DraftConfig, ...] = (OFF, *widest_first)
        self._largest_batch = [
            int(
                config.capacity_tokens
                // max(draft_config.verify_tokens, config.alpha * 2**draft_config.depth)
            )
            for draft_config in widest_first
        ]

    def begin_rollout(self) -> None:
        """Nothing to forget."""

    def choose(self, batch: Batch) -> Choice:
        """Return the widest draft configuration that the batch leaves capacity for; else OFF."""
        lowest = 1
        for draft_config, largest in zip(self.draft_configs[1:], self._largest_batch, strict=True):
            if batch.requests <= largest:
                return Choice(draft_config, None, lowest)
            lowest = max(lowest, largest + 1)
        return Choice(OFF, None, lowest)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
