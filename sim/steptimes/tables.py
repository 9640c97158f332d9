"""Seconds of everything an engine does, looked up by arm and batch for one engine configuration."""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.sim.steptimes.law import Coefficients, Floats
from tltsched.commands import Entry
from tltsched.draft_config import OFF, Arm
from tltsched.policies.base import OffState
from tltsched.step_times import ArmTimes, StepTimeTable

# Released TLT divides its prefill budget by four while it prefills everything again (mit-han-lab/fastrl).
REPREFILL_CHUNK_SHARE = 0.25


class ArmCost(msgspec.Struct, frozen=True):
    """F(batch) for batch 0..max, and the seconds that one context token adds."""

    fixed_s: Floats
    context_s_per_token: float


class StepCosts:
    """Step times of one engine configuration, as tables over the batch."""

    def __init__(
        self,
        coefficients: Coefficients,
        off_state: OffState,
        max_requests: int,
        chunk_tokens: float,
        graph_max_requests: int,
        eager_step_s: float,
    ) -> None:
        """Set up for batches up to `max_requests`.

        Above `graph_max_requests` (0: no limit) decode without drafts runs without a CUDA graph and pays
        `eager_step_s` more per step, as the released TLT does in its bulk phase.
        """
        self.coefficients = coefficients
        self.off_state = off_state
        self.max_requests = max_requests
        self.chunk_tokens = chunk_tokens
        self.graph_max_requests = graph_max_requests
        self.eager_step_s = eager_step_s
        self._tables: dict[Arm, ArmCost] = {}

    def of(self, arm: Arm) -> ArmCost:
        """Return the table of an arm."""
        if arm not in self._tables:
            batch = np.arange(self.max_requests + 1, dtype=np.float64)
            fixed_s = self.coefficients.fixed_s(arm, self.off_state, batch)
            if self.graph_max_requests and arm.depth == 0:
                fixed_s = fixed_s + self.eager_step_s * (batch > self.graph_max_requests)
            per_token = self.coefficients.context_s_per_token(arm, self.off_state)
            self._tables[arm] = ArmCost(fixed_s, per_token)
        return self._tables[arm]

    def prefill_s(self, tokens: float, squared_tokens: float) -> float:
        """Return the seconds to prefill `tokens` in all, whose squared lengths sum to `squared_tokens`."""
        return self.coefficients.prefill_s(tokens, squared_tokens, self.chunk_tokens) if tokens else 0.0

    def switch_s(self, entry: Entry, tokens: float, squared_tokens: float) -> float:
        """Return what drafting costs before its first cycle, given the running contexts.

        drafter_fill: the drafter's one layer reads all contexts (their hidden states were kept: assumed).
        reprefill: target and drafter prefill everything again, in quarter-size chunks.
        """
        drafter_share = self.coefficients.drafter_kv_share
        if entry == "drafter_fill":
            return drafter_share * self.prefill_s(tokens, squared_tokens)
        if entry == "reprefill":
            chunk = self.chunk_tokens * REPREFILL_CHUNK_SHARE
            return (1 + drafter_share) * self.coefficients.prefill_s(tokens, squared_tokens, chunk)
        return 0.0

    def step_times(self, arms: tuple[Arm, ...]) -> StepTimeTable:
        """Return the same figures in the form that schedulers take and that a replay reads back."""
        tables = {arm: self.of(arm) for arm in dict.fromkeys((OFF, *arms))}
        return StepTimeTable(
            arms=tuple(
                ArmTimes(
                    arm=arm, fixed_s=tuple(table.fixed_s.tolist()), kv_s_per_token=table.context_s_per_token
                )
                for arm, table in tables.items()
            )
        )
