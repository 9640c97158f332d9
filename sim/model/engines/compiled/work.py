"""What engines need to plan under any draft configuration, and where they do. They may take turns in it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.engines.compiled.memory import Memory
from tlt.sim.model.engines.compiled.rollout import Tables
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import from_tokens
from tltsched.draft_config import OFF, DraftConfig


class Work:
    """Tables by draft configuration, the memory of a plan, and survivals of the requests of a rollout."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance) -> None:
        self._costs, self._acceptance = costs, acceptance
        self.edges: Ints = from_tokens(np.arange(1, acceptance.bins)).astype(np.int64)
        self.places: dict[DraftConfig, int] = {}  # of draft configurations in arrays, [configs, ...]
        self._tables: dict[int, Tables] = {}  # as they are, by generator
        self.memory = Memory(0, acceptance.bins, 0)
        self.know_configs((OFF,))

    def know_configs(self, draft_configs: Collection[DraftConfig]) -> None:
        """Give draft configurations a place; those that have one keep it."""
        if all(draft_config in self.places for draft_config in draft_configs):
            return
        known = dict.fromkeys((*self.places, *draft_configs))
        self.places = {draft_config: place for place, draft_config in enumerate(known)}
        costs = [self._costs.of(draft_config) for draft_config in self.places]
        self.draft_configs = tuple(self.places)
        self.depths = np.array([draft_config.depth for draft_config in self.places], np.int64)
        self.deepest = int(self.depths.max())
        self._fixed_s = np.array([cost.fixed_s for cost in costs])
        self._kv_s = np.array([cost.context_s_per_token for cost in costs])
        self._make_room(self.memory.requests)

    def _make_room(self, requests: int) -> None:
        """Make room for so many requests; survivals have to be filled in anew."""
        bins = self._acceptance.bins
        self.memory = Memory(requests, bins, self.deepest)
        self.survival: Floats = np.zeros((len(self.places), requests, bins, self.deepest))
        self._known = np.zeros(requests, bool)  # of which requests they are filled in
        self._tables = {}

    def tables(self, state_address: int) -> Tables:
        """Return them for compiled code that draws from a generator's state."""
        if state_address not in self._tables:
            self._tables[state_address] = Tables(
                state_address, self.memory.ints, self.memory.floats, self.survival, self.depths,
                self._fixed_s, self._kv_s, self.edges,
            )  # fmt: skip
        return self._tables[state_address]

    def forget(self) -> None:
        """Work out survivals anew, of other requests or under another exponent of the drafter."""
        self._known[:] = False

    def fit(self, requests: int) -> None:
        """Have room for so many requests."""
        if requests > self.memory.requests:
            self._make_room(max(2 * self.memory.requests, requests))

    def fill(self, running: Ints, exponent: Floats, drafter_exponent: float) -> None:
        """Have survivals of the running requests, [batch], under any draft configuration.

        exponent: of all requests, [n, bins].
        """
        known = self._known[running]
        if not known.all():
            rows = running[~known]
            self.survival[:, rows] = self._acceptance.survivals(
                self.draft_configs, exponent[rows], drafter_exponent
            )
            self._known[rows] = True
