"""Measured engine steps against the law: by K, by context and by batch."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.common.intervals import Estimate, Jackknife
from tlt.traces.results.simulated_replay import PREDICTED, PREDICTED_COLUMNS
from tlt.traces.runs.runfolder import file_of, read_table

BINS = 6


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Engine steps with a figure in [low, high]; `error` is predicted over measured seconds, less 1."""

    low: float
    high: float
    engine_steps: int
    seconds: float
    error: Estimate


class EngineStepCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Steady decode engine steps. `typical_error` is the median of the absolute errors of single engine
    steps.
    """

    engine_steps: int
    left_out: int  # with prefill, right after a change of K, or with a compilation
    compiled_s: float
    error: Estimate
    typical_error: float
    error_per_1000_tokens: float  # slope of a single engine step's error over its mean context
    by_k: tuple[Bin, ...]
    by_context: tuple[Bin, ...]  # mean context of one request
    by_batch: tuple[Bin, ...]


def load_engine_steps(folder: Path, steps: Ints) -> pd.DataFrame | None:
    """Return the measured engine steps of these steps with their predictions; None if the folder has none."""
    path = file_of(folder / PREDICTED)
    if not path.is_file():
        return None
    rows = read_table(path, PREDICTED_COLUMNS)
    return rows[rows["step"].isin(steps)].reset_index(drop=True)


def steady(engine_steps: pd.DataFrame) -> pd.DataFrame:
    """Return the engine steps that the law covers, with `context`, the mean of one request, and `error`."""
    rows = engine_steps[engine_steps["steady"] & ~engine_steps["compiled"] & (engine_steps["seconds"] > 0)]
    return rows.assign(
        context=rows["context_tokens"] / rows["batch"], error=rows["predicted_s"] / rows["seconds"] - 1.0
    )


def check_engine_steps(engine_steps: pd.DataFrame, steps: Ints) -> EngineStepCheck | None:
    """Return the comparison over `steps`, those of the rollouts; None without a steady engine step."""
    rows = steady(engine_steps)
    if rows.empty:
        return None

    def error(some: pd.DataFrame) -> Estimate:
        by_step = some.groupby("step")[["seconds", "predicted_s"]].sum().reindex(steps, fill_value=0.0)
        measured = by_step["seconds"].to_numpy(np.float64)
        predicted = by_step["predicted_s"].to_numpy(np.float64)
        ratio = Jackknife(len(steps), "rollouts").estimate_ratio(predicted, measured, positive=True)
        return ratio.mapped(lambda over: over - 1.0)

    def bins(column: str, edges: Floats) -> tuple[Bin, ...]:
        place = np.clip(np.searchsorted(edges, rows[column], side="right") - 1, 0, max(len(edges) - 2, 0))
        found = []
        for _, some in rows.groupby(place):
            found.append(
                Bin(
                    low=float(some[column].min()),
                    high=float(some[column].max()),
                    engine_steps=len(some),
                    seconds=float(some["seconds"].sum()),
                    error=error(some),
                )
            )
        return tuple(found)

    depths = np.unique(rows["k"].to_numpy(np.float64))
    return EngineStepCheck(
        engine_steps=len(rows),
        left_out=len(engine_steps) - len(rows),
        compiled_s=float(engine_steps["seconds"][engine_steps["compiled"]].sum()),
        error=error(rows),
        typical_error=float(rows["error"].abs().median()),
        error_per_1000_tokens=_slope(rows) * 1000,
        by_k=bins("k", np.append(depths, depths[-1] + 1)),
        by_context=bins("context", _edges(rows["context"])),
        by_batch=bins("batch", _edges(rows["batch"])),
    )


def _edges(values: pd.Series[float]) -> Floats:
    """Return edges of bins that hold about as many engine steps each."""
    return np.unique(np.quantile(values.to_numpy(np.float64), np.linspace(0, 1, BINS + 1)))


def _slope(rows: pd.DataFrame) -> float:
    """Return the slope of the errors over the mean context, each engine step weighing its seconds."""
    context, error = rows["context"].to_numpy(np.float64), rows["error"].to_numpy(np.float64)
    weight = rows["seconds"].to_numpy(np.float64)
    context = context - np.average(context, weights=weight)
    squares = float((weight * context**2).sum())
    return float((weight * context * error).sum()) / squares if squares > 0 else 0.0
