"""The designs of a plan: seconds a step against cost, GPUs, or the kind of GPU."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D

from tlt.analysis.drawing.figure import POLICY_COLOURS, Picture, draw, plain
from tlt.traces.common.arrays import Floats
from tlt.traces.results.plan import Plan, PlanFiles

MARKERS = "osD^v<>P"

FRONT = "#777777"


def draw_plan(found: PlanFiles) -> Picture:
    """Draw every design that was simulated; finalists with interval and number."""
    plan = found.plan
    rows = found.designs[found.designs["steps"] > 0].reset_index(drop=True)
    most = int(rows["steps"].max())
    finalists = rows[rows["stage"] == "finalist"].sort_values("step_s").assign(place=lambda kept: kept.index)

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        across = _across(axes, plan, rows)
        colours = {name: POLICY_COLOURS[index % len(POLICY_COLOURS)] for index, name in
                   enumerate(rows["schedule"].drop_duplicates())}  # fmt: skip
        markers = {name: MARKERS[index % len(MARKERS)] for index, name in
                   enumerate(rows["gpu"].drop_duplicates())}  # fmt: skip
        for index, (_, row) in enumerate(rows.iterrows()):
            whole = row["steps"] == most
            colour = colours[row["schedule"]]
            axes.plot(
                across[index], row["step_s"], markers[row["gpu"]], color=colour, zorder=3 if whole else 2,
                markersize=6.5 if whole else 4, markerfacecolor=colour if whole else "white",
                markeredgewidth=0.8, alpha=1.0 if whole else 0.6,
            )  # fmt: skip
        quantity = bool(plan.usd_per_gpu_hour) or rows["gpus"].nunique() > 1
        if quantity:
            _front(axes, across, rows, most)
        labels = _finalists(axes, across, finalists, plan)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:,.0f}")
        axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.set_ylabel("seconds a step for the same trained tokens\n(log scale)")
        axes.grid(axis="y", which="both", linewidth=0.4)
        _legend(figure, colours, markers, labels, quantity)
        return _title(plan)

    title, image = draw(build, 4.6 + 0.2 * len(finalists), _basis(found))
    caption = (
        f"Every design that was simulated. Filled: over all {most} steps; hollow: over fewer, which flatters "
        "schedules that put long responses off. Bars: 95 % intervals over step times, acceptance, drift, "
        "phases and lengths, much of which all designs share. Numbers name the finalists."
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


def _front(axes: Axes, across: Floats, rows: pd.DataFrame, most: int) -> None:
    """Draw the Pareto front of the designs that ran all steps."""
    whole = [(x, row["step_s"]) for x, (_, row) in zip(across.tolist(), rows.iterrows(), strict=True)
             if row["steps"] == most]  # fmt: skip
    front: list[tuple[float, float]] = []
    for x, y in sorted(whole):
        if not front or y < front[-1][1]:
            front.append((x, y))
    axes.step(*zip(*front, strict=True), where="post", color=FRONT, linewidth=1.0, zorder=1)


def _finalists(axes: Axes, across: Floats, finalists: pd.DataFrame, plan: Plan) -> list[str]:
    """Draw intervals and numbers; returns what each number stands for."""
    labels = []
    for number, (_, row) in enumerate(finalists.iterrows(), 1):
        at = across[row["place"]]
        value = row["usd_per_step"] if plan.objective == "USD a step" else row["step_s"]
        low, high = (row["step_s"] * bound / value for bound in (row["low"], row["high"]))
        axes.plot([at] * 2, [low, high], color="#333333", linewidth=1.0, zorder=2)
        axes.annotate(
            str(number), (at, high), xytext=(0, 3), ha="center",
            textcoords="offset points", fontsize=8.5, fontweight="bold", zorder=4,
        )  # fmt: skip
        labels.append(f"{number}  {row['design']}: {row['step_s']:.4g} s [{low:.4g}, {high:.4g}]")
    return labels


def _legend(
    figure: SubFigure, colours: dict[str, str], markers: dict[str, str], labels: list[str], front: bool
) -> None:
    handles = [Line2D([], [], marker="o", linestyle="", color=colour, label=plain(name))
               for name, colour in colours.items()]  # fmt: skip
    handles += [Line2D([], [], marker=marker, linestyle="", color="#555555", label=plain(name))
                for name, marker in markers.items()]  # fmt: skip
    if front:
        handles.append(Line2D([], [], color=FRONT, linewidth=1.0, label="Pareto front"))
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
