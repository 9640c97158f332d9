"""How far the differences of requests in acceptance may be off, and what follows: drawn and probed.

Where nobody measured them they are the prior's (tlt.sim.acceptance.prior), which is assumed, with its
error; a fitted law has errors of its own; and what a user sets is taken to be known.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from tlt.sim.acceptance.fitted import load_law
from tlt.sim.acceptance.prior import SLOPE_ERROR, SPREAD_ERROR
from tlt.sim.simulation import Simulation
from tlt.traces.common.arrays import Floats

DIFFERENCES = ("spread", "slope")  # of acceptance between requests, and along a response


class DifferencesError(msgspec.Struct, frozen=True, order=True):
    """Standard deviations of the log of the spread, and of the slope; and what they rest on."""

    spread: float = 0.0
    slope: float = 0.0
    source: str = ""

    def parts(self) -> set[str]:
        """Return which of DIFFERENCES have an error."""
        return {name for name in DIFFERENCES if getattr(self, name)}

    def draw_with_fit(self, draws: int, rng: np.random.Generator) -> Floats:
        """Return moves, [1 + draws, 2], of the spread (a share) and the slope; the first row is the fit."""
        normal = rng.standard_normal((draws, 2))
        moves = np.column_stack([np.expm1(self.spread * normal[:, 0]), self.slope * normal[:, 1]])
        return np.vstack([np.zeros((1, 2)), moves])

    def told(self) -> str:
        """Return what to add to the source of an error."""
        return f"; how requests differ in acceptance: {self.source}" if self.source else ""


def differences_error(simulation: Simulation) -> DifferencesError:
    """Return how far the differences of a simulation may be off; nothing if it never drafts."""
    acceptance = simulation.config.acceptance
    if not simulation.drafts or acceptance.population.is_uniform:
        return DifferencesError()
    if acceptance.law:
        found = load_law(acceptance.law).parameters
        spread, slope = found["request_spread"], found["position_slope"]
        share = (spread.error or 0.0) / spread.value if spread.value else 0.0
        return DifferencesError(share, slope.error or 0.0, f"fitted, {acceptance.law}")
    if not acceptance.assumes_differences:
        return DifferencesError()
    return DifferencesError(SPREAD_ERROR, SLOPE_ERROR, "assumed (acceptance.request_spread)")


def widest(simulations: Iterable[Simulation]) -> DifferencesError:
    """Return the largest error of some simulations on one workload: those that draft share one law."""
    return max(map(differences_error, simulations))


def differing(simulation: Simulation, spread: float, slope: float) -> Simulation:
    """Return a simulation with a spread larger by a share and a slope larger by an amount."""
    acceptance = simulation.config.acceptance
    other = msgspec.structs.replace(
        acceptance,
        request_spread=acceptance.request_spread * (1.0 + spread),
        position_slope=acceptance.position_slope + slope,
    )
    return simulation.changed(msgspec.structs.replace(simulation.config, acceptance=other))
