"""Seconds of everything an engine does, looked up by draft configuration and batch for one engine
configuration.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.sim.steptimes.law import Coefficients, without_graph
from tlt.traces.common.arrays import Floats
from tltsched.commands import ResumeCost
from tltsched.draft_config import OFF, DraftConfig
from tltsched.policies.base import WhenOff
from tltsched.step_times import DraftConfigTimes, StepTimeTable

# Released TLT divides its prefill budget by four while it prefills everything again (mit-han-lab/fastrl).
REPREFILL_CHUNK_SHARE = 0.25


class DraftConfigCost(msgspec.Struct, frozen=True):
    """F(batch) for batch 0..max, and the seconds that one context token adds."""

    fixed_s: Floats
    context_s_per_token: float


class StepCosts:
    """Step times of one engine configuration, as tables over the batch."""

    def __init__(
        self,
        coefficients: Coefficients,
        when_off: WhenOff,
        max_requests: int,
        chunk_tokens: float,
        graph_max_requests: int,
        eager_step_s: float,
        mixes: bool = True,
        eager_pass_s: float = 0.0,
    ) -> None:
        """Set up for batches up to `max_requests`; `mixes`: the engine decodes while it prefills.

        Above `graph_max_requests` (0: no limit) nothing runs in a CUDA graph: a step of the target, with
        drafts or without, takes `eager_step_s` more, and each pass of the drafter `eager_pass_s`.
        """
        self.coefficients = coefficients
        self.when_off = when_off
        self.max_requests = max_requests
        self.chunk_tokens = chunk_tokens
        self.graph_max_requests = graph_max_requests
        self.eager_step_s = eager_step_s
        self.mixes = mixes
        self.eager_pass_s = eager_pass_s
        self._tables: dict[DraftConfig, DraftConfigCost] = {}

    def of(self, draft_config: DraftConfig) -> DraftConfigCost:
        """Return the table of a draft configuration."""
        if draft_config not in self._tables:
            batch = np.arange(self.max_requests + 1, dtype=np.float64)
            fixed_s = self.coefficients.fixed_s(draft_config, self.when_off, batch)
            eager_s = self.eager_step_s + draft_config.depth * self.eager_pass_s
            fixed_s = fixed_s + eager_s * without_graph(batch, self.graph_max_requests or None)
            per_token = self.coefficients.context_s_per_token(draft_config, self.when_off)
            self._tables[draft_config] = DraftConfigCost(fixed_s, per_token)
        return self._tables[draft_config]

    def prefill_s(self, tokens: float, squared_tokens: float) -> float:
        """Return the seconds to prefill `tokens` in all, whose squared lengths sum to `squared_tokens`."""
        return self.coefficients.prefill_s(tokens, squared_tokens, self.chunk_tokens) if tokens else 0.0

    def room_tokens(self, draft_config: DraftConfig, batch: int) -> int:
        """Return how many prompt tokens an engine step has room for beside a batch that decodes."""
        decoding = batch * draft_config.verify_tokens if self.mixes else 0
        return max(int(self.chunk_tokens) - decoding, 1)

    def mixed_s(
        self, draft_config: DraftConfig, batch: int, context_tokens: float, tokens: float, pairs: float
    ) -> float:
        """Return the seconds of an engine step that prefills `tokens`, beside a batch if the engine mixes."""
        law = self.coefficients
        if not self.mixes or not batch:
            return law.chunk_s(tokens, pairs) + law.drafter_reads_s(draft_config, self.when_off, tokens)
        table = self.of(draft_config)
        decode_s = float(table.fixed_s[batch]) + table.context_s_per_token * context_tokens
        return law.mixed_engine_step_s(draft_config, self.when_off, batch, decode_s, tokens, pairs)

    def switch_s(self, resume_cost: ResumeCost, tokens: float, squared_tokens: float) -> float:
        """Return what drafting costs before its first engine step, given the running contexts.

        draft_prefill: the drafter's one layer reads all contexts (their hidden states were kept: assumed).
        reprefill: target and drafter prefill everything again, in quarter-size chunks.
        """
        drafter_share = self.coefficients.drafter_kv_share
        if resume_cost == "draft_prefill":
            return drafter_share * self.prefill_s(tokens, squared_tokens)
        if resume_cost == "reprefill":
            chunk = self.chunk_tokens * REPREFILL_CHUNK_SHARE
            return (1 + drafter_share) * self.coefficients.prefill_s(tokens, squared_tokens, chunk)
        return 0.0

    def step_times(self, draft_configs: tuple[DraftConfig, ...]) -> StepTimeTable:
        """Return the same figures in the form that schedulers take and that a replay reads back."""
        tables = {
            draft_config: self.of(draft_config) for draft_config in dict.fromkeys((OFF, *draft_configs))
        }
        return StepTimeTable(
            draft_configs=tuple(
                DraftConfigTimes(
                    draft_config=draft_config,
                    fixed_s=tuple(table.fixed_s.tolist()),
                    kv_s_per_token=table.context_s_per_token,
                )
                for draft_config, table in tables.items()
            )
        )
