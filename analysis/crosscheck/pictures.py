"""The cross-check as pictures: times on the identity line, speedups, engine steps over context."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tlt.analysis.crosscheck.engine_steps import load_engine_steps, steady
from tlt.analysis.crosscheck.figures import Crosscheck, Pair, Sample
from tlt.analysis.drawing.estimates import error_text
from tlt.analysis.drawing.figure import (
    BAND,
    POLICY_COLOURS,
    Picture,
    draw,
    legend_below,
    policy_label,
    policy_style,
)
from tlt.analysis.load import basis_of
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate

MOST_POINTS = 3_000  # drawn of each K; more would only be a blot
CURVE_BINS = 12
BIN_ENGINE_STEPS = 30  # fewer make a median jump


def draw_crosscheck(pair: Pair, check: Crosscheck) -> list[Picture]:
    """Draw all pictures; the last one only where single engine steps are on record."""
    pictures = [_makespans(pair, check), _speedups(pair, check)]
    rows = _all_engine_steps(pair)
    if len(rows):
        pictures.append(_residuals(pair, rows))
    return pictures


def _all_engine_steps(pair: Pair) -> pd.DataFrame:
    """Return the steady engine steps of all policies; `series` is K, or -1 where no speculation was
    configured.
    """
    found = [pd.DataFrame()]
    for run in pair.simulated:
        engine_steps = load_engine_steps(run.path, pair.steps)
        if engine_steps is not None:
            rows = steady(engine_steps)
            plain = not run.intervals["cause"].isin(("decode_off", "speculate")).any()
            found.append(rows.assign(series=-1 if plain else rows["k"].astype(int)))
    return pd.concat(found, ignore_index=True)


def _makespans(pair: Pair, check: Crosscheck) -> Picture:
    sample = Sample(pair)

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        for index in range(len(pair.measured)):
            _policy_dots(axes, sample, index)
        low = 0.94 * min(sample.real.min(), sample.model.min())
        high = 1.04 * max(sample.real.max(), sample.model.max())
        axes.plot([low, high], [low, high], color="#888888", linewidth=1, zorder=0)
        axes.fill_between(
            [low, high], [0.95 * low, 0.95 * high], [1.05 * low, 1.05 * high], color=BAND, zorder=-1
        )
        axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", anchor="W")
        axes.set_xlabel("measured makespan of a rollout (s)")
        axes.set_ylabel("simulated makespan (s)")
        axes.grid()
        handles = [
            Line2D([], [], linestyle="", marker="o", color=policy_style(index)["color"])
            for index in range(len(pair.measured))
        ]
        labels = [
            f"{policy_label(run.policy)}: {error_text(policy.makespan_error)}"
            for run, policy in zip(pair.measured, check.policies, strict=True)
        ]
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.02, 1.0))
        worst = check.worst()
        error = f"{abs(worst.makespan_error.value):.1%}"
        return f"The simulator misses makespans by {error} at most ({worst.policy})"

    title, image = draw(build, 5.4, basis_of((*pair.measured, *pair.simulated)))
    caption = (
        "Each small dot is a rollout, each large one the mean of a policy with 95 % intervals of both means. "
        "On the line the simulator is right; the grey band is 5 % to both sides."
    )
    return Picture("crosscheck_makespan", title, caption, image)


def _policy_dots(axes: Axes, sample: Sample, index: int) -> None:
    real, model, colour = sample.real[index], sample.model[index], policy_style(index)["color"]
    axes.scatter(real, model, s=14, color=colour, alpha=0.5, linewidths=0)
    x, y = float(real.mean()), float(model.mean())
    across, up = _reach(sample, real, x), _reach(sample, model, y)
    axes.errorbar([x], [y], xerr=across, yerr=up, fmt="o", color=colour, markersize=7, elinewidth=1.2,
                  markeredgecolor="white")  # fmt: skip


def _reach(sample: Sample, makespans: Floats, mean: float) -> Floats | None:
    """Return how far the interval of a mean reaches to both sides, [2, 1]; None for a single rollout."""
    found = sample.rollouts.mean(makespans, positive=True).interval
    return None if found is None else np.array([[mean - found[0]], [found[1] - mean]])


def _speedups(pair: Pair, check: Crosscheck) -> Picture:
    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        for row, policy in enumerate(check.policies):
            _whisker(axes, row - 0.13, policy.measured_speedup, "#000000", "o")
            _whisker(axes, row + 0.13, policy.simulated_speedup, "#0072B2", "D")
        axes.axvline(1.0, color="#888888", linewidth=1, zorder=0)
        axes.set_yticks(range(len(check.policies)), [policy_label(run.policy) for run in pair.measured])
        axes.set_ylim(len(check.policies) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.06)
        axes.grid(axis="x")
        axes.set_xlabel(f"speedup over {policy_label(pair.measured[0].policy)}")
        handles = [
            Line2D([], [], linestyle="", marker=marker, color=colour)
            for marker, colour in (("o", "#000000"), ("D", "#0072B2"))
        ]
        legend_below(figure, handles, ["measured", "simulated"])
        same = "the same policy fastest" if check.best == check.choice else "another policy fastest"
        return f"Measured, {check.best} is the fastest; the simulator finds {same} ({check.choice})"

    title, image = draw(build, 0.5 * len(check.policies) + 1.6, basis_of((*pair.measured, *pair.simulated)))
    caption = (
        "Speedup of each policy over the first, each world against its own baseline, with 95 % intervals "
        "over rollouts. The simulator need not be right about a time to be right about which policy is "
        "faster."
    )
    return Picture("crosscheck_speedup", title, caption, image)


def _whisker(axes: Axes, y: float, estimate: Estimate, colour: str, marker: str) -> None:
    if estimate.interval is not None:
        axes.plot(estimate.interval, [y, y], color=colour, linewidth=1.4)
    axes.plot([estimate.value], [y], color=colour, marker=marker)


def _residuals(pair: Pair, rows: pd.DataFrame) -> Picture:
    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        for index, (series, some) in enumerate(rows.groupby("series")):
            colour = POLICY_COLOURS[index % len(POLICY_COLOURS)]
            ordered = some.sort_values("context", ignore_index=True)
            thin = ordered.iloc[:: -(-len(ordered) // MOST_POINTS)]
            axes.scatter(thin["context"], thin["error"], s=4, color=colour, alpha=0.15, linewidths=0)
            name = "not configured" if series == -1 else f"K = {series}"
            axes.plot(*_curve(ordered), color=colour, marker="o", label=name)
        low, high = np.quantile(rows["error"], [0.01, 0.99])
        reach = max(abs(float(low)), abs(float(high)), 0.02) * 1.1
        axes.set_ylim(-reach, reach)
        axes.axhline(0.0, color="#444444", linewidth=1, zorder=0)
        axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{100 * value:+g} %" if value else "0 %")
        )
        axes.margins(x=0.02)
        axes.grid()
        axes.set_xlabel("mean context of a request in the batch (tokens)")
        axes.set_ylabel("predicted engine step over measured, less 1")
        handles, labels = axes.get_legend_handles_labels()
        legend_below(figure, handles, labels)
        typical = float(rows["error"].abs().median())
        return f"Half of all single engine steps are predicted within {typical:.1%}"

    title, image = draw(build, 4.4, basis_of((*pair.measured, *pair.simulated)))
    caption = (
        "Each dot is a measured decode engine step against the law at its own batch, context and K; the "
        "lines are medians. A line that leaves zero with the context shows a cost of context that the law "
        "lacks. Not configured: the engine without speculation; K = 0: with it, while nothing is drafted."
    )
    return Picture("crosscheck_engine_steps", title, caption, image)


def _curve(some: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Return the median error in bins of about as many engine steps each; `some` is in order of context."""
    bins = min(CURVE_BINS, 1 + len(some) // BIN_ENGINE_STEPS)
    parts = [part for part in np.array_split(np.arange(len(some)), bins) if len(part)]
    return (
        [float(some["context"].iloc[part].median()) for part in parts],
        [float(some["error"].iloc[part].median()) for part in parts],
    )
