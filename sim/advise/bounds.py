"""How far any schedule could go: a lower bound on the time of a rollout whose lengths are known.

No rollout ends before its longest request has been generated on an engine of its own, nor before the workers
have done all the work at the cheapest price: a token of a request in a batch costs no less than the smallest
share of an engine step, F(b) / b over all batches b, and what reading its own context takes. Both hold for
every placement, order and number of moves. Prefill is left out, so the bound is below what can be reached.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.sim.model.acceptance import Acceptance
from tlt.sim.model.requests import StepRequests
from tlt.sim.steptimes.tables import StepCosts
from tltsched.draft_config import OFF, DraftConfig


class RolloutBound(msgspec.Struct, frozen=True):
    """Seconds that no schedule goes below, and why: the larger of the two."""

    longest_s: float  # the longest request alone
    work_s: float  # all work, spread evenly over the workers

    @property
    def seconds(self) -> float:
        """Return the bound."""
        return max(self.longest_s, self.work_s)


def clairvoyant_bound(
    requests: StepRequests,
    costs: StepCosts,
    workers: int,
    draft_configs: tuple[DraftConfig, ...] = (OFF,),
    acceptance: Acceptance | None = None,
    drafter_exponent: float = 1.0,
) -> RolloutBound:
    """Return the bound of one rollout in which every token may be generated under the cheapest
    of `draft_configs`.

    With drafts an engine step yields the mean tokens of the acceptance law, so the bound is one of
    expectations. `acceptance` may be None if none drafts.
    """
    tokens = requests.response_tokens.astype(np.float64) - 1.0  # a prefill emits the first
    prompts = requests.prompt_tokens.astype(np.float64)
    # sum of a request's contexts over its tokens, as if each were decoded by itself
    contexts = tokens * (prompts + 1.0) + tokens * (tokens - 1.0) / 2.0
    alone_s, shared_s, context_s = [], [], []  # of a token and of a token of context, one each
    for draft_config in draft_configs:
        price = costs.of(draft_config)
        yielded = _tokens_per_engine_step(draft_config, acceptance, drafter_exponent)
        fixed_s = price.fixed_s[1:]
        alone_s.append(float(fixed_s[0]) / yielded)
        shared_s.append(float((fixed_s / np.arange(1, len(fixed_s) + 1)).min()) / yielded)
        context_s.append(price.context_s_per_token / yielded)
    read_s = contexts * min(context_s)
    return RolloutBound(
        longest_s=float((tokens * min(alone_s) + read_s).max(initial=0.0)),
        work_s=float((tokens * min(shared_s) + read_s).sum()) / workers,
    )


def _tokens_per_engine_step(
    draft_config: DraftConfig, acceptance: Acceptance | None, exponent: float
) -> float:
    """Return the mean tokens of an engine step, the bonus token counted."""
    if draft_config.depth == 0:
        return 1.0
    assert acceptance is not None, "drafts need an acceptance law"
    return float(acceptance.moments(draft_config, np.ones(1), exponent).mean_tokens[0])
