"""The designs of a plan: seconds a step against cost, GPUs, or the kind of GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D

from tlt.analysis.drawing.figure import POLICY_COLOURS, Picture, draw, plain
from tlt.traces.common.arrays import Floats
from tlt.traces.results.plan import Plan, PlanFiles, unsettled

MARKERS, UNRANKED = "osD^v<>P", "x"
FRONT = "#888888"
RANKED: dict[str, Any] = {"markersize": 7, "zorder": 3}
OTHERS: dict[str, Any] = {
    "markersize": 4.5, "zorder": 2, "alpha": 0.7, "markerfacecolor": "#ffffff", "markeredgewidth": 1.0,
}  # fmt: skip
GREY: dict[str, Any] = {"linestyle": "", "color": "#666666"}
APART, HIGH = 0.022, 0.06  # of the axes, and of the log of seconds: numbers nearer than both would touch


def draw_plan(found: PlanFiles) -> Picture:
    """Draw every design that was simulated; finalists with interval and number."""
    plan = found.plan
    rows = found.designs[found.designs["steps"] > 0].reset_index(drop=True)
    most = int(rows["steps"].max())
    finalists = rows[rows["stage"] == "finalist"].sort_values("step_s").assign(place=lambda kept: kept.index)

    left_behind = unsettled(rows).to_numpy()

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        across = _across(axes, plan, rows)
        colours = {name: POLICY_COLOURS[index % len(POLICY_COLOURS)] for index, name in
                   enumerate(rows["schedule"].drop_duplicates())}  # fmt: skip
        markers = {name: MARKERS[index % len(MARKERS)] for index, name in
                   enumerate(rows["gpu"].drop_duplicates())}  # fmt: skip
        whole = (rows["steps"] == most).to_numpy() & ~left_behind
        for index, (_, row) in enumerate(rows.iterrows()):
            marker, filled = markers[row["gpu"]], bool(whole[index])
            axes.plot(
                across[index], row["step_s"], UNRANKED if left_behind[index] else marker,
                color=colours[row["schedule"]], **(RANKED if filled else OTHERS),
            )  # fmt: skip
        quantity = bool(plan.usd_per_gpu_hour) or rows["gpus"].nunique() > 1
        if quantity and whole.any():
            _front(axes, across[whole], rows[whole])
        labels = _finalists(axes, across, finalists, plan)
        _seconds_axis(axes)
        handles = _handles(colours, markers if len(markers) > 1 else {})
        if (rows["steps"] < most).any():
            handles.append(Line2D([], [], marker="o", label=f"fewer than {most} steps", **GREY, **OTHERS))
        if left_behind.any():
            handles.append(Line2D([], [], marker=UNRANKED, label="not ranked: too much left behind", **GREY))
        if quantity:
            handles.append(Line2D([], [], color=FRONT, linewidth=1.0, label="Pareto front"))
        _legend(figure, handles, labels)
        return _title(plan)

    title, image = draw(build, 4.6 + 0.2 * len(finalists), _basis(found))
    caption = (
        f"Every design that was simulated. Filled: over all {most} steps; hollow: over fewer, which flatters "
        "schedules that put long responses off; crosses leave too much behind at their end to be ranked. "
        "Bars: 95 % intervals over step times, acceptance, drift, phases and lengths, much of which all "
        "designs share. Numbers name the finalists."
    )
    return Picture("plan", title, caption, image)


def _across(axes: Axes, plan: Plan, rows: pd.DataFrame) -> Floats:
    """Set the horizontal axis up; returns where each row stands on it."""
    axes.margins(x=0.06)
    if plan.usd_per_gpu_hour:
        axes.set_xlabel("USD a step")
        return rows["usd_per_step"].to_numpy(dtype=np.float64)
    if rows["gpus"].nunique() > 1:
        axes.set_xlabel("GPUs")
        return rows["gpus"].to_numpy(dtype=np.float64) + _aside(rows, 0.02 * float(rows["gpus"].max()))
    names = (rows["gpu"] + " TP" + rows["tp"].astype(str)).to_numpy()
    order = list(dict.fromkeys(sorted(names.tolist())))
    axes.set_xticks(range(len(order)), order)
    axes.set_xlim(-0.6, len(order) - 0.4)
    axes.set_xlabel(f"GPU and tensor parallelism ({plan.gpus_budget} GPUs at most); a column a schedule")
    return np.array([order.index(name) for name in names.tolist()]) + _aside(
        rows, 0.8 / rows["schedule"].nunique()
    )


def _aside(rows: pd.DataFrame, width: float) -> Floats:
    """Return by how much to move each row aside: a column a schedule, its policies beside one another."""
    codes, names = pd.factorize(rows["schedule"])
    policies, known = pd.factorize(rows["policy"])
    within = (policies - (len(known) - 1) / 2) / (len(known) + 1)
    return np.asarray((codes - (len(names) - 1) / 2 + within) * width, np.float64)


def _front(axes: Axes, across: Floats, rows: pd.DataFrame) -> None:
    """Draw the Pareto front of designs that ran all steps and are ranked."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(zip(across.tolist(), rows["step_s"].tolist(), strict=True)):
        if not front or y < front[-1][1]:
            front.append((x, y))
    axes.step(*zip(*front, strict=True), where="post", color=FRONT, linewidth=1.0, zorder=1)


