"""The ledger as bars: GPU time by cause, one bar a policy."""

from __future__ import annotations

from typing import Any

import matplotlib.colors
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from tlt.analysis.comparison.verdict import ceilings
from tlt.analysis.drawing.figure import CAUSE_COLOURS, INK, PAPER, Picture, cause_legend, draw, policy_label
from tlt.analysis.ledger import Ledger
from tlt.analysis.load import Run, basis_of
from tlt.traces.results.answer import Ceiling
from tlt.traces.results.bounds import Bounds
from tlt.traces.runs.runfolder import CAUSES

_BOUND_ROWS = 0.55  # height of a bound's label, in bars
_GAP = 0.9  # percent of the baseline between a bar and its figure
_LABEL_FROM = 4.0  # percent of the baseline: a narrower segment has no room for its figure


def draw_bars(runs: tuple[Run, ...], ledgers: tuple[Ledger, ...], bounds: Bounds | None = None) -> Picture:
    """Draw the ledgers of `runs` (same order) in percent of the baseline's GPU time.

    Lines show the `bounds`, at the bars of those schedules alone that they hold for.
    """
    whole_gpu_s = ledgers[0].total_gpu_s()
    scale = 100 / whole_gpu_s if whole_gpu_s > 0 else 0.0
    used = [cause for cause in CAUSES if any(ledger.gpu_seconds[cause] > 0 for ledger in ledgers)]

    limits = [] if bounds is None or not bounds.rows else ceilings(bounds, runs[0])
    limits.sort(key=lambda limit: -limit.speedup)  # a label then meets no line of another

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        for row, ledger in enumerate(ledgers):
            _bar(axes, row, ledger, scale)
        longest = max([100.0, *(ledger.total_gpu_s() * scale for ledger in ledgers)])
        axes.set_xlim(0, longest * (1.3 if limits else 1.16))
        axes.set_ylim(len(runs) - 0.4, -0.6 - _BOUND_ROWS * len(limits))
        axes.set_yticks(range(len(runs)), [policy_label(run.policy) for run in runs])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.set_xlabel(f"GPU time, % of {policy_label(runs[0].policy)} ({_hours(whole_gpu_s)})")
        cause_legend(figure, used)
        _lines(axes, limits, [run.keeps_order() for run in runs])
        return _title(runs, ledgers)

    title, image = draw(build, 0.42 * (len(runs) + _BOUND_ROWS * len(limits)) + 2.4, basis_of(runs))
    caption = (
        "GPU-seconds booked to each cause, as a share of the first policy's total; a shorter bar is a faster "
        "run. Every GPU-second is booked exactly once."
    )
    if limits:
        caption += (
            " Dashed lines are bounds under what their labels say, drawn at the bars of the schedules "
            "that they hold for: some hold for those alone that train each step on its own responses."
        )
    return Picture("ledger", title, caption, image)


def _lines(axes: Axes, limits: list[Ceiling], in_order: list[bool]) -> None:
    """Draw each bound through the bars that it holds for, its label in a row of its own above them."""
    for index, limit in enumerate(limits):
        at, row = 100 / limit.speedup, -0.6 - _BOUND_ROWS * (len(limits) - index - 0.5)
        style: dict[str, Any] = {"color": "#000000", "linewidth": 0.8}
        axes.plot([at, at], [row - 0.2, row + 0.2], linestyle="-", **style)
        for bar, keeps in enumerate(in_order):
            if keeps or not limit.in_order:
                axes.plot([at, at], [bar - 0.46, bar + 0.46], linestyle="--", **style)
        axes.text(at + 0.6, row, f"{limit.speedup:.2f}x: {limit.words}", fontsize=7.5, va="center")


def _bar(axes: Axes, row: int, ledger: Ledger, scale: float) -> None:
    left = 0.0
    for cause, gpu_s in ledger.gpu_seconds.items():
        width = gpu_s * scale
        axes.barh(row, width, left=left, height=0.74, color=CAUSE_COLOURS[cause], linewidth=0)
        if width >= _LABEL_FROM:
            axes.text(
                left + width / 2,
                row,
                f"{width:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                color=_ink(CAUSE_COLOURS[cause]),
            )
        left += width
    cover = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # of a bound's line that passes
    axes.text(left + _GAP, row, _hours(ledger.total_gpu_s()), va="center", fontsize=8.5, bbox=cover)


def _hours(gpu_s: float) -> str:
    hours = gpu_s / 3600
    return f"{hours:,.0f} GPU-h" if hours >= 100 else f"{hours:#.3g} GPU-h"


def _ink(fill: str) -> str:
    """Return dark or light ink, whichever reads better on `fill`."""
    red, green, blue = matplotlib.colors.to_rgb(fill)
    return PAPER if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


def _title(runs: tuple[Run, ...], ledgers: tuple[Ledger, ...]) -> str:
    idle = [ledger.idle_share() for ledger in ledgers]
    words = f"Idle is {idle[0]:.0%} of the GPU time under {policy_label(runs[0].policy)}"
    least = min(range(len(idle)), key=lambda index: idle[index])
    return words if least == 0 else f"{words} and {idle[least]:.0%} under {policy_label(runs[least].policy)}"
