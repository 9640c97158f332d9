"""A running estimate of how many drafted tokens are accepted, by position for chains and by arm for trees."""

from __future__ import annotations

from math import exp

from tltsched.draft_config import Arm
from tltsched.policies.base import Outcome


class AcceptanceEstimate:
    """Exponential averages over request-cycles, starting from a prior.

    Chains share one estimate. For each position j it averages the share of request-cycles in which position
    j was accepted, and the share in which the position before it was; their ratio is the conditional rate
    c_j, and the survival of position j is c_0 * ... * c_j. A position that the arms in use no longer reach
    keeps its conditional rate, while its survival follows the positions before it. Positions that were never
    drafted have the rate of the last one that was.

    A tree has its own average of the accepted length. Before it has run it is worth its prior, or else as
    much as a chain of its depth, which a tree contains.

    Weight: an epoch of n request-cycles replaces a share 1 - exp(-n / memory_cycles) of what was known.
    """

    def __init__(
        self, survival_prior: tuple[float, ...], tree_prior: dict[Arm, float], memory_cycles: float
    ) -> None:
        self._accepted = list(survival_prior)
        self._reached = [1.0, *survival_prior[:-1]]
        self._positions_seen = 0
        self._tree_length = dict(tree_prior)
        self._memory_cycles = memory_cycles
        # Tokens per cycle of a chain, by depth, as far as it was asked for since the last observation.
        self._chain_tokens = [1.0]
        self._chain_survival = 1.0

    def observe(self, outcome: Outcome) -> None:
        """Take in a drafting epoch; positions that `accepted_by_position` leaves out accepted nothing."""
        keep = exp(-outcome.request_cycles / self._memory_cycles)
        accepted, arm = outcome.accepted_by_position, outcome.arm
        if not arm.is_chain:
            length = 1 + sum(accepted) / outcome.request_cycles
            self._tree_length[arm] = keep * self.tokens_per_cycle(arm) + (1 - keep) * length
            return
        for position in range(len(self._accepted), arm.depth):
            # Reached for the first time: it starts at the rate that was extrapolated to it.
            rate = self._rate(position)
            self._reached.append(self._accepted[-1])
            self._accepted.append(self._accepted[-1] * rate)
        reached = 1.0
        for position in range(arm.depth):
            share = accepted[position] / outcome.request_cycles if position < len(accepted) else 0.0
            self._accepted[position] = keep * self._accepted[position] + (1 - keep) * share
            self._reached[position] = keep * self._reached[position] + (1 - keep) * reached
            reached = share
        self._positions_seen = max(self._positions_seen, arm.depth)
        self._chain_tokens, self._chain_survival = [1.0], 1.0

    def tokens_per_cycle(self, arm: Arm) -> float:
        """Return the expected tokens that one request emits in a cycle, the bonus token included."""
        if not arm.is_chain and arm in self._tree_length:
            return self._tree_length[arm]
        tokens = self._chain_tokens
        while len(tokens) <= arm.depth:
            self._chain_survival *= self._rate(len(tokens) - 1)
            tokens.append(tokens[-1] + self._chain_survival)
        return tokens[arm.depth]

    def _rate(self, position: int) -> float:
        """Return the chance that a position is accepted, given that the one before it was."""
        last = (self._positions_seen or len(self._accepted)) - 1
        position = min(position, last)
        reached = self._reached[position]
        return min(1.0, self._accepted[position] / reached) if reached > 0 else 0.0
