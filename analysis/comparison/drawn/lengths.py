"""The distribution of response lengths."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tlt.analysis.drawing.figure import Picture, draw
from tlt.analysis.load import Run, basis_of
from tlt.traces.common.arrays import Floats

POINTS = 2_000  # points of the curve: more than the pixels across


def draw_lengths(runs: tuple[Run, ...]) -> Picture:
    """Draw the CDF of the response lengths of all steps of the first policy, the baseline.

    All policies have the same, but for those that trained a policy or change the order of samples.
    """
    run = runs[0]
    lengths = np.sort(run.responses["response_tokens"].to_numpy().astype(np.float64))
    truncated = run.responses["truncated"].to_numpy()
    cap = float(run.responses["response_tokens"][truncated].max()) if truncated.any() else None

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        axes.set_xlabel("response length (tokens, log scale)")
        axes.set_ylabel("responses up to this length (%)")
        axes.set_ylim(0, 107)
        axes.grid()
        if len(lengths) == 0:
            axes.set_xticks([])
            return "No responses were rolled out"
        _cdf(axes, lengths, cap, int(truncated.sum()))
        p50, p99 = np.quantile(lengths, [0.5, 0.99], method="inverted_cdf")
        ratio = f"{lengths[-1] / p50:,.1f} times" if p50 > 0 else "far above"
        return f"The longest response is {ratio} the median; p99 is {p99:,.0f} tokens"

    title, image = draw(build, 3.9, basis_of((run,)))
    own = any(other.trained_policy() or not other.keeps_order() for other in runs)
    owner = f"{run.policy} rolled out" if own else "every policy rolled out"
    caption = (
        f"Distribution of the {len(lengths):,} response lengths that {owner}. The end of a rollout waits for "
        "the right end of this curve."
    )
    return Picture("lengths", title, caption, image)


def _cdf(axes: Axes, lengths: Floats, cap: float | None, truncated: int) -> None:
    points = min(POINTS, len(lengths))
    shares = np.arange(points + 1) / points
    floor = np.maximum(lengths, 1.0)  # a log axis has no place for an empty response
    axes.plot(
        np.quantile(floor, shares, method="inverted_cdf"),
        100 * shares,
        color="#08519c",
        drawstyle="steps-post",
    )
    axes.set_xscale("log")
    left, right = float(floor[0]) * 0.9, float(floor[-1]) * 1.25
    axes.set_xlim(left, right)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    for share in (0.5, 0.9, 0.99):
        at = float(np.quantile(floor, share, method="inverted_cdf"))
        axes.plot(
            [left, at, at], [100 * share, 100 * share, 0], color="#888888", linewidth=0.8, linestyle=":"
        )
        axes.plot([at], [100 * share], marker="o", color="#08519c")
        axes.annotate(
            f"p{100 * share:.0f} = {at:,.0f}",
            (at, 100 * share),
            xytext=(8, -3) if share < 0.95 else (-7, 3),
            textcoords="offset points",
            ha="left" if share < 0.95 else "right",
            va="top" if share < 0.95 else "bottom",
            fontsize=8.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
        )
    if cap is not None:
        axes.axvline(max(cap, 1.0), color="#d62728", linewidth=1.2)
        axes.annotate(
            f"cap {cap:,.0f}\n({truncated:,} of {len(lengths):,} reach it)",
            (max(cap, 1.0), 30),
            xytext=(-5, 0),
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
            color="#d62728",
        )
