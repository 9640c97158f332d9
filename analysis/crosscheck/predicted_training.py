"""How the simulator, fitted on the first half of a training run, predicts the second half."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tlt.analysis.drawing.estimates import number
from tlt.analysis.drawing.figure import BAND, Picture, draw, legend_below, plain, policy_label, policy_style
from tlt.analysis.drawing.tables import TextTable
from tlt.analysis.load import Run, basis_of
from tlt.traces.common.arrays import Floats
from tlt.traces.results.predicted_training import (
    PREDICTED_TRAINING,
    DriftFit,
    Median,
    PredictedPolicy,
    PredictedTraining,
    PredictionError,
    sentences,
    signed,
)
from tlt.traces.results.predicted_training import figure as figure_text
from tlt.traces.runs.runfolder import file_of, read_struct

QUANTITIES = {
    "rollout seconds": "Rollout (s)", "step seconds": "RL step (s)",
    "acceptance length": "Acceptance length (tokens, bonus counted)",
}  # fmt: skip
HEADERS = ("Policy", "What", "Measured", "Simulated", "Error [95 %]")
DRIFT_HEADERS = ("Policy", "Drift", "Exponent an update [95 %]", "Exponent at the start [95 %]",
                 "Training shrinks the lag to 1/e in (tokens) [95 %]", "Read from")  # fmt: skip
MEDIAN_HEADERS = ("Policy", "What was timed", "Unit", "Median", "Quartiles", "Steps")


def find_prediction(folder: Path) -> PredictedTraining | None:
    """Return what `tlt sim validate-training FOLDER --out FOLDER.simulated` left beside it, if any.

    Raises InputError if the file cannot be read.
    """
    place = folder.resolve().with_name(f"{folder.resolve().name}.simulated")
    path = file_of(place / PREDICTED_TRAINING)
    return read_struct(path, PredictedTraining) if path.is_file() else None


def prediction_values(prediction: PredictedTraining, picture: Picture) -> dict[str, object]:
    """Return what the section of a page shows; `picture` is that of `draw_prediction`."""
    error = f"{prediction.step_time_error:.1%}"
    return {
        "sentences": sentences(prediction),
        "errors": TextTable(HEADERS, error_rows(prediction), names=(1,)),
        "source": f"Step times {prediction.calibration}; off by {error} on points not fitted.",
        "picture": picture,
        "drifts": TextTable(DRIFT_HEADERS, drift_rows(prediction)),
        "medians": TextTable(MEDIAN_HEADERS, median_rows(prediction)),
    }


def error_rows(prediction: PredictedTraining) -> list[tuple[str, ...]]:
    """Return a row a policy and quantity."""
    return [_error_row(policy, error) for policy in prediction.policies for error in policy.errors]


def _error_row(policy: PredictedPolicy, error: PredictionError) -> tuple[str, ...]:
    measured, simulated = number(error.measured), number(error.simulated)
    return (policy.policy, QUANTITIES[error.quantity], measured, simulated, signed(error.error))


def drift_rows(prediction: PredictedTraining) -> list[tuple[str, ...]]:
    """Return a row a policy."""
    return [_drift_row(policy, policy.fit.drift) for policy in prediction.policies]


def _drift_row(policy: PredictedPolicy, drift: DriftFit | None) -> tuple[str, ...]:
    if drift is None:
        return (policy.policy, "-", "-", "-", "-", policy.fit.no_drift_because)
    trained, recovery = drift.initial_exponent, drift.recovery_tokens
    bound = "" if drift.recovery_resolved else "at least "
    return (
        policy.policy,
        drift.verdict if drift.verdict == "none visible" else f"acceptance {drift.verdict}",
        figure_text(drift.per_update, "+.4f"),
        figure_text(trained, ".3f") if recovery else "-",
        bound + figure_text(recovery, ",.0f") if recovery else "-",
        drift.measured_on,
    )


def median_rows(prediction: PredictedTraining) -> list[tuple[str, ...]]:
    """Return a row a policy and thing that was timed."""
    return [_median_row(policy, median) for policy in prediction.policies for median in policy.fit.medians]


def _median_row(policy: PredictedPolicy, median: Median) -> tuple[str, ...]:
    value, low, high = (f"{each:,.4g}" for each in (median.value, median.low, median.high))
    return (
        policy.policy,
        median.name.replace("_", " "),
        median.unit,
        value,
        f"{low} to {high}",
        str(median.steps),
    )


def draw_prediction(prediction: PredictedTraining, runs: Sequence[Run]) -> Picture:
    """Draw steps as measured and simulated, and what the drift was read from.

    `runs` are the measured policies, in the order of the comparison.
    """
    drafting = any(
        step.measured_length is not None for policy in prediction.policies for step in policy.steps
    )
    drifts = [
        (index, policy.fit.drift) for index, policy in enumerate(prediction.policies) if policy.fit.drift
    ]

    def build(figure: SubFigure) -> str:
        panels = figure.subplots(1, 1 + drafting + bool(drifts), squeeze=False)[0]
        _curve(panels[0], prediction, "step_s", "RL step (s)")
        panels[0].set_ylim(0, None)
        if drafting:
            _curve(panels[1], prediction, "length", "acceptance length\n(tokens, bonus counted)")
        if drifts:
            _drift(panels[-1], drifts)
        for axes in panels:
            axes.set_xlabel("RL step")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.margins(x=0.04)
            axes.grid()
        _legend(figure, runs)
        return _title(prediction)

    title, image = draw(build, 3.9, basis_of(runs))
    caption = (
        "Dots and full lines are measured, dashed lines simulated. Grey: the steps that were fitted; to the "
        "right of them everything dashed is predicted."
    )
    if drifts:
        caption += (
            " Last panel: the exponent by which the acceptance of a head that nobody trained differs from "
            "its mean over the fitted steps, and the line through it; its slope is the drift."
        )
    return Picture("train_prediction", title, caption, image)


def _curve(axes: Axes, prediction: PredictedTraining, name: str, label: str) -> None:
    for index, policy in enumerate(prediction.policies):
        steps = np.array([step.step for step in policy.steps], np.float64)
        colour = policy_style(index)["color"]
        axes.plot(
            steps, _values(policy, f"measured_{name}"), "o-", color=colour, markersize=3.5, linewidth=1.0
        )
        axes.plot(steps, _values(policy, f"simulated_{name}"), "--", color=colour, linewidth=1.6)
    fitted = prediction.policies[0].fit.steps
    axes.axvspan(fitted[0] - 0.5, fitted[-1] + 0.5, color=BAND, zorder=0, linewidth=0)
    axes.set_ylabel(label)


def _values(policy: PredictedPolicy, name: str) -> Floats:
    found = [getattr(step, name) for step in policy.steps]
    return np.array([np.nan if value is None else value for value in found], np.float64)


def _drift(axes: Axes, drifts: Sequence[tuple[int, DriftFit]]) -> None:
    """Draw the exponents that a drift was read from, and the line that it is the slope of."""
    for index, drift in drifts:
        head = "initial" if any(point.head == "initial" for point in drift.points) else "serving"
        points = [point for point in drift.points if point.head == head]
        steps = np.array([point.step for point in points], np.float64)
        exponents = np.array([point.exponent for point in points], np.float64)
        rising = 1.0 + steps * drift.per_update.value / drift.initial_exponent.value
        colour = policy_style(index)["color"]
        axes.plot(steps, exponents / exponents.mean(), "o", color=colour, markersize=3.5)
        axes.plot(steps, rising / rising.mean(), color=colour, linewidth=1.0)
    axes.set_ylabel("exponent of an untrained head,\nover its mean (more: worse)")


def _legend(figure: SubFigure, runs: Sequence[Run]) -> None:
    handles = [Line2D([], [], color=policy_style(index)["color"]) for index in range(len(runs))]
    labels = [policy_label(run.policy) for run in runs]
    handles += [
        Line2D([], [], color="#444444", marker="o", markersize=3.5, linewidth=1.0),
        Line2D([], [], color="#444444", linestyle="--"),
    ]
    legend_below(figure, handles, [*labels, "measured", "simulated"], most=5)


def _title(prediction: PredictedTraining) -> str:
    worst = max(
        (
            (policy, error)
            for policy in prediction.policies
            for error in policy.errors
            if error.quantity == "step seconds"
        ),
        key=lambda pair: abs(pair[1].error.value),
    )
    judged = sum(step.judged for step in worst[0].steps)
    only = "" if len(prediction.policies) == 1 else f" (the worst is {plain(worst[0].policy)})"
    return (
        f"Fitted on {len(worst[0].fit.steps)} steps, the simulator predicts the time of the next {judged} "
        f"within {abs(worst[1].error.value):.1%}{only}"
    )
