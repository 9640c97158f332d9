"""Acceptance by request: what each response had drafted and accepted, by its position, in bounded size.

acceptance.parquet holds ACCEPTANCE_COLUMNS. The engine steps in which drafts of a request were verified are
counted by how long the response was before them, in bins that double (bins, from_tokens), and by the draft
configuration. So a request has at most as many rows as bins times draft configurations, however long it is.

A live run counts what the engine verified: its draft configuration is the chain of as many drafts as there
were. A simulated run counts what it drew. In both, drafts accepted past the end of a response count, so that
rates are not biased; what a request gained before it was thrown away and begun anew counts in no row. Runs
without drafts, and those of earlier versions, have no such file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tlt.plugin.requests import FIRST_BIN_TOKENS
from tlt.traces.common.arrays import Ints
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.runfolder import RunFolder, read_table, write_table
from tltsched.errors import InputError

ACCEPTANCE = "acceptance.parquet"
ACCEPTANCE_COLUMNS = {
    "step": "int32",  # RL step, as in responses.parquet
    "request": "int32",
    "from_token": "int32",  # lower edge of the bin of the response's length before the engine step
    "draft_config": "category",  # as text
    "request_steps": "int64",  # engine steps that verified drafts of the request
    "drafted_tokens": "int64",  # verified, the root not counted
    "accepted_tokens": "int64",  # the bonus token is not counted
}
COUNTS = ("request_steps", "drafted_tokens", "accepted_tokens")
MOST_BINS = 25  # as many as there are lengths of 31 bits


def bins(positions: Ints) -> Ints:
    """Return the bin of each position in a response (tokens before it), any shape; from_tokens has edges."""
    return np.frexp(np.asarray(positions) // FIRST_BIN_TOKENS)[1].astype(np.int64)


def from_tokens(numbers: Ints) -> Ints:
    """Return the lower edges of bins, any shape: 0, 128, 256, 512, 1,024 and so on."""
    edges = (FIRST_BIN_TOKENS // 2) << np.asarray(numbers, np.int64)
    return np.where(numbers > 0, edges, 0)


def write_acceptance(folder: Path, rows: pd.DataFrame) -> None:
    """Write ACCEPTANCE_COLUMNS into a run folder; without rows, take away what an earlier run left there."""
    path = folder / ACCEPTANCE
    if rows.empty:
        path.unlink(missing_ok=True)
        return
    write_table(path, rows, ACCEPTANCE_COLUMNS)


def read_acceptance(folder: Path) -> pd.DataFrame | None:
    """Return ACCEPTANCE_COLUMNS of a run folder; None if it has none.

    Raises InputError for counts that cannot be, requests that are not among the responses, and more drafts
    than the engine steps of the run have, where it has those.
    """
    path = folder / ACCEPTANCE
    if not path.is_file():
        return None
    rows = read_table(path, ACCEPTANCE_COLUMNS)
    _check(path, rows, RunFolder(folder).responses())
    engine_steps = read_engine_steps(folder, "step", "drafted_tokens", "accepted_tokens")
    if engine_steps is not None:
        _check_sums(path, rows, engine_steps)
    return rows


def _check(path: Path, rows: pd.DataFrame, responses: pd.DataFrame) -> None:
    """Refuse rows that contradict themselves or the responses."""
    known = pd.MultiIndex.from_frame(responses[["step", "request"]])
    tokens = pd.Series(responses["response_tokens"].to_numpy(), known)
    of_row = pd.MultiIndex.from_frame(rows[["step", "request"]])
    edges = from_tokens(bins(rows["from_token"].to_numpy().clip(min=0)))
    wrong = {
        "unknown requests": ~of_row.isin(known),
        "negative counts": (rows[list(COUNTS)] < 0).any(axis=1).to_numpy(),
        "more accepted than drafted": (rows["accepted_tokens"] > rows["drafted_tokens"]).to_numpy(),
        "a from_token that begins no bin": rows["from_token"].to_numpy() != edges,
        "a request twice": rows.duplicated(["step", "request", "from_token", "draft_config"]).to_numpy(),
    }
    if not wrong["unknown requests"].any():
        wrong["a bin past the end"] = rows["from_token"].to_numpy() > tokens[of_row].to_numpy()
    for what, where in wrong.items():
        if where.any():
            first = rows.iloc[int(where.argmax())].to_dict()
            raise InputError(
                str(path), f"{what} in {int(where.sum())} rows, the first {first}",
                "what a run wrote", "write the run again, or delete this file: nothing else needs it",
            )  # fmt: skip


def _check_sums(path: Path, rows: pd.DataFrame, engine_steps: pd.DataFrame) -> None:
    """Refuse a step in which requests have more drafts than the engines verified.

    Responses that a schedule carries over had some of theirs before the step that they are told in: then all
    that was verified up to it counts.
    """
    counts = ["drafted_tokens", "accepted_tokens"]
    of_requests, verified = (table.groupby("step")[counts].sum() for table in (rows, engine_steps))
    schedule = RunFolder(path.parent).schedule()
    if schedule is None or schedule[0].keeps_order:
        of_engines = verified.reindex(of_requests.index, fill_value=0)
    else:
        of_requests = of_requests.cumsum()
        verified = verified.cumsum().reindex(of_requests.index, method="ffill")
        of_engines = verified.fillna(0).astype("int64")
    above = (of_requests > of_engines).any(axis=1).to_numpy()
    if above.any():
        row = int(above.argmax())
        raise InputError(
            str(path), f"{of_requests.iloc[row].to_dict()} in step {of_requests.index[row]}",
            f"at most {of_engines.iloc[row].to_dict()}, as engine_steps.parquet has them",
            "write the run again",
        )  # fmt: skip
