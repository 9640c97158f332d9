"""What logged rollouts may be made of: decoding of the logged responses, and seconds that no draft shortens.

A logged rollout takes T = F + m n R. R is what the model says of one generation, n how many the log says that
there were, m a factor on all step times, F what is waiting for tools and scoring or no generation. The log
bounds F; within these bounds m may not leave 1 / MISFIT to MISFIT. If it has to, nothing is ranked: then the
seconds are not those of the logged responses on the given hardware, and a factor would only hide that.

Several F agree with a log, and policies differ in them. Readings are the ends of what it allows and two more:
a factor that is not 1 has a cause which may not carry over to other policies.

    m > 1: step times are as modelled, and what a rollout takes beyond them is fixed
    m < 1: what made the observed rollouts faster than modelled is lost where a policy drafts
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.traces.common.arrays import Floats

MISFIT = 2.0


class LoggedRollouts(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of a log and of the model, by step, [steps], in seconds."""

    rollout_s: Floats
    least_s: Floats  # that no draft shortens, at the least
    most_s: Floats
    generations: Floats  # a count
    modelled_s: Floats  # of one generation, with a factor of 1

    def decoding_s(self) -> float:
        """Return what the model says of all generations of all steps."""
        return float((self.generations * self.modelled_s).sum())


class Reading(msgspec.Struct, frozen=True):
    """One way to read the log.

    fixed_s: of each step, [steps], that no draft shortens. factor: on all step times of all generations, over
    what the model says of one; `others`: the factor where a policy is not the observed one.
    """

    fixed_s: Floats
    factor: float
    others: float


class Readings(msgspec.Struct, frozen=True):
    """The readings of a log, the fit first; `misfit` is that of the fit: on the step times of one generation.

    Empty where no allowed reading is within MISFIT; `misfit` is then the nearest to 1.
    """

    misfit: float
    all: tuple[Reading, ...]

    @property
    def fit(self) -> Reading:
        """What policies are simulated with; there is one."""
        return self.all[0]


def readings_of(logged: LoggedRollouts) -> Readings:
    """Return the readings that a log allows."""
    total_s, modelled_s = float(logged.rollout_s.sum()), logged.decoding_s()
    least_s, most_s = float(logged.least_s.sum()), float(logged.most_s.sum())
    low_s = max(least_s, total_s - MISFIT * modelled_s)
    high_s = min(most_s, total_s - modelled_s / MISFIT)
    if low_s > high_s:
        nearest = total_s - (most_s if total_s - most_s > modelled_s else least_s)
        return Readings(nearest / modelled_s, ())
    middle_s = (low_s + high_s) / 2
    found = [_reading(logged, each_s) for each_s in dict.fromkeys((middle_s, low_s, high_s))]
    misfit = (total_s - middle_s) / modelled_s
    if total_s - modelled_s > high_s:
        found.append(_reading(logged, total_s - modelled_s))
    if misfit < 1.0:
        found.append(msgspec.structs.replace(found[0], others=found[0].factor / misfit))
    return Readings(misfit, tuple(found))


def _reading(logged: LoggedRollouts, fixed_s: float) -> Reading:
    """Spread fixed seconds over the steps: between the bounds of each, and beyond them by what is left."""
    least_s, most_s = float(logged.least_s.sum()), float(logged.most_s.sum())
    total_s = float(logged.rollout_s.sum())
    inside = min(max((fixed_s - least_s) / (most_s - least_s), 0.0), 1.0) if most_s > least_s else 0.0
    by_step_s = logged.least_s + inside * (logged.most_s - logged.least_s)
    beyond = max(fixed_s - float(by_step_s.sum()), 0.0) / max(total_s - float(by_step_s.sum()), 1e-12)
    by_step_s = by_step_s + beyond * (logged.rollout_s - by_step_s)
    factor = (total_s - float(by_step_s.sum())) / float(logged.modelled_s.sum())
    return Reading(np.asarray(by_step_s, dtype=np.float64), factor, factor)
