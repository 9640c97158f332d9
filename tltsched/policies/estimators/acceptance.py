"""A running estimate of how many drafts are accepted: by position for chains, a length for each tree."""

from __future__ import annotations

from math import exp, isfinite

from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import Outcome


def require_memory(request_steps: float) -> None:
    """Raise InputError unless an estimate may forget over so many request-steps."""
    if not (isfinite(request_steps) and request_steps > 0):
        raise InputError("memory_request_steps", request_steps, "above 0", "give a number of request-steps")


class AcceptanceEstimate:
    """Exponential averages over request-steps, starting from a prior.

    Chains share one estimate. For each position j it averages the share of request-steps in which position
    j was accepted, and the share in which the position before it was; their ratio is the conditional rate
    c_j, and the survival of position j is c_0 * ... * c_j. A position that the draft configurations in use no
    longer reach keeps its conditional rate, while its survival follows the positions before it. Positions
    that were never drafted have the rate of the last one that was.

    A tree has its own average of the accepted length. Before it has run it is worth its prior, or else as
    much as a chain of its depth, which a tree contains.

    Weight: a decision interval of n request-steps replaces a share 1 - exp(-n / memory_request_steps) of what
    was known.
    """

    def __init__(
        self,
        survival_prior: tuple[float, ...],
        tree_prior: dict[DraftConfig, float],
        memory_request_steps: float,
    ) -> None:
        self._accepted = list(survival_prior)
        self._reached = [1.0, *survival_prior[:-1]]
        self._positions_seen = 0
        self._tree_length = dict(tree_prior)
        self._memory_request_steps = memory_request_steps
        # Tokens per engine step of a chain, by depth, as far as it was asked for since the last observation.
        self._chain_tokens = [1.0]
        self._chain_survival = 1.0

    def observe(self, outcome: Outcome) -> None:
        """Take in a decision interval that drafted; positions it leaves out accepted nothing."""
        keep = exp(-outcome.request_steps / self._memory_request_steps)
        accepted, draft_config = outcome.accepted_by_position, outcome.draft_config
        if not draft_config.is_chain:
            length = 1 + sum(accepted) / outcome.request_steps
            self._tree_length[draft_config] = (
                keep * self.tokens_per_engine_step(draft_config) + (1 - keep) * length
            )
            return
        for position in range(len(self._accepted), draft_config.depth):
            # Reached for the first time: it starts at the rate that was extrapolated to it.
            rate = self._rate(position)
            self._reached.append(self._accepted[-1])
            self._accepted.append(self._accepted[-1] * rate)
        reached = 1.0
        for position in range(draft_config.depth):
            share = accepted[position] / outcome.request_steps if position < len(accepted) else 0.0
            self._accepted[position] = keep * self._accepted[position] + (1 - keep) * share
            self._reached[position] = keep * self._reached[position] + (1 - keep) * reached
            reached = share
        self._positions_seen = max(self._positions_seen, draft_config.depth)
        self._chain_tokens, self._chain_survival = [1.0], 1.0

    def tokens_per_engine_step(self, draft_config: DraftConfig) -> float:
        """Return the expected tokens that one request emits in an engine step, the bonus token included."""
        if not draft_config.is_chain and draft_config in self._tree_length:
            return self._tree_length[draft_config]
        tokens = self._chain_tokens
        while len(tokens) <= draft_config.depth:
            self._chain_survival *= self._rate(len(tokens) - 1)
            tokens.append(tokens[-1] + self._chain_survival)
        return tokens[draft_config.depth]

    def _rate(self, position: int) -> float:
        """Return the chance that a position is accepted, given that the one before it was."""
        last = (self._positions_seen or len(self._accepted)) - 1
        position = min(position, last)
        reached = self._reached[position]
        return min(1.0, self._accepted[position] / reached) if reached > 0 else 0.0
