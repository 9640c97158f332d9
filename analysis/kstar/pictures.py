"""The K* map as pictures: the best draft configuration and its gain over batch and acceptance, and over batch
and context.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy.ndimage import distance_transform_cdt, label

from tlt.analysis.drawing.figure import INK, PAPER, Picture, draw, legend_below, plain
from tlt.traces.common.arrays import Floats
from tlt.traces.common.regret import TIE
from tlt.traces.results.kstar import CONFIGURED, KStar, KStarMap

# Its dark end is left out: black names and borders must be legible on it.
COLOURS = ListedColormap(colormaps["YlGnBu"](np.linspace(0.04, 0.68, 256)))
OFF_COLOUR = "#e4e4e4"
EVEN_COLOUR = "#d62728"
HATCH = "#8c8c8c"
GAIN_TICKS = (1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12)
COLUMNS = 2  # panels beside each other
NAME_SHARE = (0.09, 0.085)  # of a panel that a name takes
MOST_CELLS = (10, 14)  # rows and columns whose cells can each be named
# The map keeps its light colours on a dark page, so that what stands on it keeps its ink.
BORDER: dict[str, Any] = {"color": "#454545", "linewidth": 0.6, "solid_capstyle": "butt"}
NAME: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True, "color": INK}
BEHIND_NAME: dict[str, Any] = {
    "boxstyle": "square,pad=0.12",
    "facecolor": PAPER,
    "alpha": 0.75,
    "linewidth": 0,
}


def draw_kstar(found: KStarMap) -> list[Picture]:
    """Draw the map over batch and acceptance (chains alone), and the one under the configured law."""
    pictures = [_by_context(found)]
    if found.about.rates:
        pictures.insert(0, _by_acceptance(found))
    return pictures


class Grid:
    """Cells of one panel: rows of y (acceptance or context) by columns of batch, with their edges."""

    def __init__(self, rows: pd.DataFrame, y: str, x_edges: Floats, y_edges: Floats) -> None:
        self.x_edges, self.y_edges = x_edges, y_edges

        def table(column: str) -> pd.DataFrame:
            return rows.pivot(index=y, columns="batch", values=column)

        self.draft_config = table("draft_config").to_numpy(dtype=str)
        self.gain = table("gain").to_numpy(dtype=np.float64)
        self.extrapolated = table("extrapolated").to_numpy(dtype=bool)
        drafting = self.draft_config != "off"
        low = table("gain_low").to_numpy(dtype=np.float64)
        regret = table("regret_high").to_numpy(dtype=np.float64)
        self.unsure = np.where(drafting, low < 1.0 - TIE, regret > TIE)

    def corner(self, row: int, column: int) -> tuple[float, float]:
        """Return a place in the upper right of a cell, where no name stands."""
        (left, right), (low, high) = self.x_edges[column : column + 2], self.y_edges[row : row + 2]
        return float(right - 0.15 * (right - left)), float(high - 0.2 * (high - low))

    def centre(self, row: int, column: int) -> tuple[float, float]:
        """Return the middle of a cell in the coordinates of the axes."""
        return float(self.x_edges[column : column + 2].mean()), float(self.y_edges[row : row + 2].mean())


def edges(positions: Floats, low: float | None = None, high: float | None = None) -> Floats:
    """Return cell edges halfway between positions; the outer ones lie as far out, or where they are given."""
    inner = (positions[1:] + positions[:-1]) / 2
    half = (0.5, 0.5) if len(positions) < 2 else (inner[0] - positions[0], positions[-1] - inner[-1])
    first = positions[0] - half[0] if low is None else low
    last = positions[-1] + half[1] if high is None else high
    return np.concatenate([[first], inner, [last]])


def draft_config_words(draft_config: str) -> str:
    """Return how a map names a draft configuration."""
    return f"K={draft_config}" if draft_config.isdigit() else plain(draft_config)


def _by_acceptance(found: KStarMap) -> Picture:
    about, best = found.about, found.best[found.best["rate"] != CONFIGURED]
    norm = _norm(best)
    rows = ceil(len(about.contexts) / COLUMNS)

    def build(figure: SubFigure) -> str:
        panels = figure.subplots(rows, COLUMNS, squeeze=False, sharex=True, sharey=True)
        used = panels.ravel()[: len(about.contexts)]
        for axes in panels.ravel()[len(used) :]:
            axes.set_visible(False)
        x_edges = edges(np.log2(about.batches))
        y_edges = edges(np.array(about.rates), 0.0, 1.0)
        unsure = False
        for axes, context in zip(used, about.contexts, strict=True):
            grid = Grid(best[best["context_tokens"] == context], "rate", x_edges, y_edges)
            _cells(axes, grid, norm, names=True)
            _even_line(axes, found.breakeven[found.breakeven["context_tokens"] == context])
            axes.set_title(f"context {context:,.0f} tokens")
            axes.set_ylim(0, 1)
            _batch_axis(axes, about.batches)
            unsure = unsure or bool(grid.unsure.any())
        # An invisible panel below hides the tick labels of the one above it.
        for axes in used[-COLUMNS:]:
            axes.xaxis.set_tick_params(labelbottom=True)
            axes.set_xlabel("batch: running requests of one worker (log scale)")
        for axes in used[::COLUMNS]:
            axes.set_ylabel("acceptance rate\nof each further draft")
        _colour_bar(figure, list(used), norm)
        off = bool((best["draft_config"] == "off").any())
        _legend(figure, line=True, off=off, extrapolated=bool(best["extrapolated"].any()), unsure=unsure)
        return even_sentence(found).removesuffix(".")

    title, image = draw(build, 0.9 + 2.15 * rows, _basis(about))
    caption = (
        "The best draft configuration (label) and its tokens per second over an engine without speculation "
        "configured (colour), by batch and by the chance that each further draft is accepted. Above the red "
        "line drafting pays. The gain is of decode alone."
    )
    return Picture("kstar", title, caption, image)


def _by_context(found: KStarMap) -> Picture:
    about, best = found.about, found.best[found.best["rate"] == CONFIGURED]
    norm = _norm(best)

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        grid = Grid(best, "context_tokens", edges(np.log2(about.batches)), edges(np.log2(about.contexts)))
        _cells(
            axes,
            grid,
            norm,
            names=grid.draft_config.shape[0] > MOST_CELLS[0] or grid.draft_config.shape[1] > MOST_CELLS[1],
        )
        _batch_axis(axes, about.batches)
        axes.yaxis.set_major_locator(FixedLocator(np.log2(about.contexts).tolist()))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{2**value:,.0f}"))
        axes.set_xlabel("batch: running requests of one worker (log scale)")
        axes.set_ylabel("context of each request\n(tokens, log scale)")
        _colour_bar(figure, [axes], norm)
        _legend(
            figure,
            line=False,
            off=bool((grid.draft_config == "off").any()),
            extrapolated=bool(grid.extrapolated.any()),
            unsure=bool(grid.unsure.any()),
        )
        return configured_sentence(best).removesuffix(".")

    height_in = 1.5 + 0.4 * max(4, len(about.contexts))
    title, image = draw(build, height_in, _basis(about))
    caption = (
        "The best draft configuration and its gain under the configured acceptance, by batch and context. "
        "Few running requests are also the longest ones: a rollout moves from the lower right to the upper "
        "left."
    )
    return Picture("kstar-configured", title, caption, image)


def _norm(best: pd.DataFrame) -> Normalize:
    return LogNorm(1.0, max(1.1, float(best["gain"].max())))


def _cells(axes: Axes, grid: Grid, norm: Normalize, names: bool) -> None:
    """Fill the cells, draw the borders between draft configurations, hatch what is extrapolated, name regions
    or cells.
    """
    shown = np.where(grid.draft_config == "off", np.nan, grid.gain)
    axes.set_facecolor(OFF_COLOUR)
    axes.pcolormesh(grid.x_edges, grid.y_edges, shown, cmap=COLOURS, norm=norm, rasterized=True)
    _hatch(axes, grid)
    _borders(axes, grid)
    if names:
        _region_names(axes, grid)
    else:
        _cell_names(axes, grid)
    places = [grid.centre(row, column) if names else grid.corner(row, column)
              for row, column in np.argwhere(grid.unsure).tolist()]  # fmt: skip
    axes.plot(*np.reshape(places, (-1, 2)).T, marker=".", markersize=3.5, color=INK, linestyle="")
    axes.set_xlim(grid.x_edges[0], grid.x_edges[-1])
    axes.set_ylim(grid.y_edges[0], grid.y_edges[-1])


def _hatch(axes: Axes, grid: Grid) -> None:
    """Hatch what is extrapolated, neighbouring rows that are alike as one."""
    x_edges, y_edges = grid.x_edges, grid.y_edges
    for row, cells in enumerate(grid.extrapolated):
        if row and (cells == grid.extrapolated[row - 1]).all():
            continue
        differs = (grid.extrapolated[row:] != cells).any(axis=1)
        above = row + int(differs.argmax()) if differs.any() else len(y_edges) - 1
        for first, after in np.flatnonzero(np.diff(cells, prepend=False, append=False)).reshape(-1, 2):
            corner = (x_edges[first], y_edges[row])
            size = (x_edges[after] - x_edges[first], y_edges[above] - y_edges[row])
            axes.add_patch(
                Rectangle(corner, *size, fill=False, hatch="////", edgecolor=HATCH, linewidth=0, alpha=0.55)
            )


def _borders(axes: Axes, grid: Grid) -> None:
    """Draw all borders between draft configurations as one line with gaps."""
    lines: list[tuple[Floats, Floats]] = []
    for row, column in np.argwhere(grid.draft_config[:, 1:] != grid.draft_config[:, :-1]).tolist():
        lines.append((np.repeat(grid.x_edges[column + 1], 2), grid.y_edges[row : row + 2]))
    for row, column in np.argwhere(grid.draft_config[1:] != grid.draft_config[:-1]).tolist():
        lines.append((grid.x_edges[column : column + 2], np.repeat(grid.y_edges[row + 1], 2)))
    gap = np.full(1, np.nan)
    if lines:
        x, y = (np.concatenate([part for line in lines for part in (line[axis], gap)]) for axis in (0, 1))
        axes.plot(x, y, **BORDER)


def _region_names(axes: Axes, grid: Grid) -> None:
    """Name each connected region of one drafting draft configuration at the cell that lies deepest in it,
    large ones first.

    A name that would touch another one is left out: its region is small, and its neighbours tell its draft
    configuration.
    """
    regions = []
    for draft_config in sorted(set(grid.draft_config[grid.draft_config != "off"].tolist())):
        numbered, count = label(grid.draft_config == draft_config)
        regions += [(draft_config, numbered == number) for number in range(1, count + 1)]
    taken: list[tuple[float, float]] = []
    width, height = np.ptp(grid.x_edges), np.ptp(grid.y_edges)
    for draft_config, inside in sorted(regions, key=lambda region: -int(region[1].sum())):
        depth = distance_transform_cdt(np.pad(inside, 1))[1:-1, 1:-1]
        row, column = (int(index) for index in np.unravel_index(np.argmax(depth), depth.shape))
        x, y = grid.centre(row, column)
        near_x, near_y = NAME_SHARE[0] * width, NAME_SHARE[1] * height
        # A name at the border would be cut.
        x = min(max(x, grid.x_edges[0] + near_x / 2), grid.x_edges[-1] - near_x / 2)
        if any(abs(x - x0) < near_x and abs(y - y0) < near_y for x0, y0 in taken):
            continue
        taken.append((x, y))
        axes.text(x, y, draft_config_words(draft_config), fontsize=7.5, bbox=BEHIND_NAME, **NAME)


def _cell_names(axes: Axes, grid: Grid) -> None:
    """Write draft configuration and gain into every cell."""
    for row, column in np.ndindex(grid.draft_config.shape):
        draft_config = str(grid.draft_config[row, column])
        text = (
            "off"
            if draft_config == "off"
            else f"{draft_config_words(draft_config)}\n{grid.gain[row, column]:.2f}x"
        )
        size = 7 if len(draft_config) < 5 else 5.8  # the names of trees are long
        axes.text(*grid.centre(row, column), text, fontsize=size, **NAME)


def _even_line(axes: Axes, breakeven: pd.DataFrame) -> None:
    first = breakeven[breakeven["pays_first"]].sort_values("batch")
    axes.plot(np.log2(first["batch"]), first["rate"], color=EVEN_COLOUR, linewidth=1.8)


def _batch_axis(axes: Axes, batches: Sequence[int]) -> None:
    positions = np.log2(batches)
    kept = [positions[0]]
    for position in positions[1:]:
        if position - kept[-1] >= 0.9:  # closer ones would run into each other
            kept.append(position)
    axes.xaxis.set_major_locator(FixedLocator([float(position) for position in kept]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{2**value:,.0f}"))


def _colour_bar(figure: SubFigure, axes: list[Axes], norm: Normalize) -> None:
    bar = figure.colorbar(ScalarMappable(norm, COLOURS), ax=axes, pad=0.015, aspect=30, fraction=0.05)
    highest = float(norm.vmax or 1.0)
    ticks = [float(tick) for tick in GAIN_TICKS if tick <= highest]
    bar.ax.yaxis.set_major_locator(FixedLocator(ticks))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    bar.set_label("gain in tokens/s over no speculation")
    bar.outline.set_visible(False)


def _legend(figure: SubFigure, *, line: bool, off: bool, extrapolated: bool, unsure: bool) -> None:
    handles: list[Line2D | Patch] = []
    if line:
        handles.append(Line2D([], [], color=EVEN_COLOUR, linewidth=1.8, label="break-even acceptance"))
    if off:
        handles.append(Patch(facecolor=OFF_COLOUR, label="no speculation is best"))
    if extrapolated:
        words = "outside the calibrated range"
        handles.append(Patch(facecolor="white", edgecolor=HATCH, hatch="////", linewidth=0.0, label=words))
    if unsure:
        words = f"drafting or not, more than {TIE:.0%} may be lost"
        marker = Line2D([], [], marker=".", markersize=5, color="black", linestyle="", label=words)
        handles.append(marker)
    legend_below(figure, handles)


def even_sentence(found: KStarMap) -> str:
    """Say from which acceptance on drafting pays at the largest calibrated batch, short and long context."""
    first = found.breakeven[found.breakeven["pays_first"]]
    inside = first[~first["extrapolated"]]
    rows = (inside if len(inside) else first).sort_values(["batch", "context_tokens"])
    if rows.empty:
        return "Drafting pays at no acceptance."
    rows = rows[rows["batch"] == rows["batch"].max()]
    short, long = rows.iloc[0], rows.iloc[-1]
    words = f"{short['rate']:.2f} ({short['context_tokens']:,.0f} tokens of context)"
    if long["context_tokens"] > short["context_tokens"]:
        words += f" or {long['rate']:.2f} ({long['context_tokens']:,.0f})"
    return f"At batch {short['batch']:,} drafting pays from an acceptance rate of {words}."


def configured_sentence(best: pd.DataFrame) -> str:
    """Say where drafting pays under the configured law; `best` are its rows."""
    drafting = best[best["draft_config"] != "off"]
    if drafting.empty:
        return "Under the configured acceptance no draft configuration gains."
    low, high = drafting["gain"].min(), drafting["gain"].max()
    share = len(drafting) / len(best)
    where = "everywhere" if share == 1 else f"in {share:.0%} of the map"
    sure = int((drafting["gain_low"] > 1.0).sum())
    parts = {0: "nowhere", len(drafting): "in all of these cells"}.get(
        sure, f"in {sure / len(drafting):.0%} of them"
    )
    return (
        f"Under the configured acceptance drafting pays {where}, {low:.2f}x to {high:.2f}x; within "
        f"the error of the step times that is sure {parts}."
    )


def _basis(about: KStar) -> tuple[str, ...]:
    return (
        f"cost: {about.describe()}",
        f"acceptance: {about.acceptance}",
        f"step-time error {100 * about.cost_error:.1f} % ({about.cost_error_source})",
    )
