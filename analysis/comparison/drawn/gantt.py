"""The Gantt picture: what every worker of every policy did during one RL step."""

from __future__ import annotations

import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from tlt.analysis.drawing.estimates import number
from tlt.analysis.drawing.figure import CAUSE_COLOURS, Picture, cause_legend, draw, policy_label
from tlt.analysis.load import Run, basis_of
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.runfolder import CAUSES
from tltsched.errors import InputError

COLUMNS = (
    2_400  # time samples across the picture, about two a pixel: a run of any size is drawn in bounded time
)

_NAMES = tuple(CAUSES)
_NOTHING = -1
_SEPARATED_WORKERS = 32  # above this a white line between the rows would hide the rows


def median_step(run: Run) -> int | None:
    """Return the step of median duration (the lower one of an even count), or None if there are no steps."""
    order = np.argsort(run.step_seconds(), kind="stable")
    return int(run.steps["step"].iloc[int(order[(len(order) - 1) // 2])]) if len(order) else None


def step_window_s(run: Run, step: int) -> tuple[float, float, float]:
    """Return start, end of the rollout and end of a step in seconds; raises InputError if there is none."""
    rows = run.steps[run.steps["step"] == step]
    if rows.empty:
        known = run.steps["step"]
        allowed = f"{known.min()} to {known.max()}" if len(known) else "none: the run has no steps"
        raise InputError("step", step, allowed, "choose a step of the run")
    row = rows.iloc[0]
    return float(row["start_s"]), float(row["rollout_end_s"]), float(row["end_s"])


def sample_causes(run: Run, times_s: Floats, end_s: float) -> Ints:
    """Return what each worker does at each time: indices into CAUSES, shape (workers, len(times_s)).

    Times at or after `end_s` are -1. `times_s` ascends, in seconds since the run began.
    """
    low_s = float(times_s[0]) if len(times_s) else 0.0
    frame = run.intervals
    near = frame[(frame["end_s"] >= low_s) & (frame["start_s"] <= end_s)]
    near = near.sort_values(["worker", "start_s", "end_s"], kind="stable")
    code_of_category = np.array([_NAMES.index(str(name)) for name in near["cause"].cat.categories], dtype=int)
    codes = code_of_category[near["cause"].cat.codes.to_numpy()] if len(near) else np.empty(0, dtype=int)
    workers, starts = near["worker"].to_numpy(), near["start_s"].to_numpy()
    picture = np.full((run.summary.workers, len(times_s)), _NOTHING, dtype=np.int64)
    for worker in range(run.summary.workers):
        first, last = np.searchsorted(workers, [worker, worker + 1])
        if first == last:
            continue
        at = np.searchsorted(starts[first:last], times_s, side="right") - 1
        picture[worker] = np.where(at >= 0, codes[first:last][np.maximum(at, 0)], _NOTHING)
    picture[:, times_s >= end_s] = _NOTHING
    return picture


def draw_gantt(runs: tuple[Run, ...], step: int) -> Picture:
    """Draw one RL step: a panel a policy on a common time axis, a row a worker, coloured by cause."""
    windows = [step_window_s(run, step) for run in runs]
    longest_s = max(end - start for start, _, end in windows)
    axis_s = longest_s if longest_s > 0 else 1.0
    offsets = np.asarray((np.arange(COLUMNS) + 0.5) * (axis_s / COLUMNS), dtype=np.float64)
    samples = [
        sample_causes(run, window[0] + offsets, window[2]) for run, window in zip(runs, windows, strict=True)
    ]
    heights = [_panel_height_in(run.summary.workers, len(runs)) for run in runs]

    def build(figure: SubFigure) -> str:
        panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, run, window, sample in zip(panels, runs, windows, samples, strict=True):
            _panel(axes, run, window, sample, axis_s)
        panels[-1].set_xlabel(f"time since the start of RL step {step} (s)")
        codes = np.unique(np.concatenate([sample.ravel() for sample in samples]))
        cause_legend(figure, [_NAMES[code] for code in codes if code != _NOTHING])
        return _title(runs, samples, step)

    title, image = draw(build, sum(heights) + 0.32 * len(runs) + 2.0, basis_of(runs))
    caption = (
        f"What each worker did during RL step {step}, one row a worker and one panel a policy, on the same "
        "time axis. The dashed line is the end of the rollout; a panel ends where its step ends."
    )
    return Picture("gantt", title, caption, image)


def _panel_height_in(workers: int, policies: int) -> float:
    """Return a row of at least 0.035 inches a worker, less tall the more policies share the picture."""
    tallest = 3.6 if policies == 1 else 1.9
    return float(np.clip(0.16 * workers, 0.5, max(tallest, 0.035 * workers)))


def _panel(
    axes: Axes,
    run: Run,
    window: tuple[float, float, float],
    sample: Ints,
    axis_s: float,
) -> None:
    start_s, rollout_end_s, end_s = window
    palette = np.array([matplotlib.colors.to_rgba(CAUSE_COLOURS[name]) for name in _NAMES] + [(0.0,) * 4])
    workers = run.summary.workers
    axes.imshow(
        palette[sample],  # -1 takes the last colour: the page shows through
        extent=(0.0, axis_s, workers - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
    )
    if 1 < workers <= _SEPARATED_WORKERS:
        axes.hlines(np.arange(workers - 1) + 0.5, 0, axis_s, colors="white", linewidth=0.7)
    axes.axvline(rollout_end_s - start_s, color="black", linewidth=1.0, linestyle=(0, (4, 2)))
    axes.set_title(f"{policy_label(run.policy)}: {number(end_s - start_s)} s")
    axes.set_ylabel("worker")
    stride = max(1, -(-workers // 8))
    axes.set_yticks(range(0, workers, stride))
    axes.set_xlim(0, axis_s)


def _title(runs: tuple[Run, ...], samples: list[Ints], step: int) -> str:
    idle_codes = [_NAMES.index(name) for name in _NAMES if CAUSES[name][0] == "idle"]
    shares = []
    for sample in samples:
        spent = int((sample != _NOTHING).sum())
        shares.append(float(np.isin(sample, idle_codes).sum()) / spent if spent else 0.0)
    words = f"RL step {step}: {shares[0]:.0%} of the GPU time is idle under {policy_label(runs[0].policy)}"
    least = int(np.argmin(shares))
    return words if least == 0 else f"{words}, {shares[least]:.0%} under {policy_label(runs[least].policy)}"
