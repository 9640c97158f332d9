"""GPU-time accounting: every GPU-second of a run has exactly one cause; they add up to GPUs x wall time.

Theory of operation: for each worker the intervals tile [0, wall_s]. A worker's GPUs all do what the worker
does, so an interval books `gpus_per_worker` GPU-seconds a second. The sum over causes must equal
GPUs x wall time; `check_accounting` says where it does not.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from tlt.traces.common.arrays import Floats
from tlt.traces.runs.runfolder import CAUSES, Category, Summary
from tltsched.errors import InputError

TOLERANCE = 1e-9  # relative to the wall time: floating-point rounding of summed seconds stays far below it


class AccountingError(InputError):
    """The intervals of a run do not tile its time."""


class Ledger(msgspec.Struct, frozen=True):
    """GPU-seconds by cause, in the order of CAUSES and with zeros for causes that did not occur."""

    gpu_seconds: dict[str, float]
    gpus: int
    wall_s: float

    def total_gpu_s(self) -> float:
        """Return GPUs x wall time."""
        return self.gpus * self.wall_s

    def category_gpu_s(self, category: Category) -> float:
        """Return the GPU-seconds of all causes of a category."""
        return sum(value for cause, value in self.gpu_seconds.items() if CAUSES[cause][0] == category)

    def share(self, gpu_s: float) -> float:
        """Return `gpu_s` as a share of GPUs x wall time; 0 for a run that took no time."""
        return gpu_s / self.total_gpu_s() if self.total_gpu_s() > 0 else 0.0

    def idle_share(self) -> float:
        """Return the share of GPU time in which nothing at all was done (drafter training is not idle)."""
        return self.share(self.category_gpu_s("idle"))

    def drafter_share_of_idle(self) -> float:
        """Return drafter / (drafter + idle): how much of the otherwise idle GPU time the drafter got."""
        drafter, idle = self.category_gpu_s("drafter"), self.category_gpu_s("idle")
        return drafter / (drafter + idle) if drafter + idle > 0 else 0.0


def book(summary: Summary, intervals: pd.DataFrame) -> Ledger:
    """Sum the intervals by cause, in GPU-seconds. check_accounting says whether they tile the time."""
    names = list(CAUSES)
    code_of = {name: code for code, name in enumerate(names)}
    categories = np.array([code_of[str(name)] for name in intervals["cause"].cat.categories], dtype=np.int64)
    codes = categories[intervals["cause"].cat.codes.to_numpy()] if len(intervals) else categories[:0]
    seconds = intervals["end_s"].to_numpy() - intervals["start_s"].to_numpy()
    sums = np.bincount(codes, weights=seconds, minlength=len(names)) * summary.gpus_per_worker
    return Ledger(dict(zip(names, sums.tolist(), strict=True)), summary.gpus, summary.wall_s)


def check_accounting(summary: Summary, intervals: pd.DataFrame) -> float:
    """Return the relative difference between the booked GPU-seconds and GPUs x wall time.

    Raises AccountingError, naming the worker and the time in seconds, if a worker's intervals leave a gap,
    overlap or do not span [0, wall_s], or if the difference exceeds TOLERANCE.
    """
    slack_s = TOLERANCE * summary.wall_s
    ordered = intervals.sort_values(["worker", "start_s", "end_s"], kind="stable")
    workers = ordered["worker"].to_numpy()
    starts, ends = ordered["start_s"].to_numpy(), ordered["end_s"].to_numpy()
    _check_workers(summary, workers)
    backwards = np.flatnonzero(~(ends >= starts))  # also true for NaN
    if len(backwards):
        at = int(backwards[0])
        raise _broken(int(workers[at]), f"an interval from {starts[at]:.9g} s to {ends[at]:.9g} s")
    for worker in range(summary.workers if summary.wall_s > 0 else 0):
        low, high = np.searchsorted(workers, [worker, worker + 1])
        _check_tiling(worker, starts[low:high], ends[low:high], summary.wall_s, slack_s)
    ledger = book(summary, intervals)
    booked, total = sum(ledger.gpu_seconds.values()), ledger.total_gpu_s()
    difference = abs(booked - total) / total if total > 0 else abs(booked)
    if not difference <= TOLERANCE:
        raise AccountingError(
            "booked GPU-seconds",
            f"{booked:.9g}",
            f"{total:.9g} (GPUs x wall time) within {TOLERANCE:g}",
            "run the simulation again; the run folder is inconsistent",
        )
    return difference


def _check_workers(summary: Summary, workers: npt.NDArray[np.int16]) -> None:
    strange = workers[(workers < 0) | (workers >= summary.workers)]
    if len(strange):
        raise _broken(int(strange[0]), f"a worker outside 0..{summary.workers - 1}")


def _check_tiling(
    worker: int,
    starts: Floats,
    ends: Floats,
    wall_s: float,
    slack_s: float,
) -> None:
    """Compare each interval's start with the end of the one before it, and the ends with 0 and `wall_s`."""
    edges_before = np.concatenate(([0.0], ends))
    edges_after = np.concatenate((starts, [wall_s]))
    jumps = edges_after - edges_before
    wrong = np.flatnonzero(np.abs(jumps) > slack_s)
    if len(wrong) == 0:
        return
    at = int(wrong[0])
    word = "a gap" if jumps[at] > 0 else "an overlap"
    raise _broken(worker, f"{word} of {abs(jumps[at]):.6g} s at {edges_before[at]:.9g} s")


def _broken(worker: int, what: str) -> AccountingError:
    return AccountingError(
        f"intervals of worker {worker}",
        what,
        "intervals that tile the wall time without gaps or overlaps",
        "run the simulation again; the run folder is inconsistent",
    )


def useful_tokens_per_s(summary: Summary) -> float:
    """Return response tokens per second of wall time, over the whole cluster; 0 if no time passed."""
    return summary.response_tokens / summary.wall_s if summary.wall_s > 0 else 0.0


def rollout_share_of_step(steps: pd.DataFrame) -> float:
    """Return the share of the RL steps' time that is rollout (from step start to the last response)."""
    total_s = float((steps["end_s"] - steps["start_s"]).sum())
    return float((steps["rollout_end_s"] - steps["start_s"]).sum()) / total_s if total_s > 0 else 0.0