def _seconds_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.set_ylabel("seconds a step for the same trained tokens\n(log scale)")
    axes.grid(axis="y", which="both", linewidth=0.4)


def _finalists(axes: Axes, across: Floats, finalists: pd.DataFrame, plan: Plan) -> list[str]:
    """Draw intervals and, above them, numbers; returns what each number stands for."""
    labels, taken = [], list[tuple[float, float]]()
    left, right = axes.get_xlim()
    near = APART * (right - left)
    for number, (_, row) in enumerate(finalists.iterrows(), 1):
        at = across[row["place"]]
        value = row["usd_per_step"] if plan.objective == "USD a step" else row["step_s"]
        low, high = (row["step_s"] * bound / value for bound in (row["low"], row["high"]))
        axes.plot([at] * 2, [low, high], color="#333333", linewidth=1.0, zorder=2)
        beside = at
        while any(abs(beside - x) < near and abs(np.log(high / y)) < HIGH for x, y in taken):
            beside += near
        taken.append((beside, high))
        axes.annotate(
            str(number), (beside, high), xytext=(0, 3), ha="center",
            textcoords="offset points", fontsize=8.5, fontweight="bold", zorder=4,
        )  # fmt: skip
        labels.append(f"{number}  {row['design']}: {row['step_s']:.4g} s [{low:.4g}, {high:.4g}]")
    return labels


def _handles(colours: dict[str, str], markers: dict[str, str]) -> list[Line2D]:
    handles = [Line2D([], [], marker="o", linestyle="", color=colour, label=plain(name))
               for name, colour in colours.items()]  # fmt: skip
    handles += [Line2D([], [], marker=marker, label=plain(name), **GREY) for name, marker in markers.items()]
    return handles


def _legend(figure: SubFigure, handles: list[Line2D], labels: list[str]) -> None:
    figure.legend(handles=handles, loc="outside lower right", ncols=1, handletextpad=0.2,
                  columnspacing=1.2)  # fmt: skip
    named = [Line2D([], [], linestyle="", label=plain(label)) for label in labels]
    figure.legend(handles=named, loc="outside lower left", ncols=1, handlelength=0, fontsize=8)


def _title(plan: Plan) -> str:
    sure = f"; {plan.other_better:.0%} chance that another finalist is better" if plan.runner_up else ""
    return f"{plan.best}{sure}"


def _basis(found: PlanFiles) -> tuple[str, ...]:
    finalists = found.designs[found.designs["stage"] == "finalist"]
    sources = dict.fromkeys(
        f"{row['gpu']} TP{row['tp']}: {row['cost_source']}"
        + (" (assumed)" * (row["provenance"] == "assumed"))
        for _, row in finalists.iterrows()
    )
    plan = found.plan
    return (
        "simulated",
        f"cost: {'; '.join(sources)}",
        f"acceptance: {plan.acceptance_source}",
        f"lengths: {plan.lengths_source}",
    )
