"""Running requests during one RL step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tlt.analysis.comparison.drawn.gantt import step_window_s
from tlt.analysis.drawing.figure import Picture, draw, policy_label, policy_legend, policy_style
from tlt.analysis.load import Run, basis_of
from tlt.traces.common.arrays import Floats


def running_requests(starts_s: Floats, finishes_s: Floats) -> tuple[Floats, Floats]:
    """Return times and the number of requests that run from each time to the next; times ascend."""
    times = np.concatenate((starts_s, finishes_s))
    changes = np.concatenate((np.ones(len(starts_s)), -np.ones(len(finishes_s))))
    order = np.argsort(times, kind="stable")
    times, counts = times[order], np.cumsum(changes[order])
    last = np.append(times[1:] != times[:-1], True) if len(times) else np.empty(0, dtype=bool)
    return times[last], counts[last]


def draw_running(runs: tuple[Run, ...], step: int) -> Picture:
    """Draw how many requests run during one RL step: in all, and on the worker that finishes last."""
    several = any(run.summary.workers > 1 for run in runs)
    start_of = [step_window_s(run, step)[0] for run in runs]
    rows = [run.responses[run.responses["step"] == step] for run in runs]

    def build(figure: SubFigure) -> str:
        panels = figure.subplots(1, 2 if several else 1, sharex=True, squeeze=False)[0]
        latest_s = 0.0
        for index, (start_s, frame) in enumerate(zip(start_of, rows, strict=True)):
            if len(frame) == 0:
                continue
            latest_s = max(latest_s, float(frame["finish_s"].max()) - start_s)
            last = frame["worker"].iloc[int(frame["finish_s"].to_numpy().argmax())]
            shown = [frame, frame[frame["worker"] == last]] if several else [frame]
            for axes, part in zip(panels, shown, strict=True):
                times, counts = running_requests(part["start_s"].to_numpy(), part["finish_s"].to_numpy())
                axes.step(times - start_s, counts, where="post", **policy_style(index), alpha=0.9)
        _finish_running(panels, runs, step, latest_s)
        policy_legend(figure, [run.policy for run in runs])
        return _running_title(rows[0], start_of[0], policy_label(runs[0].policy), step)

    title, image = draw(build, 3.9, basis_of(runs))
    caption = f"Requests in flight during RL step {step}, from the start of the step. "
    if several:
        caption += (
            "Left: the whole cluster. Right (log scale): the worker whose last response ends the rollout."
        )
    return Picture("running", title, caption, image)


def _finish_running(panels: Sequence[Axes], runs: tuple[Run, ...], step: int, latest_s: float) -> None:
    for axes in panels:
        axes.set_xlabel(f"time since the start of RL step {step} (s)")
        axes.set_ylabel("running requests")
        axes.set_xlim(0, latest_s * 1.02 if latest_s > 0 else 1.0)
        axes.grid()
        axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    panels[0].set_title("all workers" if len(panels) > 1 else "")
    panels[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    per_worker = panels[-1]
    if len(panels) > 1:
        per_worker.set_title("the worker that finishes last")
    highest = max([1.0, *(float(np.max(line.get_ydata())) for line in per_worker.get_lines())])
    if len(panels) > 1:
        per_worker.set_yscale("log", base=2)
        per_worker.set_ylim(0.9, highest * 1.3)
        per_worker.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    thresholds = dict.fromkeys(run.threshold_requests() for run in runs)
    for threshold in thresholds:
        if threshold is not None and 0 < threshold <= highest:
            per_worker.axhline(threshold, color="#d62728", linewidth=0.8)
            per_worker.annotate(
                f"threshold {threshold:g}",
                (1.0, threshold),
                xycoords=("axes fraction", "data"),
                xytext=(-3, 2),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color="#d62728",
            )


def _running_title(rows: pd.DataFrame, start_s: float, policy: str, step: int) -> str:
    """Say when half of the requests were done and how long the last one took."""
    if len(rows) == 0:
        return f"No requests ran in RL step {step}"
    finishes_s = np.sort(rows["finish_s"].to_numpy()) - start_s
    most_s, last_s = float(finishes_s[int(0.9 * (len(finishes_s) - 1))]), float(finishes_s[-1])
    if last_s <= 0:
        return f"RL step {step} took no time"
    return f"Under {policy}, the last tenth of the requests takes {1 - most_s / last_s:.0%} of the rollout"
