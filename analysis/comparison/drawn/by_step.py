"""Curves over RL steps: step time, acceptance length and drafter age."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import MaxNLocator

from tlt.analysis.drawing.estimates import number
from tlt.analysis.drawing.figure import Picture, draw, policy_label, policy_legend, policy_style
from tlt.analysis.load import Run, basis_of
from tlt.traces.common.arrays import Floats
from tlt.traces.runs.acceptance import lengths_with_bonus

_MARKED_STEPS = 40  # up to this many RL steps each one gets a marker
_POINTS = 1_000  # of a line: of longer runs every n-th step is drawn


def acceptance_by_step(run: Run) -> Floats:
    """Return the acceptance length with bonus of each RL step; NaN where nothing was drafted."""
    accepted, request_steps = (run.steps[name] for name in ("accepted_tokens", "request_steps"))
    return lengths_with_bonus(accepted.to_numpy(np.float64), request_steps.to_numpy(np.float64))


def drafter_age(run: Run) -> Floats:
    """Return the drafter's age in RL steps; NaN where there is no drafter, or where it never drafted."""
    ages = run.steps["drafter_age_steps"].to_numpy().astype(np.float64)
    drafted = bool(run.steps["request_steps"].any())
    return np.where((run.steps["drafter_version"].to_numpy() >= 0) & drafted, ages, np.nan)


def draw_by_step(runs: tuple[Run, ...]) -> Picture:
    """Draw step time, acceptance length with bonus and drafter age over RL steps, where there are any."""
    panels: list[tuple[str, Callable[[Run], Floats]]] = [("step time (s)", Run.step_seconds)]
    if any(np.isfinite(acceptance_by_step(run)).any() for run in runs):
        panels.append(("acceptance length\n(with bonus token)", acceptance_by_step))
    if any(np.isfinite(drafter_age(run)).any() for run in runs):
        panels.append(("drafter age\n(RL steps)", drafter_age))

    def build(figure: SubFigure) -> str:
        ratios = [1.5, *(1.0 for _ in panels[1:])]
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        for panel, (label, values) in zip(axes, panels, strict=True):
            _panel(panel, runs, label, values)
        highest_s = max([0.0, *(float(run.step_seconds().max()) for run in runs if len(run.steps))])
        axes[0].set_ylim(0, 1.1 * highest_s if highest_s > 0 else 1.0)
        axes[-1].set_xlabel("RL step")
        policy_legend(figure, [run.policy for run in runs])
        return _title(runs)

    title, image = draw(build, 1.5 + 1.45 * len(panels), basis_of(runs))
    caption = "Each RL step in turn. Policies without drafting have no acceptance length and no drafter age."
    return Picture("by_step", title, caption, image)


def _panel(axes: Axes, runs: Sequence[Run], label: str, values: Callable[[Run], Floats]) -> None:
    first, last = _span(runs)
    for index, run in enumerate(runs):
        steps, heights = run.steps["step"].to_numpy(), values(run)
        stride = max(1, -(-len(steps) // _POINTS))
        axes.plot(
            steps[::stride],
            heights[::stride],
            marker="o" if len(steps) <= _MARKED_STEPS else "",
            linewidth=1.7 if len(steps) <= 100 else 1.1,
            **policy_style(index),
        )
    axes.set_ylabel(label)
    axes.grid()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=values is drafter_age))
    if values is drafter_age:
        oldest = max([1.0, *(float(age) for run in runs for age in drafter_age(run) if age > 0)])
        axes.set_ylim(-0.05 * oldest, 1.08 * oldest)
    margin = max(0.5, 0.01 * (last - first))
    axes.set_xlim(first - margin, last + margin)


def _span(runs: Sequence[Run]) -> tuple[int, int]:
    """Return the first and the last RL step of all runs."""
    steps = np.concatenate([run.steps["step"].to_numpy() for run in runs])
    return (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)


def _title(runs: Sequence[Run]) -> str:
    means = [float(run.step_seconds().mean()) if len(run.steps) else 0.0 for run in runs]
    words = f"A step takes {number(means[0])} s in the mean under {policy_label(runs[0].policy)}"
    fastest = int(np.argmin(means))
    return (
        words
        if fastest == 0
        else f"{words}, {number(means[fastest])} s under {policy_label(runs[fastest].policy)}"
    )
