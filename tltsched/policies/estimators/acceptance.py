"""A running estimate of how many drafts are accepted: by position for chains, a length for each tree."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isfinite

from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError


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
        self.accepted = list(survival_prior)
        self.reached = [1.0, *survival_prior[:-1]]
        self.positions_seen = 0
        self.tree_length = dict(tree_prior)
        self.memory_request_steps = memory_request_steps
        # Tokens per engine step and survival of a chain, by depth, as far as they were asked for since.
        self._chain_tokens = [1.0]
        self._chain_survival: list[float] = []

    def observe(self, draft_config: DraftConfig, request_steps: int, shares: tuple[float, ...]) -> None:
        """Take in a decision interval that drafted.

        `shares` of its request-steps had the drafts up to each position accepted; positions that are left
        out had none. Of a tree only their sum counts, the accepted drafts of a request-step.
        """
        keep = exp(-request_steps / self.memory_request_steps)
        if not draft_config.is_chain:
            self.tree_length[draft_config] = keep * self.tokens_per_engine_step(draft_config) + (1 - keep) * (
                1 + sum(shares)
            )
            return
        for position in range(len(self.accepted), draft_config.depth):
            # Reached for the first time: it starts at the rate that was extrapolated to it.
            rate = self._rate(position)
            self.reached.append(self.accepted[-1])
            self.accepted.append(self.accepted[-1] * rate)
        shares += (0.0,) * (draft_config.depth - len(shares))
        fade(self.accepted, self.reached, keep, shares[: draft_config.depth])
        self.positions_seen = max(self.positions_seen, draft_config.depth)
        self._chain_tokens, self._chain_survival = [1.0], []

    def know(self, accepted: list[float], reached: list[float], positions_seen: int) -> None:
        """Take what a driver has worked out of chains with the functions below."""
        self.accepted, self.reached, self.positions_seen = accepted, reached, positions_seen
        self._chain_tokens, self._chain_survival = [1.0], []

    def as_tree(self, draft_config: DraftConfig) -> bool:
        """Return whether a draft configuration has an accepted length of its own."""
        return not draft_config.is_chain and draft_config in self.tree_length

    def tokens_per_engine_step(self, draft_config: DraftConfig) -> float:
        """Return the expected tokens that one request emits in an engine step, the bonus token included."""
        if self.as_tree(draft_config):
            return self.tree_length[draft_config]
        self.survival(draft_config.depth)
        return self._chain_tokens[draft_config.depth]

    def survival(self, depth: int) -> list[float]:
        """Return the chance that the drafts of a chain up to each position are all accepted, [depth]."""
        tokens, survival = self._chain_tokens, self._chain_survival
        while len(survival) < depth:
            survival.append((survival[-1] if survival else 1.0) * self._rate(len(survival)))
            tokens.append(tokens[-1] + survival[-1])
        return survival[:depth]

    def _rate(self, position: int) -> float:
        """Return the chance that a position is accepted, given that the one before it was."""
        return rate_at(self.accepted, self.reached, self.positions_seen, position)


# Functions of numbers and of rows of them, which a driver may compile as they are.


def fade(accepted: list[float], reached: list[float], keep: float, shares: Sequence[float]) -> None:
    """Let the shares of an interval, a position each, replace a share 1 - keep of what was known."""
    before = 1.0
    for position in range(len(shares)):
        share = shares[position]
        accepted[position] = keep * accepted[position] + (1 - keep) * share
        reached[position] = keep * reached[position] + (1 - keep) * before
        before = share


def rate_at(accepted: list[float], reached: list[float], positions_seen: int, position: int) -> float:
    """Return the chance that a position is accepted, given that the one before it was."""
    at = min(position, (positions_seen or len(accepted)) - 1)
    return min(1.0, accepted[at] / reached[at]) if reached[at] > 0 else 0.0
