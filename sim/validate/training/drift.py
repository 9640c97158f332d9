"""Fits the drafter's law (sim.model.drafter) to a measured training run, by least squares over its RL steps.

What is measured is a head's exponent x in each step (sim.validate.training.acceptance_exponents). The law
gives exponents y over that of the head at step 0. A head that nobody trains has y = 1 + d n after n updates;
d is the slope of x over n, divided by x at n = 0. A head that is trained has

    y' = y + d - max(y - f, 0) (1 - exp(-tokens / R))

from one step to the next, where f <= 1 is a head that is trained in full. d comes from the head that served
throughout, or else from probes of the initial head; f and R from probes of the served head over those of the
initial one on the same responses, so that hard prompts do not count as drift. In units of a head that is
trained in full, which tlt.sim.model.drafter counts in, exponents are y / f and the drift d / f.

Where it is known how requests differ, x is the level of each step with responses alike in length and kind
(tlt.sim.acceptance.fit), that of the initial head being the served one's over the ratio of the two, if it
scatters less: what a step's prompts happen to be is no drift then.

Intervals are over steps. Where the one of d holds 0, no drift is visible and none is simulated. Where the one
of the mean log ratio of the two heads reaches 0, nearly, training is not seen to help: there is no recovery.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.sim.model.drafter import SMALLEST_EXPONENT
from tlt.sim.validate.training.acceptance_exponents import Head, HeadSeries, common_law, series
from tlt.sim.validate.training.entropy import entropy_law
from tlt.sim.validate.training.run import TrainingRun
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.common.intervals import Jackknife, without_each
from tlt.traces.results.predicted_training import DriftFit, Figure, Verdict
from tlt.traces.runs.acceptance_counts import PositionCounts

MIN_POINTS = 3  # steps through which a slope is drawn
ROLLOUTS = "the rollouts: one head served throughout"
PROBED = "probes of the initial head on the responses of each step"
ALIKE = "the rollouts, responses alike in length and kind"
# Grids of the second fit; each is refined once around the best point.
FULLY_TRAINED = (0.2, 1.0, 33)  # f: lowest, highest, points
# R: over the tokens of a step and of all steps, beyond which it cannot be told from a lower f; points.
RECOVERY = (0.05, 1.0, 41)
SMALLEST_HELP = 1e-3  # of log ratio, that training must reach
EDGE = 0.9  # of the longest R: beyond it R is a lower bound


class FittedLaw(msgspec.Struct, frozen=True):
    """A drift fit, and the acceptance of a head that is trained in full, [depth]."""

    drift: DriftFit
    survival: Floats


def fit_drift(run: TrainingRun, fitted: Ints, levels: dict[int, float]) -> FittedLaw | str:
    """Fit the law to the steps `fitted`, [n], which are from 0 on, or return why it cannot be.

    `levels`: log exponent of steps with responses alike, where it is known.
    """
    counts = [run.counts[step] for step in fitted]
    law = common_law(counts)
    rollouts = series("serving", "rollout", fitted, counts, law)
    if not len(rollouts.steps):
        return "nothing was drafted"
    versions = run.versions()[fitted]
    if (versions == versions[0]).all():
        return _fit(run, fitted, law, rollouts, rollouts, None, levels)
    served, initial = _probes(run, fitted)
    return _fit(run, fitted, law, rollouts, initial, served, levels)


def _probes(run: TrainingRun, fitted: Ints) -> tuple[HeadSeries, HeadSeries]:
    """Return the exponents of the served and of the initial head, on one law, where they were probed."""
    heads: tuple[Head, ...] = ("serving", "initial")
    probed = {}
    for head in heads:
        steps, survival = run.probe(head)
        kept = np.isin(steps, fitted)
        probed[head] = steps[kept], [PositionCounts(row, np.ones_like(row)) for row in survival[kept]]
    law = common_law([each for _, counts in probed.values() for each in counts])
    served, initial = (series(head, "probe", *probed[head], law) for head in heads)
    return served, initial


def _fit(
    run: TrainingRun,
    fitted: Ints,
    law: Floats,
    rollouts: HeadSeries,
    still: HeadSeries,
    served: HeadSeries | None,
    levels: dict[int, float],
) -> FittedLaw | str:
    """Fit d to the head that stood still, f and R to the served one where it was trained, then the level."""
    if len(still.steps) < MIN_POINTS:
        return f"acceptance is known in {len(still.steps)} steps, {MIN_POINTS} are needed"
    tokens = run.trained_tokens()[: int(fitted[-1]) + 1]
    weights = without_each(len(still.steps))
    alike = _alike(still, served, levels)
    slopes = np.array([_slope(alike or still, row) for row in weights])
    reach = _reach(slopes)
    verdict: Verdict = "none visible"
    if reach is not None and reach[0] > 0.0:
        verdict = "falls"
    elif reach is not None and reach[1] < 0.0:
        verdict = "rises"
    simulated = 0.0 if reach is None else max(reach[0], 0.0) + min(reach[1], 0.0)
    trained, recoveries = np.ones(len(weights)), np.full(len(weights), np.nan)
    if served is not None:
        ratio = _ratio(served, still)
        helped = _helped(ratio)
        for row, slope in enumerate(slopes):
            if helped and np.isfinite(slope):
                used = simulated if row == 0 else slope
                trained[row], recoveries[row] = _recovery(
                    ratio, used, tokens, _at(still, weights[row], len(tokens))
                )
    recovery, resolved = None, False
    if np.isfinite(recoveries[0]):
        resolved = bool(recoveries[0] < EDGE * RECOVERY[1] * tokens.sum())
        recovery = Figure(value=float(recoveries[0]), interval=_reach(recoveries, positive=True))
    course = _course(simulated, trained[0], recoveries[0], tokens)
    shift = np.log(rollouts.exponents) - np.log(course[rollouts.steps])
    level = float(np.exp(shift.mean()))
    fit = DriftFit(
        steps=tuple(fitted.tolist()),
        measured_on=ALIKE if alike else PROBED if served else ROLLOUTS,
        per_update=Figure(value=float(slopes[0] / trained[0]), interval=_reach(slopes / trained)),
        verdict=verdict,
        initial_exponent=Figure(value=float(1.0 / trained[0]), interval=_reach(1.0 / trained, positive=True)),
        recovery_tokens=recovery,
        recovery_resolved=resolved,
        residual=float(np.sqrt(((shift - shift.mean()) ** 2).mean())),
        points=rollouts.points() + (served.points() + still.points() if served else ()),
        entropy=entropy_law(rollouts, run.entropy()),
    )
    return FittedLaw(fit, law ** (level * trained[0]))


def _alike(still: HeadSeries, served: HeadSeries | None, levels: dict[int, float]) -> HeadSeries | None:
    """Return the head that stood still as it were on responses alike.

    None where that is not known, or scatters more than the head does as it was counted.
    """
    if any(step not in levels for step in still.steps.tolist()):
        return None
    log = np.array([levels[step] for step in still.steps.tolist()])
    if served is not None:
        steps, ratio = _ratio(served, still)
        if len(steps) < len(still.steps):
            return None
        log = log - ratio
    if _scatter(still.steps, log) >= _scatter(still.steps, np.log(still.exponents)):
        return None
    return msgspec.structs.replace(still, exponents=np.exp(log))


def _scatter(steps: Ints, log: Floats) -> float:
    """Return the sum of squares around the straight line through log exponents, [n]."""
    return float(((log - np.polyval(np.polyfit(steps, log, 1), steps)) ** 2).sum())


def _reach(figures: Floats, *, positive: bool = False) -> tuple[float, float] | None:
    """Return the interval of a figure that a line with two parameters gave, [1 + steps]."""
    return Jackknife(len(figures) - 1, parameters=2).estimate(figures, positive=positive).interval


def _at(still: HeadSeries, weight: Floats, steps: int) -> Floats:
    """Return the weights of a head's steps by RL step, [steps]."""
    by_step = np.zeros(steps)
    by_step[still.steps] = weight
    return by_step


