"""The gain of drafting over no speculation against batch size."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tlt.analysis.comparison.advice import pays_sentence
from tlt.analysis.drawing.figure import Picture, draw, legend_below, plain
from tlt.analysis.load import Run, basis_of
from tlt.traces.common.regret import TIE
from tlt.traces.runs.runfolder import Advice, BatchAdvice

_COLOUR = "#08519c"


def draw_gain(runs: tuple[Run, ...], advice: Advice) -> Picture:
    """Draw the gain of the best draft configuration at each batch size with its interval. `advice` has a row
    or more.
    """

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        _curve(axes, advice.rows)
        _scales(axes, advice.rows)
        _names(axes, advice.rows)
        _legend(figure, advice.rows)
        return pays_sentence(advice).removesuffix(".")

    title, image = draw(build, 4.1, basis_of(runs))
    caption = (
        "Tokens per second of the best draft configuration over those without speculation, by the number of "
        "requests that one worker runs. Fewer running requests are also longer ones: the context is that of "
        "the table. A name stands where the best draft configuration changes. The band is a 95 % interval "
        "over step-time error alone."
    )
    return Picture("gain", title, caption, image)


def _curve(axes: Axes, rows: tuple[BatchAdvice, ...]) -> None:
    batches = np.array([row.requests for row in rows])
    low, high = np.array([row.gain_low for row in rows]), np.array([row.gain_high for row in rows])
    axes.fill_between(batches, low, high, color=_COLOUR, alpha=0.25, linewidth=0)
    axes.plot(batches, [row.gain for row in rows], color=_COLOUR)
    for row in rows:
        # A band of one batch has no width, so every point shows its interval as a bar as well.
        axes.plot([row.requests] * 2, [row.gain_low, row.gain_high], color=_COLOUR, linewidth=1.0)
        axes.plot(row.requests, row.gain, "o", color=_COLOUR, markerfacecolor=_fill(_is_open(row)))


def _is_open(row: BatchAdvice) -> bool:
    """Return whether more than TIE may be lost by the best draft configuration."""
    return row.regret_high is not None and row.regret_high > TIE


def _fill(is_open: bool) -> str:
    return "white" if is_open else _COLOUR


def _scales(axes: Axes, rows: tuple[BatchAdvice, ...]) -> None:
    first, last = rows[0].requests, rows[-1].requests
    axes.set_xscale("log", base=2)
    axes.set_xlim(first / 1.25, last * 1.25)
    axes.xaxis.set_major_locator(FixedLocator([row.requests for row in rows]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("batch: running requests of one worker (log scale)")
    axes.set_ylabel("gain over no speculation\n(tokens/s, ratio)")
    highest = max(1.0, *(max(row.gain, row.gain_high) for row in rows))
    lowest = min(1.0, *(min(row.gain, row.gain_low) for row in rows))
    spread = max(highest - lowest, 0.2)
    axes.set_ylim(lowest - 0.12 * spread, highest + 0.2 * spread)
    axes.grid(axis="y")
    axes.axhline(1.0, color="#d62728", linewidth=1.0, zorder=1)


def _names(axes: Axes, rows: tuple[BatchAdvice, ...]) -> None:
    """Write the draft configuration's name above the first batch at which it is best, going from small to
    large batches.
    """
    before = None
    for row in rows:
        if row.draft_config != before:
            axes.annotate(
                plain(f"chain {row.draft_config}" if row.draft_config.isdigit() else row.draft_config),
                (row.requests, max(row.gain, row.gain_high)),
                xytext=(-2, 5),
                textcoords="offset points",
                rotation=30,  # names of neighbours would run into each other
                rotation_mode="anchor",
                fontsize=8.5,
            )
        before = row.draft_config


def _legend(figure: SubFigure, rows: tuple[BatchAdvice, ...]) -> None:
    handles: list[Line2D | Patch] = [
        Patch(facecolor=_COLOUR, alpha=0.25, label="95 % interval over step-time error"),
        Line2D([], [], color="#d62728", linewidth=1.0, label="no speculation"),
    ]
    for is_open, words in (
        (False, "best draft configuration"),
        (True, f"best, more than {TIE:.0%} may be lost"),
    ):
        if any(_is_open(row) == is_open for row in rows):
            marker = Line2D([], [], marker="o", color=_COLOUR, markerfacecolor=_fill(is_open), label=words)
            handles.append(marker)
    legend_below(figure, handles)
