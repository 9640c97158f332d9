"""Acceptance as the engine models ask for it: survivals of requests, and the moments of what they emit."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from tlt.sim.acceptance.average import median_survival, sample_of, steps_per_token
from tlt.sim.acceptance.laws import AcceptanceLaw
from tlt.sim.acceptance.population import ALIKE, LengthScores, Population
from tlt.traces.common.arrays import Floats, Ints
from tltsched.draft_config import DraftConfig

# Whose survivals a law gives: the average over the request-steps of a run, as engines report it, or those of
# the median request.
SurvivalOf = Literal["run", "request"]


class Moments(msgspec.Struct, frozen=True):
    """Tokens that a request emits in one engine step, bonus included; of the shape of the exponents.

    survival: P(accepted drafts >= j), one more axis, [..., depth].
    """

    mean_tokens: Floats
    variance: Floats
    survival: Floats


class Acceptance:
    """A law, how requests differ, and the workload that the two meet on."""

    def __init__(
        self,
        law: AcceptanceLaw,
        population: Population = ALIKE,
        response_tokens: Ints | None = None,
        survival_of: SurvivalOf = "run",
        offset: Floats | None = None,
    ) -> None:
        """`response_tokens`: of all responses of the run, [n]; needed where requests differ.

        `offset`: what is known of each one's log exponent beforehand, [n].
        """
        assert population.is_uniform or response_tokens is not None, "averages are over a workload"
        lengths = np.empty(0, np.int64) if response_tokens is None else response_tokens
        self.law, self.population, self._survival_of = law, population, survival_of
        self.bins = population.bins(int(lengths.max(initial=1)))
        self._scores = LengthScores(lengths)
        averaged = survival_of == "run" and not population.is_uniform and len(lengths)
        self._sample = sample_of(population, lengths, offset) if averaged else None
        self._survival: dict[DraftConfig, Floats] = {}
        self._tables: dict[tuple[DraftConfig, ...], Floats] = {}
        self._alike: dict[tuple[DraftConfig, float], tuple[float, float, Floats]] = {}

    def is_of(self, law: AcceptanceLaw, population: Population, survival_of: SurvivalOf) -> bool:
        """Return whether it was made of these; the workload is not asked."""
        return (law, population, survival_of) == (self.law, self.population, self._survival_of)

    def exponents(self, response_tokens: Ints, group: Ints, rng: np.random.Generator) -> Floats:
        """Draw the exponents of requests with these lengths and groups, [n] each; [n, bins]."""
        if self.population.is_uniform:
            return np.ones((len(response_tokens), self.bins))
        return self.population.draw(self._scores.of(response_tokens), group, self.bins, rng)

    def base(self, draft_config: DraftConfig) -> Floats:
        """Return the survivals of a fresh drafter on the median request, [depth]."""
        if draft_config not in self._survival:
            survival = self.law.survival(draft_config)
            if self._sample is not None and draft_config.depth:
                observed = self.law.survival(self.law.observed_under(draft_config))
                survival = median_survival(survival, observed, self._sample)
            self._survival[draft_config] = survival
        return self._survival[draft_config]

    def survival(self, draft_config: DraftConfig, exponents: Floats, drafter_exponent: float) -> Floats:
        """Return P(accepted drafts >= j) of requests with these exponents, [..., depth]."""
        if not self.population.is_uniform:
            raised = exponents[..., None] * drafter_exponent
            return np.asarray(self.base(draft_config) ** raised, np.float64)
        return np.broadcast_to(
            self._of_all(draft_config, drafter_exponent)[2], (*exponents.shape, draft_config.depth)
        )

    def survivals(
        self, draft_configs: tuple[DraftConfig, ...], exponents: Floats, drafter_exponent: float
    ) -> Floats:
        """Return them under each draft configuration, 1 beyond its depth, [configs, ..., deepest]."""
        base = self._bases(draft_configs)
        of_each = base.reshape(len(base), *(1 for _ in exponents.shape), base.shape[1])
        if self.population.is_uniform:
            return np.broadcast_to(of_each**drafter_exponent, (len(base), *exponents.shape, base.shape[1]))
        return np.asarray(of_each ** (exponents[..., None] * drafter_exponent), np.float64)

    def _bases(self, draft_configs: tuple[DraftConfig, ...]) -> Floats:
        """Return what `base` says of each, [configs, deepest], 1 beyond its depth: powers of 0 take long."""
        if draft_configs not in self._tables:
            table = np.ones((len(draft_configs), max(each.depth for each in draft_configs)))
            for place, draft_config in enumerate(draft_configs):
                if draft_config.depth:
                    table[place, : draft_config.depth] = self.base(draft_config)
            self._tables[draft_configs] = table
        return self._tables[draft_configs]

    def _of_all(self, draft_config: DraftConfig, drafter_exponent: float) -> tuple[float, float, Floats]:
        """Return mean, variance and survivals where no requests differ."""
        key = (draft_config, drafter_exponent)
        if key not in self._alike:
            survival = self.base(draft_config) ** drafter_exponent
            mean, variance = moments_of(survival)
            self._alike[key] = (float(mean), float(variance), survival)
        return self._alike[key]

    def moments(self, draft_config: DraftConfig, exponents: Floats, drafter_exponent: float) -> Moments:
        """Return mean and variance of emitted tokens, and survivals, of requests with these exponents."""
        shape = exponents.shape
        if draft_config.depth == 0:
            return Moments(np.ones(shape), np.zeros(shape), np.empty((*shape, 0)))
        survival = self.survival(draft_config, exponents, drafter_exponent)
        if not self.population.is_uniform:
            return Moments(*moments_of(survival), survival)
        mean_tokens, variance_tokens, _ = self._of_all(draft_config, drafter_exponent)
        return Moments(np.full(shape, mean_tokens), np.full(shape, variance_tokens), survival)

    def engine_steps_per_token(
        self, draft_config: DraftConfig, response_tokens: Ints, drafter_exponent: float
    ) -> Floats:
        """Return the mean engine steps that responses of these lengths, [n], take for a token; [n]."""
        base = self.base(draft_config) ** drafter_exponent
        known, of = np.unique(response_tokens, return_inverse=True)
        steps = steps_per_token(base, self.population, known, self._scores.of(known), self.bins)
        return np.asarray(steps[of], np.float64)


def moments_of(survival: Floats) -> tuple[Floats, Floats]:
    """Return mean and variance of 1 + A from P(A >= j): E[A] = sum s_j, E[A^2] = sum (2 j - 1) s_j."""
    odd = 2.0 * np.arange(1, survival.shape[-1] + 1) - 1.0
    mean = survival.sum(axis=-1)
    return 1.0 + mean, np.maximum((survival * odd).sum(axis=-1) - mean**2, 0.0)
