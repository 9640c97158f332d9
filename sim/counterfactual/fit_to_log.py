"""A calibration from logs: one factor on all step times, from the rollout seconds that a run logged.

It is judged by the second half of the steps as the first half gives it, and then fitted to all of them. It
pins how fast the engine is as a whole; what drafts cost beside it still comes from the calibration, with its
error. Rollout seconds are linear in it, as long as no decision hangs on the clock.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.sim.validate.training.predict import prediction_error
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Jackknife
from tlt.traces.results.counterfactual import LogFit
from tlt.traces.results.predicted_training import Figure, Quantity

FEWEST = 3  # steps: with fewer their spread says nothing


class Scale(msgspec.Struct, frozen=True):
    """The factor of all steps, and those without each of them, [1 + steps]; one of means has no steps."""

    factors: Floats

    @property
    def value(self) -> float:
        """Return the factor."""
        return float(self.factors[0])

    @property
    def steps(self) -> int:
        """Return of how many steps it is."""
        return len(self.factors) - 1

    def draw(self, draws: int, error: float, rng: np.random.Generator) -> Floats:
        """Return factors relative to the fit, [draws]; `error` is taken where steps are too few to tell."""
        if self.steps < FEWEST:
            return np.exp(error * rng.standard_normal(draws))
        return Jackknife(self.steps).drawn(self.factors, rng, draws) / self.value


class Times(msgspec.Struct, frozen=True):
    """Seconds of each step, [steps]: as logged (None: not known), and as modelled with a factor of 1.

    fixed_s: of the logged rollout, that the factor has no part in.
    """

    rollout_s: Floats
    step_s: Floats | None
    modelled_rollout_s: Floats
    modelled_step_s: Floats
    fixed_s: Floats | float = 0.0


def fit_scale(times: Times, numbers: list[int]) -> tuple[Scale, LogFit]:
    """Fit the factor to all steps; and to the first half of them alone, for the errors over the second.

    `numbers` are those of the steps. Of a single step nothing is judged.
    """
    steps = len(numbers)
    whole, scale = _ratio(times, slice(0, steps))
    half = steps // 2
    if not half:
        return scale, LogFit(
            scale=whole, fitted_scale=None, fitted_steps=tuple(numbers), judged_steps=(), errors=()
        )
    fitted, _ = _ratio(times, slice(0, half))
    judged = slice(half, steps)
    rollout_s = times.modelled_rollout_s * fitted.value + times.fixed_s
    modelled: dict[Quantity, tuple[Floats | None, Floats]] = {
        "rollout seconds": (times.rollout_s, rollout_s),
        "step seconds": (times.step_s, rollout_s + times.modelled_step_s - times.modelled_rollout_s),
    }
    errors = [
        prediction_error(quantity, np.stack([logged_s[judged], modelled_s[judged]], axis=1))
        for quantity, (logged_s, modelled_s) in modelled.items()
        if logged_s is not None
    ]
    return scale, LogFit(
        scale=whole, fitted_scale=fitted,
        fitted_steps=tuple(numbers[:half]), judged_steps=tuple(numbers[half:]), errors=tuple(errors),
    )  # fmt: skip


def fit_means(logged_s: float, modelled_s: Floats) -> tuple[Scale, LogFit]:
    """Return the logged mean rollout over the modelled ones, [steps]: no step is judged."""
    value = logged_s / float(modelled_s.mean())
    scale = Figure(value=value, interval=None)
    fit = LogFit(scale=scale, fitted_scale=None, fitted_steps=(), judged_steps=(), errors=())
    return Scale(np.array([value])), fit


def _ratio(times: Times, steps: slice) -> tuple[Figure, Scale]:
    """Return logged over modelled rollout seconds of some steps, with its interval, and for draws."""
    logged_s, modelled_s = (times.rollout_s - times.fixed_s)[steps], times.modelled_rollout_s[steps]
    units = Jackknife(len(logged_s))
    ratios = units.ratio(logged_s, modelled_s)
    found = units.estimate(ratios, positive=True)
    return Figure(value=found.value, interval=found.interval), Scale(ratios)
