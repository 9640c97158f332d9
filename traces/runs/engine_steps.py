"""Engine steps of a run, measured one by one or by decision interval, and cells of like engine steps.

engine_steps.parquet holds ENGINE_STEP_COLUMNS, a row an engine step of a live run. Where it is missing,
records.jsonl says the same by decision interval. Both become stretches (STRETCH_COLUMNS): decode without
prefill, under one draft configuration. A cell holds stretches of nearly the same batch and context, so that
times in it may be compared.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Ints
from tlt.traces.runs.runfolder import file_of, read_table

ENGINE_STEPS = "engine_steps.parquet"
ENGINE_STEP_COLUMNS = {
    "step": "int32",
    "worker": "int16",
    "t_s": "float64",  # start, on the policy's clock
    "seconds": "float64",
    "batch": "int32",
    "context_tokens": "int64",  # of all requests together
    "prompt_tokens": "int32",  # 0: a pure decode engine step
    "k": "int16",  # to be drafted for a later engine step; what was verified in this one is drafted_tokens
    "drafted_tokens": "int32",
    "accepted_tokens": "int32",
    "compiled": "bool",  # the time means nothing
}
LAG_ENGINE_STEPS = 2  # at most, from the engine step that names a K to the one that verifies its drafts
STRETCH_COLUMNS = {
    "step": "int32",  # RL step; -1 before the first rollout
    "worker": "int16",
    "draft_config": "str",  # as the run names it; off: nothing was drafted
    "depth": "int32",
    "engine_steps": "int64",
    "request_steps": "int64",  # the batch summed over the engine steps
    "seconds": "float64",
    "context_tokens": "float64",  # mean of one request
    "accepted_tokens": "int64",  # the bonus token is not counted
    "first_batch": "int32",  # running requests when it began
    "last_batch": "int32",  # and that were left after it
}
BATCH_RATIO, CONTEXT_RATIO = 1.2, 1.5  # widest batch, and context, in a cell over its narrowest


def read_engine_steps(folder: Path, *names: str) -> pd.DataFrame | None:
    """Return these (default: all) ENGINE_STEP_COLUMNS of a run folder; None if it has no engine steps.

    Raises InputError if the file is of another form.
    """
    path = file_of(folder / ENGINE_STEPS)
    columns = {name: ENGINE_STEP_COLUMNS[name] for name in names or ENGINE_STEP_COLUMNS}
    return read_table(path, columns) if path.is_file() else None


def stretches_of_engine_steps(engine_steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steady decode engine steps as stretches of one engine step each.

    Left out are engine steps with prefill or a compilation, and those right after a change of K.
    """
    of_worker = engine_steps.groupby(["step", "worker"], sort=False)["k"]
    same_k = np.logical_and.reduce(
        [(engine_steps["k"] == of_worker.shift(lag)).to_numpy() for lag in range(1, LAG_ENGINE_STEPS + 1)]
    )
    idle = (
        (engine_steps["batch"] <= 0) | ~(engine_steps["seconds"] > 0) | ~np.isfinite(engine_steps["seconds"])
    )
    rows = engine_steps[same_k & (engine_steps["prompt_tokens"] == 0) & ~engine_steps["compiled"] & ~idle]
    depth = rows["k"].astype("int32")
    return pd.DataFrame(
        {
            "step": rows["step"],
            "worker": rows["worker"],
            "draft_config": depth.astype("str").where(depth > 0, "off"),
            "depth": depth,
            "engine_steps": 1,
            "request_steps": rows["batch"],
            "seconds": rows["seconds"],
            "context_tokens": rows["context_tokens"] / rows["batch"],
            "accepted_tokens": rows["accepted_tokens"],
            "first_batch": rows["batch"],
            "last_batch": rows["batch"],
        }
    ).astype(STRETCH_COLUMNS)


def cells(stretches: pd.DataFrame) -> Ints:
    """Return the number of each stretch's cell, shape (rows,)."""
    batch = stretches["request_steps"].to_numpy(np.float64) / stretches["engine_steps"].to_numpy(np.float64)
    context = stretches["context_tokens"].to_numpy(np.float64)
    by_batch = np.floor(np.log(np.maximum(batch, 1.0)) / np.log(BATCH_RATIO))
    by_context = np.floor(np.log(np.maximum(context, 1.0)) / np.log(CONTEXT_RATIO))
    return np.asarray(by_batch * 1000 + by_context, dtype=np.int64)


def engine_step_seconds_by_cell(stretches: pd.DataFrame, fewest: int = 5) -> pd.Series[float]:
    """Return the median seconds of an engine step by cell, of cells with at least `fewest` engine steps."""
    per_engine_step = stretches["seconds"] / stretches["engine_steps"]
    grouped = pd.DataFrame(
        {"cell": cells(stretches), "s": per_engine_step, "n": stretches["engine_steps"]}
    ).groupby("cell")
    return grouped["s"].median()[grouped["n"].sum() >= fewest]
