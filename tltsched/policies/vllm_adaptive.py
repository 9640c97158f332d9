"""vLLM's adaptive verification: admit the likeliest drafts while the next one still pays.

Rule: the draft at position j of request r survives with a = c_1 * ... * c_j. The B likeliest drafts of the
batch are verified, with B from 0 on such that (R + sum of the admitted a) / T(R + B) is largest; the smallest
of equal ones. T was profiled at start with 8,192 tokens of context a request.
Here all requests of a batch share one estimate of acceptance, so drafts are admitted position by position: R
of them at position 1, then R at position 2, and so on. Inside a position the objective is a ratio of two
linear functions of B, which rises or falls throughout, so the best B is a whole number of positions and the
rule comes down to a choice of K.
Two things differ from the original: the confidences are measured acceptance rates rather than what the
drafter says of each token, and a level of K pays for its own drafting passes only, where the drafter that
vLLM has the rule for (DSpark) always drafts all positions in one pass.
Source: vLLM 0.32, v1/worker/gpu/spec_decode/adaptive_verification.py.
"""

from __future__ import annotations

from typing import ClassVar

from tltsched.commands import ResumeCost
from tltsched.draft_config import DraftConfig, chain
from tltsched.policies.base import (
    Batch,
    Choice,
    Outcome,
    PolicyConfig,
    Rng,
    StepTimes,
    WhenOff,
    require_at_least,
    required_times,
)
from tltsched.policies.estimators.acceptance import AcceptanceEstimate, require_memory


class VllmAdaptiveConfig(PolicyConfig, tag="vllm_adaptive", frozen=True):
    """Verify as many positions as pay at the profiled context. Needs calibrated times of K = 0 to max_k."""

    needs_times: ClassVar[bool] = True

    max_k: int = 8
    """Longest draft (assumed)."""
    profile_context_tokens: int = 8192
    """Context of each request in the profile (vLLM's default)."""
    memory_request_steps: float = 200.0
    """Request-steps over which the acceptance estimate forgets (assumed). It begins at 1, as in vLLM."""
    decision_engine_steps: int = 16
    """Engine steps between two decisions (vLLM decides in each)."""

    def __post_init__(self) -> None:
        require_at_least(self, {"max_k": 1, "profile_context_tokens": 0, "decision_engine_steps": 1})
        require_memory(self.memory_request_steps)

    def build(self, rng: Rng, times: StepTimes | None) -> VllmAdaptivePolicy:  # noqa: ARG002 (no chance in it)
        """Return the policy; raises InputError if `times` is missing or lacks a draft configuration."""
        return VllmAdaptivePolicy(self, times)


class VllmAdaptivePolicy:
    """Scores every level at each decision; learns acceptance from every drafting decision interval."""

    def __init__(self, config: VllmAdaptiveConfig, times: StepTimes | None) -> None:
        self.when_off: WhenOff = "k0"
        self.resume_cost: ResumeCost = "none"
        self.draft_configs: tuple[DraftConfig, ...] = tuple(chain(k) for k in range(config.max_k + 1))
        self._config = config
        self._times = required_times("vllm_adaptive", times, self.draft_configs)
        self._acceptance = AcceptanceEstimate((1.0,) * config.max_k, {}, config.memory_request_steps)

    def begin_rollout(self) -> None:
        """Nothing to forget: estimates carry over."""

    def choose(self, batch: Batch) -> Choice:
        """Return the level of the highest expected throughput at the profiled context."""
        profiled = Batch(batch.requests, batch.requests * self._config.profile_context_tokens)
        scores = [
            self._acceptance.tokens_per_engine_step(draft_config)
            / self._times.engine_step_s(draft_config, profiled)
            for draft_config in self.draft_configs
        ]
        return Choice(self.draft_configs[scores.index(max(scores))], self._config.decision_engine_steps)

    def observe(self, outcome: Outcome) -> None:
        """Update the acceptance estimate; decision intervals without drafts say nothing about it."""
        if outcome.draft_config.depth > 0:
            self._acceptance.observe(outcome.draft_config, outcome.request_steps, outcome.shares())
