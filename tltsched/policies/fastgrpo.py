"""FastGRPO's capacity rule: what the GPU can verify in one pass is divided among the running requests.

Rule: N = capacity / batch tokens to verify a request, and a depth of log2(N / alpha). Of the arms given, the
widest one that fits both is taken, the deeper one of two equally wide; none fits: no drafting. So each arm
serves the batches up to capacity / max(verify_tokens, alpha * 2^depth), and the rule is a table in disguise.
Acceptance and step times play no part.
Source: arXiv 2509.21792 (the rule as reported; its top-k, N - 1, is left to the arms given).
"""

from __future__ import annotations

from math import isfinite

from tltsched.commands import Entry
from tltsched.draft_config import OFF, Arm, parse_arm
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, OffState, Outcome, PolicyConfig, Rng, StepTimes


class FastGrpoConfig(PolicyConfig, tag="fastgrpo", frozen=True):
    """Draft as wide and as deep as the share of the GPU's capacity allows."""

    arms: tuple[str, ...]
    """Drafting arms to choose from, trees or chains."""
    capacity_tokens: int = 256
    """Tokens of one pass up to which reading the weights, not arithmetic, sets the time. The default is
    assumed: an H100 does 295 bf16 operations in the time of one byte (data sheet)."""
    alpha: float = 1.0
    """Divides N under the logarithm of the depth (assumed)."""
    off_state: OffState = "in_step"
    """How the engine runs while nothing fits."""
    entry: Entry = "none"
    """What drafting again costs (only with off_state `dropped`)."""

    def __post_init__(self) -> None:
        arms = [parse_arm(text) for text in self.arms]
        if not arms or len(set(arms)) != len(arms) or any(arm.depth == 0 for arm in arms):
            raise InputError("arms", self.arms, "drafting arms, each once", "correct the list")
        if self.capacity_tokens < 1:
            raise InputError("capacity_tokens", self.capacity_tokens, "1 or more", "give a count of tokens")
        if not (isfinite(self.alpha) and self.alpha > 0):
            raise InputError("alpha", self.alpha, "above 0", "give a positive number")

    def build(self, rng: Rng, times: StepTimes | None) -> FastGrpoPolicy:  # noqa: ARG002 (it needs neither)
        """Return the policy."""
        return FastGrpoPolicy(self)


class FastGrpoPolicy:
    """A choice holds down to the batch at which a larger arm begins to fit."""

    def __init__(self, config: FastGrpoConfig) -> None:
        self.off_state: OffState = config.off_state
        self.entry: Entry = config.entry
        widest_first = sorted(
            (parse_arm(text) for text in config.arms),
            key=lambda arm: (arm.verify_tokens, arm.depth),
            reverse=True,
        )
        self.arms: tuple[Arm, ...] = (OFF, *widest_first)
        self._largest_batch = [
            int(config.capacity_tokens // max(arm.verify_tokens, config.alpha * 2**arm.depth))
            for arm in widest_first
        ]

    def begin_rollout(self) -> None:
        """Nothing to forget."""

    def choose(self, batch: Batch) -> Choice:
        """Return the first arm, widest first, that the batch leaves capacity for; else OFF."""
        lowest = 1
        for arm, largest in zip(self.arms[1:], self._largest_batch, strict=True):
            if batch.requests <= largest:
                return Choice(arm, None, lowest)
            lowest = max(lowest, largest + 1)
        return Choice(OFF, None, lowest)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
