"""The acceptance of a measured run, as far as some of its rollouts tell: an average law, and how requests
differ.

Survivals are averages over the request-steps of those rollouts; how requests differ is fitted to the same
ones (tlt.sim.acceptance.fit), or, where that cannot be known from the run, none is taken to differ, which
is told. Where the run says of which kind each prompt is, kinds have levels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.acceptance.fit import Estimate, fit
from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.acceptance.observations import observed
from tlt.sim.acceptance.population import ALIKE, Population
from tlt.sim.acceptance.process import Acceptance
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.results.predicted_training import Figure
from tlt.traces.runs.runfolder import RunFolder
from tlt.traces.runs.training import prompt_kinds
from tltsched.errors import InputError

# What of a fit is used: nothing, what a request keeps for its whole response, all that differs between
# requests of any prompts, or the kind of their prompt as well.
Detail = Literal["one mean", "spread", "spread and slope", "kind of prompt"]
BY_POSITION = ("position_spread", "position_slope", "start_excess")
Z95 = 1.96


class Differences(msgspec.Struct, frozen=True):
    """How requests differ, with the estimates; or why it is not known, and all are taken to be alike."""

    population: Population = ALIKE
    parameters: dict[str, Estimate] = {}
    unknown_because: str = ""
    kinds: dict[str, Estimate] = {}  # level of each kind of prompt
    levels: dict[int, float] = {}  # log exponent of each RL step, its responses being alike

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
        rest = dict.fromkeys(BY_POSITION, 0.0) if detail == "spread" else {}
        return msgspec.structs.replace(self.population, **rest)

    def offsets(self, folder: Path, responses: pd.DataFrame) -> Floats:
        """Return what the kinds of their prompts say of the log exponents of responses of a run, [n]."""
        kinds = prompt_kinds(folder, responses) if self.kinds else None
        if kinds is None:
            return np.zeros(len(responses))
        rest = self.kinds.get("", Estimate(0.0)).value
        return np.array([self.kinds[kind].value if kind in self.kinds else rest for kind in kinds])


def differences(folders: Sequence[Path], steps: Ints, detail: Detail = "kind of prompt") -> Differences:
    """Fit how requests differ to some rollouts, [n], of runs with one drafter, in so much detail."""
    try:
        fitted = fit([observed(folder, steps) for folder in folders], by_kind=detail == "kind of prompt")
    except InputError as error:
        return Differences(unknown_because=str(error))
    return Differences(fitted.population, fitted.parameters, "", fitted.kinds, fitted.levels)


def acceptance_on(
    law: PerPosition, unlike: Differences, detail: Detail, folder: Path, steps: Ints
) -> Acceptance:
    """Return the process whose averages over some rollouts, [n], of a run are those of the law."""
    responses = RunFolder(folder).responses()
    responses = responses[responses["step"].isin(steps)]
    lengths = responses["response_tokens"].to_numpy(np.int64)
    offset = unlike.offsets(folder, responses) if unlike.kinds else None
    return Acceptance(law, unlike.only(detail), lengths, offset=offset)
