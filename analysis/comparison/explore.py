"""What the page of a comparison can be asked: the same figures as its answer, as data for its script.

The script moves every policy's seconds a trained token by the multiples of what_if.json, and its interval
with them. At the settings of the study it says what the answer says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tlt.analysis.comparison.drawn.gantt import median_step, sample_causes, step_window_s
from tlt.analysis.drawing.figure import CAUSE_COLOURS
from tlt.analysis.load import Run, RunSet
from tlt.traces.common.arrays import Ints
from tlt.traces.results.answer import Answer
from tlt.traces.runs.runfolder import CAUSES

SAMPLES = 1_500  # of one worker's time; fewer where there are many workers
MOST_SAMPLES = 96_000  # of all workers of a policy
SHOWN_WORKERS = 256  # more than a screen can tell apart


def explore_data(answer: Answer, runs: RunSet) -> dict[str, Any]:
    """Return what the script of the page reads."""
    what_if = runs.what_if
    return {
        "unit": answer.unit,
        "baseline": answer.baseline,
        "recommended": answer.recommended,
        "gpus": runs.runs[0].summary.gpus,
        # designs of a plan are compared by its objective, which no control moves
        "policies": [] if answer.designs else _policies(answer, runs),
        "what_if": what_if,
        "gantt": gantt_data(runs.runs),
    }


def _policies(answer: Answer, runs: RunSet) -> list[dict[str, Any]]:
    return [
        {
            "name": each.policy,
            "rank": each.rank,
            "figure": each.figure,
            "s_per_million": _per_million(run),
            "speedup": each.speedup.value,
            "interval": each.speedup.interval,
            "gpus": run.summary.gpus,
        }
        for each, run in zip(answer.policies, runs.runs, strict=True)
    ]


def _per_million(run: Run) -> float:
    tokens = run.tokens()
    return float(run.step_seconds().sum()) / tokens * 1e6 if tokens else 0.0


def gantt_data(runs: tuple[Run, ...]) -> dict[str, Any] | None:
    """Return the workers of each policy over the baseline's step of median duration; None: there is none."""
    step = median_step(runs[0])
    if step is None:
        return None
    return {
        "step": step,
        "causes": {cause: [CAUSE_COLOURS[cause], words] for cause, (_, words) in CAUSES.items()},
        "policies": {run.policy: _spans(run, step) for run in runs if step in set(run.steps["step"])},
    }


def _spans(run: Run, step: int) -> list[list[float | int | str]]:
    """Return (worker, cause, start, seconds) of what each worker did, from the start of the step on."""
    start_s, _, end_s = step_window_s(run, step)
    workers = min(run.summary.workers, SHOWN_WORKERS)
    count = max(min(SAMPLES, MOST_SAMPLES // max(run.summary.workers, 1)), 50)
    width_s = (end_s - start_s) / count
    times_s = np.asarray(start_s + (np.arange(count) + 0.5) * width_s, dtype=np.float64)
    samples = sample_causes(run, times_s, end_s)
    return [span for worker in range(workers) for span in _runs_of(worker, samples[worker], width_s)]


def _runs_of(worker: int, codes: Ints, width_s: float) -> list[list[float | int | str]]:
    """Return a span for each run of equal codes of one worker."""
    ends = np.flatnonzero(np.append(np.diff(codes) != 0, True)) + 1
    starts = np.append(0, ends[:-1])
    names = tuple(CAUSES)
    return [
        [worker, names[code], round(first * width_s, 4), round((last - first) * width_s, 4)]
        for first, last, code in zip(starts.tolist(), ends.tolist(), codes[starts].tolist(), strict=True)
        if code >= 0
    ]
