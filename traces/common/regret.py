"""What is lost by a choice among candidates whose times are not known exactly, and which of them are ties.

Samples are draws of every candidate's time within its error, the same ones for all. The regret of a choice is
its time over that of the fastest candidate in the same sample, less one: what knowing better would
have saved. A candidate is a tie where taking it instead of the choice changes the time by no more than a
tolerance at both ends of the 95 % interval. That a runner-up wins in some samples says neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate, drawn_sums, interval_of

TIE = 0.01  # of the time: less is not worth a decision, and below what a run repeats itself within
ONE_STEP = "needs at least 2 steps"
SAME = 1e-9  # relative: the same decisions were taken


class Regrets(msgspec.Struct, frozen=True, kw_only=True):
    """A choice held against the other candidates. All figures are shares of time.

    `regret` has the mean over the samples as its value. `instead` says what taking another candidate would
    lose over the choice (below 0: win), the fit as its value, the fastest by the fit first. `exact` takes
    as long in every sample, `ties` lie within the tolerance at 95 %, `near` do by the fit alone.
    """

    chosen: str
    regret: Estimate
    instead: dict[str, Estimate]
    tolerance: float
    exact: tuple[str, ...]
    ties: tuple[str, ...]
    near: tuple[str, ...]

    @property
    def group(self) -> tuple[str, ...]:
        """The candidates that are as good as the choice: exactly so, or within the tolerance."""
        return (*self.exact, *self.ties)

    @property
    def runner_up(self) -> str | None:
        """The fastest by the fit of those that are no ties; None: there are none."""
        return next((name for name in self.instead if name not in self.group), None)

    @property
    def highest(self) -> float:
        """The upper end of the regret; its value where there is no interval."""
        return self.regret.value if self.regret.interval is None else self.regret.interval[1]


def weigh(
    names: Sequence[str],
    fit: Floats,
    samples: Floats,
    chosen: str,
    *,
    reason: str = "",
    tolerance: float = TIE,
) -> Regrets:
    """Hold `chosen`, one of `names` (each once), against the others.

    fit: times of the candidates, [candidates], and samples of them, [candidates, samples], all above 0 and
    of any one unit. With `reason` there are no samples, and it says why.
    """
    at = list(names).index(chosen)
    others = [int(index) for index in np.argsort(fit, kind="stable") if index != at]
    instead = {
        names[index]: _estimate(float(fit[index] / fit[at] - 1.0), samples[index] / samples[at] - 1.0, reason)
        for index in others
    }
    lost = samples[at] / samples.min(axis=0) - 1.0
    mean = float(fit[at] / fit.min() - 1.0) if reason else float(lost.mean())
    exact = tuple(name for name, each in instead.items() if _reach(each) <= SAME)
    ties = tuple(
        name
        for name, each in instead.items()
        if name not in exact and each.interval is not None and _reach(each) <= tolerance
    )
    near = tuple(
        name for name, each in instead.items() if name not in (*exact, *ties) and abs(each.value) <= tolerance
    )
    return Regrets(
        chosen=chosen,
        regret=_estimate(mean, lost, reason),
        instead=instead,
        tolerance=tolerance,
        exact=exact,
        ties=ties,
        near=near,
    )


def regrets_over_steps(step_s: Mapping[str, Floats], chosen: str) -> Regrets | None:
    """Hold `chosen` against the other policies within the error that the steps leave, and over draws of them.

    step_s: seconds of the RL steps by policy, [steps] or [1 + draws, steps] with the fit first, one shape for
    all. None without a rival, or where a policy takes no time at all. Raises InputError if shapes differ.
    """
    times_s = list(step_s.values())
    fit = np.array([np.atleast_2d(each)[0].sum() for each in times_s])
    if len(times_s) < 2 or not (fit > 0).all():
        return None
    if np.atleast_2d(times_s[0]).shape[1] < 2:
        return weigh(list(step_s), fit, fit[:, np.newaxis], chosen, reason=ONE_STEP)
    samples = drawn_sums(times_s)
    if not (samples > 0).all():
        return weigh(list(step_s), fit, fit[:, np.newaxis], chosen, reason="some steps take no time")
    return weigh(list(step_s), fit, samples, chosen)


def _estimate(value: float, sampled: Floats, reason: str) -> Estimate:
    return Estimate(value, None, reason) if reason else Estimate(value, interval_of(sampled))


def _reach(estimate: Estimate) -> float:
    """Return the farthest that an estimate and its interval lie from 0."""
    ends = (estimate.value, estimate.value) if estimate.interval is None else estimate.interval
    return max(abs(estimate.value), abs(ends[0]), abs(ends[1]))
