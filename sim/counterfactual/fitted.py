"""The model made to agree with a log: a factor on step times, fixed seconds, and other readings of it."""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.sim.counterfactual.fit_to_log import Scale
from tlt.sim.counterfactual.readings import Readings
from tlt.sim.model.phases import OTHER
from tlt.sim.policy_set import PolicySet
from tlt.sim.simulation import Simulation
from tlt.traces.common.arrays import Floats
from tlt.traces.results.counterfactual import LogFit


class Fitted(msgspec.Struct, frozen=True):
    """What a log asks for, and how well the model then agrees with it."""

    scale: Scale
    fit: LogFit
    readings: Readings

    def fixed_s(self, steps: int) -> Floats:
        """Return the seconds of each step that no draft shortens in the fit, [steps]; 0 without a reading."""
        if not self.readings.all:
            return np.zeros(steps)
        return repeated(self.readings.fit.fixed_s, steps)

    def applied(self, policies: PolicySet) -> PolicySet:
        """Return the policies as the fit has them; without a reading the observed one alone, as it was."""
        if not self.readings.all:
            name, first = next(iter(policies.simulations.items()))
            return PolicySet({name: first})
        scaled = policies.scaled(self.readings.fit.factor)
        fixed_s = self.fixed_s(policies.baseline.config.workload.steps)
        if not fixed_s.any():
            return scaled
        return PolicySet({name: _waiting(each, fixed_s) for name, each in scaled.simulations.items()})


def repeated(by_step_s: Floats, steps: int) -> Floats:
    """Return seconds of the observed steps for `steps` that are simulated: a single one is drawn again."""
    return np.resize(by_step_s, steps)


def _waiting(simulation: Simulation, fixed_s: Floats) -> Simulation:
    """Return a simulation whose steps take longer by seconds in which nothing is generated."""
    config = simulation.config
    by_step_s = config.phases.by_step_s
    other_s = np.array(by_step_s.get(OTHER, (0.0,) * len(fixed_s))) + fixed_s
    phases = msgspec.structs.replace(config.phases, by_step_s=by_step_s | {OTHER: tuple(other_s.tolist())})
    named = config.cluster.phases
    cluster = msgspec.structs.replace(config.cluster, phases=named if OTHER in named else (*named, OTHER))
    return simulation.changed(msgspec.structs.replace(config, phases=phases, cluster=cluster))
