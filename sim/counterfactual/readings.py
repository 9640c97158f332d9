"""What logged rollouts may be made of: decoding of the logged responses, and seconds that no draft shortens.

A logged rollout takes T = F + D. F is what is waiting for tools and scoring or no generation, D the decoding
of the response that ends last. R is what the model says of one generation, n how many the log says there are,
G the most that a response was generated for. The log bounds F; within these bounds D may be MISFIT n R at
most, and G has to be at least n R / MISFIT. If that cannot be, nothing is ranked: then the seconds are not
those of the logged responses on the given hardware, and a factor would only hide that.

Under a policy a rollout takes F + D R' / R. Several F agree with a log, and policies differ in them. Readings
are the ends of what it allows and two more, since a factor m = D / n R has a cause that may not carry over:

    D is n R / (m E): the model may be off by m either way, an engine by E from another of its kind, and the
        rest of the rollout is fixed, whether or not the log has a name for it
    n R, where G is below it: what made the observed rollouts faster than modelled is lost with drafts
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.traces.common.arrays import Floats

MISFIT = 2.0
ENGINE = 1.15  # E, assumed: between calibrations of one engine, model and GPU, and between days


class LoggedRollouts(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of a log and of the model, by step, [steps], in seconds."""

    rollout_s: Floats
    least_s: Floats  # that no draft shortens, at the least
    most_s: Floats
    longest_s: Floats  # that a response was generated for, or may have been
    generations: Floats  # a count
    modelled_s: Floats  # of one generation, with a factor of 1
    engine: float = ENGINE  # 1: the log is of decoding alone

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

    Empty where nothing that the log allows is within MISFIT; `misfit` is then the nearest to 1.
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
    longest_s = float(logged.longest_s.sum())
    if longest_s < modelled_s / MISFIT:
        return Readings(longest_s / modelled_s, ())
    if total_s - most_s > MISFIT * modelled_s:
        return Readings((total_s - most_s) / modelled_s, ())
    low_s = max(least_s, total_s - MISFIT * modelled_s)
    middle_s = (low_s + most_s) / 2
    found = [_reading(logged, each_s) for each_s in dict.fromkeys((middle_s, low_s, most_s))]
    factor = max((total_s - most_s) / modelled_s, 1.0) * logged.engine
    if total_s - modelled_s / factor > most_s:
        found.append(_reading(logged, total_s - modelled_s / factor))
    if longest_s < modelled_s:
        fit = found[0]
        found.append(msgspec.structs.replace(fit, others=fit.factor * modelled_s / longest_s))
    return Readings((total_s - middle_s) / modelled_s, tuple(found))


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
