"""The acceptance of a measured run, as far as some of its rollouts tell: an average law, and how requests
differ.

Survivals are averages over the request-steps of those rollouts; how requests differ is fitted to the same
ones (tlt.sim.acceptance.fit), or, where that cannot be known from the run, none is taken to differ, which
is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from tlt.sim.acceptance.fit import Estimate, fit
from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.acceptance.observations import observed
from tlt.sim.acceptance.population import ALIKE, Population
from tlt.sim.acceptance.process import Acceptance
from tlt.traces.common.arrays import Ints
from tlt.traces.results.predicted_training import Figure
from tlt.traces.runs.runfolder import RunFolder
from tltsched.errors import InputError

# What of a fit is used: nothing, what a request keeps for its whole response, or all of it.
Detail = Literal["one mean", "spread", "spread and slope"]
BY_POSITION = ("position_spread", "position_slope", "start_excess")
Z95 = 1.96


class Differences(msgspec.Struct, frozen=True):
    """How requests differ, with the estimates; or why it is not known, and all are taken to be alike."""

    population: Population = ALIKE
    parameters: dict[str, Estimate] = {}
    unknown_because: str = ""

    def figures(self) -> dict[str, Figure]:
        """Return the parameters with their 95 % intervals."""
        return {
            name: Figure(
                value=each.value,
                interval=None
                if each.error is None
                else (each.value - Z95 * each.error, each.value + Z95 * each.error),
            )
            for name, each in self.parameters.items()
        }

    def only(self, detail: Detail) -> Population:
        """Return the population with so much of its detail."""
        if detail == "one mean":
            return ALIKE
        rest = {} if detail == "spread and slope" else dict.fromkeys(BY_POSITION, 0.0)
        return msgspec.structs.replace(self.population, **rest)


def differences(folders: Sequence[Path], steps: Ints) -> Differences:
    """Fit how requests differ to some rollouts, [n], of runs with one drafter."""
    try:
        fitted = fit([observed(folder, steps) for folder in folders])
    except InputError as error:
        return Differences(unknown_because=str(error))
    return Differences(fitted.population, fitted.parameters)


def acceptance_on(law: PerPosition, population: Population, folder: Path, steps: Ints) -> Acceptance:
    """Return the process whose averages over some rollouts, [n], of a run are those of the law."""
    responses = RunFolder(folder).responses()
    lengths = responses.loc[responses["step"].isin(steps), "response_tokens"].to_numpy(np.int64)
    return Acceptance(law, population, lengths)
