"""Draft a fixed K while few requests run, and nothing from a limit on: the switch that vLLM once had."""

from __future__ import annotations

from tltsched.commands import ResumeCost
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome, PolicyConfig, Rng, StepTimes, WhenOff


class DisableByBatchConfig(PolicyConfig, tag="disable_by_batch", frozen=True):
    """Draft `k` tokens in batches below `limit_requests` (vLLM: speculative_disable_by_batch_size)."""

    k: int = 4
    """Tokens to draft (assumed)."""
    limit_requests: int = 32
    """Smallest batch without drafting (assumed: vLLM had no default)."""

    def __post_init__(self) -> None:
        for field in ("k", "limit_requests"):
            if getattr(self, field) < 1:
                raise InputError(field, getattr(self, field), "1 or more", "use `none` to never draft")

    def build(self, rng: Rng, times: StepTimes | None) -> DisableByBatchPolicy:  # noqa: ARG002 (needs neither)
        """Return the policy."""
        return DisableByBatchPolicy(self)


class DisableByBatchPolicy:
    """Either of two choices; nothing is decided in between."""

    def __init__(self, config: DisableByBatchConfig) -> None:
        self.when_off: WhenOff = "k0"
        self.resume_cost: ResumeCost = "none"
        self.draft_configs: tuple[DraftConfig, ...] = (OFF, chain(config.k))
        self._below, self._above = Choice(chain(config.k)), Choice(OFF, None, config.limit_requests)

    def begin_rollout(self) -> None:
        """Nothing to forget."""

    def choose(self, batch: Batch) -> Choice:
        """Return the choice, which holds until the batch falls below the limit or is formed anew."""
        return self._above if batch.requests >= self._above.min_requests else self._below

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
