"""Engine cycles of a run, measured one by one or recorded by decision epoch, and cells of like cycles.

cycles.parquet holds CYCLE_COLUMNS, a row an engine cycle of a live run. Where it is missing the epochs of
records.jsonl say the same by epoch. Both become stretches (STRETCH_COLUMNS): decode without prefill, under
one arm. A cell holds stretches of nearly the same batch and context, so that times in it may be compared.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

CYCLES = "cycles.parquet"
CYCLE_COLUMNS = {
    "step": "int32",
    "worker": "int16",
    "t_s": "float64",  # start, on the arm's clock
    "seconds": "float64",
    "batch": "int32",
    "context_tokens": "int64",  # of all requests together
    "prompt_tokens": "int32",  # 0: a pure decode cycle
    "k": "int16",  # to be drafted for a later cycle; what was verified in this one is drafted_tokens
    "drafted_tokens": "int32",
    "accepted_tokens": "int32",
    "compiled": "bool",  # the time means nothing
}
LAG_CYCLES = 2  # at most, from the cycle that names a K to the one that verifies its drafts
STRETCH_COLUMNS = {
    "arm": "str",  # as the run names it; off: nothing was drafted
    "depth": "int32",
    "cycles": "int64",
    "request_cycles": "int64",  # the batch summed over the cycles
    "seconds": "float64",
    "context_tokens": "float64",  # mean of one request
    "accepted_tokens": "int64",  # the bonus token is not counted
}
BATCH_RATIO, CONTEXT_RATIO = 1.2, 1.5  # widest batch, and context, in a cell over its narrowest


def stretches_of_cycles(cycles: pd.DataFrame) -> pd.DataFrame:
    """Return the steady decode cycles as stretches of one cycle each.

    Left out are cycles with prefill or a compilation, and those right after a change of K.
    """
    of_worker = cycles.groupby(["step", "worker"], sort=False)["k"]
    same_k = np.logical_and.reduce(
        [(cycles["k"] == of_worker.shift(lag)).to_numpy() for lag in range(1, LAG_CYCLES + 1)]
    )
    idle = (cycles["batch"] <= 0) | ~(cycles["seconds"] > 0) | ~np.isfinite(cycles["seconds"])
    rows = cycles[same_k & (cycles["prompt_tokens"] == 0) & ~cycles["compiled"] & ~idle]
    depth = rows["k"].astype("int32")
    return pd.DataFrame(
        {
            "arm": depth.astype("str").where(depth > 0, "off"),
            "depth": depth,
            "cycles": 1,
            "request_cycles": rows["batch"],
            "seconds": rows["seconds"],
            "context_tokens": rows["context_tokens"] / rows["batch"],
            "accepted_tokens": rows["accepted_tokens"],
        }
    ).astype(STRETCH_COLUMNS)


def cells(stretches: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the number of each stretch's cell, shape (rows,)."""
    batch = stretches["request_cycles"].to_numpy(np.float64) / stretches["cycles"].to_numpy(np.float64)
    context = stretches["context_tokens"].to_numpy(np.float64)
    by_batch = np.floor(np.log(np.maximum(batch, 1.0)) / np.log(BATCH_RATIO))
    by_context = np.floor(np.log(np.maximum(context, 1.0)) / np.log(CONTEXT_RATIO))
    return np.asarray(by_batch * 1000 + by_context, dtype=np.int64)


def cycle_seconds_by_cell(stretches: pd.DataFrame, fewest: int = 5) -> pd.Series[float]:
    """Return the median seconds of a cycle by cell, of cells with at least `fewest` cycles."""
    per_cycle = stretches["seconds"] / stretches["cycles"]
    grouped = pd.DataFrame({"cell": cells(stretches), "s": per_cycle, "n": stretches["cycles"]}).groupby(
        "cell"
    )
    return grouped["s"].median()[grouped["n"].sum() >= fewest]
