"""Draws the pictures of docs/how-it-works.md: `python -m evidence.how_it_works`.

two-worlds.png is a drawing; one-rl-step.png is a simulated step, drawn from the intervals and responses that
every run leaves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import FancyBboxPatch

from evidence.recording import PICTURES, tlt
from tlt.analysis.drawing.figure import CAUSE_COLOURS, cause_legend, draw
from tlt.traces.runs.runfolder import RunFolder

STEP, THRESHOLD_REQUESTS = 1, 32
SETTINGS = (
    "hardware.gpus=4", "workload.steps=2", "workload.prompts_per_step=64", "workload.samples_per_prompt=4",
    "workload.max_response_tokens=32768", "cluster.spot.enabled=true",
)  # fmt: skip
PURE, WORLD, FILE, OUTSIDE = "#dceaf7", "#fdebd0", "#eeeeee", "#ffffff"
Box = tuple[float, float, float, float, str, str, str]  # x, y, width, height, heading, text, colour
BOXES: tuple[Box, ...] = (
    (1, 82, 28, 15, "traces: lengths", "recorded, generated, or\nimported from a framework", FILE),
    (36, 82, 28, 15, "a job", "TOML: cluster, model, policy,\nschedule, acceptance", FILE),
    (71, 82, 28, 15, "calibration", "seconds of an engine step by\nbatch, context and drafts", FILE),
    (1, 44, 29, 25, "sim: simulated clock",
     "SimPy; an engine step takes what\nthe calibration says; acceptance\nis drawn from a law", WORLD),
    (70, 44, 29, 25, "realrun: real clock",
     "vLLM on GPUs or CPU; engine\nsteps are timed; drafts are\naccepted or not", WORLD),
    (37.5, 44, 25, 25, "tltsched: decides",
     "schedule: which request where\npolicy: what to draft with\n"
     "spot: who trains the drafter\nno clock, no I/O", PURE),
    (19, 14, 62, 15, "run folder",
     "every event and command, responses, intervals by cause: one form for both worlds", FILE),
    (19, 0, 62, 8, "", "analysis: GPU time by cause, speedups with intervals, pictures, report", OUTSIDE),
)  # fmt: skip
ARROWS: tuple[tuple[float, float, float, float], ...] = (
    (15, 82, 16, 70), (40, 82, 25, 70), (60, 82, 75, 70), (72, 82, 30, 70), (28, 83, 70, 70),
    (16, 43, 30, 30), (84, 43, 70, 30), (50, 13.5, 50, 8.6),
)  # fmt: skip


def two_worlds() -> bytes:
    """Return the drawing: files above, two clocks with one scheduler between, one form of run below."""

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        axes.set_xlim(0, 100)
        axes.set_ylim(-1, 98)
        axes.axis("off")
        for box in BOXES:
            _box(axes, box)
        for x, y, to_x, to_y in ARROWS:
            axes.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "->", "color": "#777777"})
        for left, right in ((30.3, 37.2), (69.7, 62.8)):
            _arrow(axes, left, right, 60.5, "events")
            _arrow(axes, right, left, 52.5, "commands")
        return "Two clocks, one scheduler: simulator and live engine differ by the clock and the engine alone"

    facts = ("imports go one way: sim, realrun and analysis never import one another and meet in files",)
    return draw(build, 5.0, facts)[1].png


def _box(axes: Axes, box: Box) -> None:
    x, y, width, height, heading, text, colour = box
    shape = "round,pad=0,rounding_size=1.2"
    axes.add_patch(FancyBboxPatch((x, y), width, height, shape, facecolor=colour, edgecolor="#888888"))
    middle = y + height / 2
    if heading:
        axes.text(x + width / 2, y + height - 2, heading, ha="center", va="top", fontsize=10, weight="bold")
        middle -= 2.5
    axes.text(x + width / 2, middle, text, ha="center", va="center", fontsize=8)


def _arrow(axes: Axes, start: float, end: float, y: float, text: str) -> None:
    axes.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "->", "color": "#1f4e8c", "lw": 1.6})
    axes.text((start + end) / 2, y + 1.2, text, ha="center", va="bottom", fontsize=7.5, color="#1f4e8c")


def simulated_step(folder: Path) -> RunFolder:
    """Simulate the step that is drawn, under TLT's threshold with chains."""
    assignments = [part for setting in SETTINGS for part in ("--set", setting)]
    where = ("--policy", "tlt_chains", "--no-report", "--out", str(folder))
    tlt("sim", "run", "--config", "sim/presets/measured-7b.toml", *assignments, *where)
    return RunFolder(folder)


def one_step(run: RunFolder) -> bytes:
    """Return one RL step of a run: what each worker does, and how many requests run on it."""
    steps = run.steps()
    row = steps[steps["step"] == STEP].iloc[0]
    start_s, rollout_end_s, end_s = (float(row[key]) for key in ("start_s", "rollout_end_s", "end_s"))
    intervals = run.intervals()
    intervals = intervals[(intervals["end_s"] > start_s) & (intervals["start_s"] < end_s)]
    responses = run.responses()
    responses = responses[responses["step"] == STEP]

    def build(figure: SubFigure) -> str:
        gantt, running = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        columns = (intervals[name].tolist() for name in ("worker", "cause", "start_s", "end_s"))
        for worker, cause, began_s, ended_s in zip(*columns, strict=True):
            colour = CAUSE_COLOURS[str(cause)]
            gantt.barh(worker, ended_s - began_s, left=began_s - start_s, height=0.85, color=colour)
        workers = sorted(set(intervals["worker"]))
        gantt.set_yticks(workers, [str(worker) for worker in workers])
        gantt.invert_yaxis()
        gantt.set_ylabel("worker")
        for worker in workers:
            finish_s = np.sort(responses.loc[responses["worker"] == worker, "finish_s"].to_numpy()) - start_s
            left = len(finish_s) - np.arange(len(finish_s) + 1)
            running.step(np.concatenate(([0.0], finish_s)), left, where="post", color="#3a6fc4", linewidth=1)
        running.axhline(THRESHOLD_REQUESTS, color="#666666", linestyle="--", linewidth=0.8)
        running.text(0, THRESHOLD_REQUESTS + 2, " drafting begins here", fontsize=8, color="#444444")
        for axes in (gantt, running):
            axes.axvline(rollout_end_s - start_s, color="#000000", linestyle="--", linewidth=1)
        running.text(
            rollout_end_s - start_s, running.get_ylim()[1] * 0.85,
            " longest response ends:\n the phases begin", fontsize=8, color="#444444",
        )  # fmt: skip
        running.set_ylabel("requests running\non a worker")
        running.set_xlabel(f"time since the start of RL step {STEP} (s)")
        running.set_ylim(bottom=0)
        gantt.set_xlim(0, end_s - start_s)
        cause_legend(figure, list(dict.fromkeys(str(cause) for cause in intervals["cause"])))
        return (
            "One RL step: batches shrink, drafting begins, the longest response decides when the rest goes on"
        )

    facts: Sequence[str] = (
        "simulated: Qwen2.5-7B on 4 x H100, TP 1, 256 DeepSeek-R1 serving lengths up to 32,768",
        "policy tlt_chains; step times measured with vLLM 0.32 on one H100; phases: roofline (assumed)",
    )
    return draw(build, 4.6, facts)[1].png


def main() -> None:
    """Draw both."""
    (PICTURES / "two-worlds.png").write_bytes(two_worlds())
    with tempfile.TemporaryDirectory() as folder:
        (PICTURES / "one-rl-step.png").write_bytes(one_step(simulated_step(Path(folder) / "run")))


if __name__ == "__main__":
    main()
