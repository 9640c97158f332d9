"""Drafts out of earlier responses: suffix trees, n-grams, the last epoch's answer. No head, no GPU time.

Law of acceptance: in an engine step a request has a match in the history with probability h; given one, the
drafts up to position j are all accepted with probability s_j. So P(accepted >= j) = h s_j, and an engine step
verifies 1 + h K tokens of a request on average. Nothing else is paid: an engine step lasts G(batch (1 + h K))
plus the cache's part (sim.steptimes.law, without its drafting terms) plus `lookup_s`; at K = 0 the engine
runs plain, since there is no drafter to keep in step or to rebuild.

Over steps: in the first epoch over the prompts there is no earlier response. Either nothing is drafted then,
or the other responses to the prompt serve, with an exponent on P (as an aged head has, sim.model.drafter)
that makes the first position as likely as `group_hit_rate` says. The tokens verified are still counted at h,
which is too many there.

Reuse of a prefix (SPEC-RL, arXiv 2509.23232) is another use of the same history and needs no drafts: from the
second epoch on the prefill of a request also reads its last response, of which it keeps a share. What is left
is generated as before. One share serves all responses; the original is lossless only without lenience.

A batch has one draft configuration, so a larger budget for long responses (DAS) is a larger K for the small
batches that only they are left in: a table by batch. Systems: DAS (arXiv 2511.13841), RhymeRL (2508.18588),
Seer (2511.14617).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.model.drafter import Drafter, DrafterConfig, HistoryConfig
from tlt.sim.model.engines.running_batch import Limits
from tlt.sim.steptimes.law import padded, without_graph
from tlt.sim.steptimes.tables import DraftConfigCost, StepCosts
from tlt.traces.common.arrays import Floats
from tltsched.commands import ResumeCost
from tltsched.draft_config import DraftConfig


class HistoryLaw(msgspec.Struct, frozen=True):
    """Acceptance of chains out of the history, engine steps without a match included."""

    config: HistoryConfig
    where: str = "earlier responses"

    @property
    def source(self) -> str:
        """Return one line that says what the law rests on."""
        return f"assumed: drafts out of {self.where}, a match in {self.config.hit_rate:.0%} of engine steps"

    def survival(self, draft_config: DraftConfig) -> Floats:
        """Return h s_j for j = 1..depth, [depth]; s goes on geometrically past the last position given."""
        return self.config.hit_rate * self._given_a_match.survival(draft_config)

    def observed_under(self, draft_config: DraftConfig) -> DraftConfig:
        """Return the chain of all positions given."""
        return self._given_a_match.observed_under(draft_config)

    def extrapolates(self, draft_config: DraftConfig) -> bool:
        """Return whether the draft configuration is deeper than the positions given."""
        return self._given_a_match.extrapolates(draft_config)

    @property
    def _given_a_match(self) -> PerPosition:
        return PerPosition(self.config.survival_by_position)


class HistoryCosts(StepCosts):
    """Step times where drafting is free and only requests with a match have drafts to verify."""

    def __init__(self, costs: StepCosts, config: HistoryConfig) -> None:
        """Take the engine of `costs`, without its drafter."""
        super().__init__(
            costs.coefficients, "not_configured", costs.max_requests, costs.chunk_tokens,
            costs.graph_max_requests, costs.eager_step_s, costs.mixes,
        )  # fmt: skip
        self._config = config

    def of(self, draft_config: DraftConfig) -> DraftConfigCost:
        """Return the table of a draft configuration."""
        if draft_config.depth == 0 or draft_config in self._tables:
            return super().of(draft_config)
        law = self.coefficients
        drafts = self._config.hit_rate * (draft_config.verify_tokens - 1)
        tokens = padded(np.arange(self.max_requests + 1, dtype=np.float64), law.graph_batches) * (1 + drafts)
        fixed_s = law.target_s(tokens) + self._config.lookup_s + law.eager_part_s(tokens)
        batch = np.arange(self.max_requests + 1, dtype=np.float64)
        fixed_s = fixed_s + self.eager_step_s * without_graph(batch, self.graph_max_requests or None)
        per_token = law.kv_s_per_token + law.kv_s_per_verified_token * drafts
        self._tables[draft_config] = DraftConfigCost(fixed_s, per_token)
        return self._tables[draft_config]

    def switch_s(self, resume_cost: ResumeCost, tokens: float, squared_tokens: float) -> float:
        """Return 0: no drafter has a cache to rebuild."""
        del resume_cost, tokens, squared_tokens
        return 0.0


class HistoryDrafter(Drafter):
    """Serves from the step on in which there is history, or from the start out of the group."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self._steps_begun = 0

    def begin_step(self) -> None:
        """Take up what is known of the prompts of this step."""
        super().begin_step()
        history = self.config.model_free or self.config.history
        first_epoch = self._steps_begun < history.first_epoch_steps
        self._steps_begun += 1
        self.version = -1 if first_epoch and not history.group_hit_rate else 0
        self.exponent = group_exponent(history) if first_epoch and history.group_hit_rate else 1.0
        self.age_steps = 0 if first_epoch else history.first_epoch_steps

    def policy_updated(self) -> None:
        """Nothing drifts: the survivals given are those of a history as old as an epoch."""


def group_exponent(config: HistoryConfig) -> float:
    """Return e with (h s_1)^e = g s_1, where g is the hit rate out of the group alone."""
    first = config.survival_by_position[0]
    whole = config.hit_rate * first
    if first <= 0.0 or whole >= 1.0:
        return 1.0
    return math.log(config.group_hit_rate * first) / math.log(whole)


def reusing(limits: Limits, config: HistoryConfig) -> Limits:
    """Return the limits of engines that also verify whole earlier responses."""
    return msgspec.structs.replace(
        limits, reused_share=config.reuse_prefix_share, reused_from_step=config.first_epoch_steps
    )


def drafter_of(config: DrafterConfig) -> Drafter:
    """Return the drafter of that kind."""
    return HistoryDrafter(config) if config.model_free else Drafter(config)