def _slope(still: HeadSeries, weight: Floats) -> float:
    """Return d of the weighted straight line x = a (1 + d n); NaN through fewer than two steps."""
    if np.count_nonzero(weight) < 2:
        return float("nan")
    n, x = still.steps.astype(np.float64), still.exponents
    mean_n, mean_x = np.average(n, weights=weight), np.average(x, weights=weight)
    slope = (weight * (n - mean_n) * (x - mean_x)).sum() / (weight * (n - mean_n) ** 2).sum()
    start = mean_x - slope * mean_n
    return float(slope / start) if start > 0.0 else float("nan")


def _ratio(served: HeadSeries, still: HeadSeries) -> tuple[Ints, Floats]:
    """Return the steps in which both heads were probed, and log of the served exponent over the other."""
    steps, mine, other = np.intersect1d(served.steps, still.steps, return_indices=True)
    return steps, np.log(served.exponents[mine] / still.exponents[other])


def _helped(ratio: tuple[Ints, Floats]) -> bool:
    """Return whether the served head accepted better than the initial one on the same responses."""
    steps, measured = ratio
    reach = Jackknife(len(steps)).mean(measured).interval
    return reach is not None and reach[1] < -SMALLEST_HELP


def _course(drift: float, trained: float, recovery_tokens: float, tokens: Floats) -> Floats:
    """Return y of the served head by step, [steps]; a recovery of NaN is no training."""
    recovery = np.array([[recovery_tokens]]) if np.isfinite(recovery_tokens) else np.array([[np.inf]])
    return _courses(drift, np.array([trained]), recovery, tokens)[:, 0, 0]


