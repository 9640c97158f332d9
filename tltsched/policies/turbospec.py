"""TurboSpec's goodput (first called SmartSpec): one acceptance rate, one linear law of time, the best K.

Rule: K in 0 .. max_k maximises batch * E[K] / T, where every draft is taken to be accepted with the same
probability a, so that E[K] = (1 - a^(K+1)) / (1 - a) with the bonus token, and an engine step is taken to
last
    T = c_context * context + c_tokens * batch * (K + 1) + c_pass * K + c_0.
a is a moving average over all drafts that were judged: those whose predecessors were accepted. The c are a
least-squares fit to the step times, c_pass being the drafter's part of it.
It differs from `goodput` in what it does not know: how acceptance falls with the position, where the cost of
tokens bends, and what a switch costs.
Source: arXiv 2406.14066 (v1 SmartSpec, v3 TurboSpec).
"""

from __future__ import annotations

from math import exp
from typing import ClassVar

from tltsched.commands import ResumeCost
from tltsched.draft_config import DraftConfig, chain
from tltsched.errors import InputError
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
from tltsched.policies.estimators.acceptance import require_memory

# Where the linear law is fitted (assumed: batches of decode, contexts of reasoning responses).
FIT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FIT_CONTEXTS = (1024, 8192)


class TurboSpecConfig(PolicyConfig, tag="turbospec", frozen=True):
    """Maximise goodput under a geometric acceptance. Needs calibrated step times of K = 0 to max_k."""

    needs_times: ClassVar[bool] = True

    max_k: int = 8
    """Longest draft (assumed)."""
    rate_prior: float = 0.7
    """Acceptance of a draft until it is measured (assumed)."""
    memory_request_steps: float = 2000.0
    """Request-steps over which the moving average forgets (assumed)."""
    decision_engine_steps: int = 16
    """Engine steps between two decisions (the original decides in each)."""

    def __post_init__(self) -> None:
        require_at_least(self, {"max_k": 1, "decision_engine_steps": 1})
        if not 0 <= self.rate_prior <= 1:
            raise InputError("rate_prior", self.rate_prior, "0 to 1", "give a probability")
        require_memory(self.memory_request_steps)

    def build(self, rng: Rng, times: StepTimes | None) -> TurboSpecPolicy:  # noqa: ARG002 (no chance in it)
        """Return the policy; raises InputError if `times` is missing or lacks a draft configuration."""
        return TurboSpecPolicy(self, times)


class TurboSpecPolicy:
    """Scores every K at each decision; learns one acceptance rate from every drafting decision interval."""

    def __init__(self, config: TurboSpecConfig, times: StepTimes | None) -> None:
        self.when_off: WhenOff = "k0"
        self.resume_cost: ResumeCost = "none"
        self.draft_configs: tuple[DraftConfig, ...] = tuple(chain(k) for k in range(config.max_k + 1))
        self.rate = config.rate_prior
        self.law = LinearLaw(self.draft_configs, required_times("turbospec", times, self.draft_configs))
        self._config = config

    def begin_rollout(self) -> None:
        """Nothing to forget: the acceptance rate carries over."""

    def choose(self, batch: Batch) -> Choice:
        """Return the K of the highest goodput, the shortest of equal ones."""
        goodput = [
            self._tokens(draft_config.depth) / self.law.engine_step_s(draft_config, batch)
            for draft_config in self.draft_configs
        ]
        return Choice(self.draft_configs[goodput.index(max(goodput))], self._config.decision_engine_steps)

    def observe(self, outcome: Outcome) -> None:
        """Move the acceptance rate towards that of the drafts that were judged."""
        if outcome.draft_config.depth == 0:
            return
        accepted = (*outcome.accepted_by_position, *(0,) * outcome.draft_config.depth)[
            : outcome.draft_config.depth
        ]
        judged = outcome.request_steps + sum(accepted[:-1])
        keep = exp(-outcome.request_steps / self._config.memory_request_steps)
        self.rate = keep * self.rate + (1 - keep) * min(1.0, sum(accepted) / judged)

    def _tokens(self, k: int) -> float:
        return sum(self.rate**position for position in range(k + 1))


class LinearLaw:
    """Seconds of an engine step, linear in context, tokens read, draft passes; fitted to step times."""

    def __init__(self, draft_configs: tuple[DraftConfig, ...], times: StepTimes) -> None:
        points = [
            (draft_config, Batch(requests, requests * context))
            for draft_config in draft_configs
            for requests in FIT_BATCHES
            for context in FIT_CONTEXTS
        ]
        seconds = [times.engine_step_s(draft_config, batch) for draft_config, batch in points]
        self.coefficients = least_squares(
            [_features(draft_config, batch) for draft_config, batch in points], seconds
        )
        self._least_s = min(seconds)

    def engine_step_s(self, draft_config: DraftConfig, batch: Batch) -> float:
        """Return the predicted seconds; never less than the fastest engine step that was fitted."""
        features = _features(draft_config, batch)
        law_s = sum(c * x for c, x in zip(self.coefficients, features, strict=True))
        return max(law_s, self._least_s)


def _features(draft_config: DraftConfig, batch: Batch) -> tuple[float, ...]:
    """Return context, tokens that the target reads, draft passes and one."""
    return batch.context_tokens, batch.requests * draft_config.verify_tokens, draft_config.depth, 1.0


def least_squares(rows: list[tuple[float, ...]], values: list[float]) -> list[float]:
    """Return the c that minimise the squares of rows c - values; the columns must be independent."""
    columns = range(len(rows[0]))
    scale = [max(abs(row[i]) for row in rows) for i in columns]  # so that pivots compare
    scaled = [[row[i] / scale[i] for i in columns] for row in rows]
    matrix = [
        [*(sum(row[i] * row[j] for row in scaled) for j in columns),
         sum(row[i] * value for row, value in zip(scaled, values, strict=True))]
        for i in columns
    ]  # fmt: skip
    for i in columns:
        pivot = max(range(i, len(matrix)), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for k in columns:
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [low - factor * top for low, top in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][-1] / matrix[i][i] / scale[i] for i in columns]