def _courses(drift: float, trained: Floats, recovery_tokens: Floats, tokens: Floats) -> Floats:
    """Return y by step for f [n] and R [n, m] or [1, m], [steps, n, m]."""
    floor = trained[:, None]
    y = np.ones(np.broadcast_shapes(floor.shape, recovery_tokens.shape))
    rows = [y]
    for step_tokens in tokens[:-1]:
        gained = np.maximum(y - floor, 0.0) * -np.expm1(-step_tokens / recovery_tokens)
        y = np.maximum(y + drift - gained, SMALLEST_EXPONENT)
        rows.append(y)
    return np.array(rows)


def _recovery(
    ratio: tuple[Ints, Floats], drift: float, tokens: Floats, weights: Floats
) -> tuple[float, float]:
    """Return f and R of least squares on the ratio of the heads; R is NaN where there is nothing to gain.

    `weights` counts the RL steps, [steps].
    """
    steps, measured = ratio
    lowest, highest, points = FULLY_TRAINED
    shortest, longest, count = RECOVERY
    trained = np.linspace(lowest, highest, points)
    recovery = np.geomspace(shortest * np.median(tokens[tokens > 0]), longest * tokens.sum(), count)
    for _ in range(2):
        row, column = _best(measured, steps, drift, trained, recovery, tokens, weights[steps])
        best = float(trained[row]), float(recovery[column])
        trained = np.linspace(trained[max(row - 1, 0)], trained[min(row + 1, points - 1)], points)
        recovery = np.geomspace(recovery[max(column - 1, 0)], recovery[min(column + 1, count - 1)], count)
    return best if drift > 0.0 or best[0] < 1.0 else (1.0, float("nan"))


def _best(
    measured: Floats,
    steps: Ints,
    drift: float,
    trained: Floats,
    recovery: Floats,
    tokens: Floats,
    weights: Floats,
) -> tuple[int, int]:
    courses = _courses(drift, trained, recovery[None, :], tokens)[steps]
    frozen = np.maximum(1.0 + drift * steps, SMALLEST_EXPONENT)
    errors = np.log(courses) - np.log(frozen)[:, None, None] - measured[:, None, None]
    squares = (weights[:, None, None] * errors**2).sum(axis=0)
    row, column = np.unravel_index(int(np.argmin(squares)), squares.shape)
    return int(row), int(column)
