"""Acceptance by batch: drafts accepted while so many requests ran, and whether the tail accepts less.

Rows (BATCH_ACCEPTANCE_COLUMNS) are engine steps that verified drafts, of a live run one by one out of
engine_steps.parquet, of a simulated one by decision interval out of records.jsonl. Those of a policy that
decides once a rollout, such as a static one, do not say what was accepted at which batch; drafts by request
do, if requests begin together. The tail is what a
worker drafted in a rollout once no more than TAIL_SHARE of its largest drafting batch ran, the bulk the rest.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.common.intervals import Estimate, Jackknife, divide
from tlt.traces.runs.decision_intervals import read_decision_intervals
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.records import RECORDS
from tlt.traces.runs.request_acceptance import read_acceptance
from tlt.traces.runs.request_batches import batches_of_requests, begin_together
from tlt.traces.runs.runfolder import RunFolder

BATCH_ACCEPTANCE_COLUMNS = {
    "step": "int32",  # RL step
    "worker": "int16",
    "batch": "float64",  # running requests; the mean of a decision interval
    "falls": "bool",  # a decision interval over which the batch falls by half or more: of no one batch
    "draft_config": "str",
    "engine_steps": "int64",
    "request_steps": "int64",
    "accepted_tokens": "int64",  # the bonus token is not counted
}
TAIL_SHARE = 0.25  # of a worker's largest drafting batch in a rollout
FEWEST_REQUEST_STEPS = 500  # of the tail and of the bulk
FEWEST_ROLLOUTS = 5
STEADY = 0.9  # mean batch over the first: what is left counts to that batch


class TailAcceptance(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted drafts an engine step of a request, bonus not counted, over the draft configurations of both.

    `ratio` is tail over bulk at the same draft configuration, its interval over rollouts of one worker.
    """

    ratio: Estimate
    tail: float
    bulk: float
    rollouts: int
    request_steps: int  # of the tail
    steps_share: float  # engine steps of the tail over all that drafted alike


def of_engine_steps(engine_steps: pd.DataFrame) -> pd.DataFrame:
    """Return BATCH_ACCEPTANCE_COLUMNS of ENGINE_STEP_COLUMNS; most drafts a request had name the chain."""
    rows = engine_steps[(engine_steps["drafted_tokens"] > 0) & (engine_steps["batch"] > 0)]
    depth = np.ceil(rows["drafted_tokens"].to_numpy() / rows["batch"].to_numpy()).astype(np.int64)
    found = rows.assign(
        draft_config=depth.astype(str), falls=False, engine_steps=1, request_steps=rows["batch"]
    )
    return found[list(BATCH_ACCEPTANCE_COLUMNS)].astype(BATCH_ACCEPTANCE_COLUMNS).reset_index(drop=True)


def of_stretches(stretches: pd.DataFrame) -> pd.DataFrame:
    """Return BATCH_ACCEPTANCE_COLUMNS of STRETCH_COLUMNS."""
    rows = stretches[stretches["depth"] > 0]
    mean = rows["request_steps"] / rows["engine_steps"]
    falls = (rows["last_batch"] < rows["first_batch"] / 2) & (mean < STEADY * rows["first_batch"])
    found = rows.assign(batch=mean, falls=falls)
    return found[list(BATCH_ACCEPTANCE_COLUMNS)].astype(BATCH_ACCEPTANCE_COLUMNS).reset_index(drop=True)


def read_batch_acceptance(folder: Path) -> pd.DataFrame | None:
    """Return BATCH_ACCEPTANCE_COLUMNS of a run folder; None if it has neither of the files.

    Raises InputError if one is of another form.
    """
    engine_steps = read_engine_steps(folder)
    if engine_steps is not None:
        return of_engine_steps(engine_steps)
    if not (folder / RECORDS).is_file():
        return None
    stretches = read_decision_intervals(folder / RECORDS).stretches
    rows = of_stretches(stretches)
    acceptance = read_acceptance(folder)
    if rows["falls"].any() and acceptance is not None and stretches["draft_config"].nunique() == 1:
        responses = RunFolder(folder).responses()
        if begin_together(responses):
            found = batches_of_requests(acceptance, responses)
            found = found.assign(draft_config=stretches["draft_config"].iloc[0], falls=False)
            return found[list(BATCH_ACCEPTANCE_COLUMNS)].astype(BATCH_ACCEPTANCE_COLUMNS)
    return rows


def buckets(batches: Floats) -> Ints:
    """Return the bucket of each batch, any shape: 0 is 1, 1 is 2, 2 is 3 to 4, 3 is 5 to 8 and so on."""
    whole = np.maximum(np.ceil(batches - 1e-9), 1.0)  # a mean batch of 4.2 had 5 at first
    return np.asarray(np.ceil(np.log2(whole)), dtype=np.int64)


def bucket_words(number: int) -> str:
    """Return the batches of a bucket."""
    return f"{2**number}" if number < 2 else f"{2 ** (number - 1) + 1:,}-{2**number:,}"


def by_bucket(rows: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """Return the rows of each bucket that has any, in order of batch; those whose batch falls are in none."""
    rows = rows[~rows["falls"]]
    of_row = buckets(rows["batch"].to_numpy(np.float64))
    return {number: rows[of_row == number] for number in sorted(set(of_row.tolist()))}


def tail_acceptance(rows: pd.DataFrame) -> TailAcceptance | None:
    """Hold the tail of a run (BATCH_ACCEPTANCE_COLUMNS) against its bulk.

    Both are compared with what the run gets accepted at the same draft configuration, so that a policy that
    drafts deeper in the tail gains nothing by it; a draft configuration counts that both have. Chance is that
    between rollouts of one worker, each of which holds its requests as a whole: a cluster is no smaller than
    a request, and drafts of one request, which are alike, are never counted as so many observations. None if
    tail or bulk has too few request-steps, or fewer than FEWEST_ROLLOUTS have both: over so few the spread
    between them is not known well enough to tell anything from it.
    """
    rows = rows[~rows["falls"]]
    largest = rows.groupby(["step", "worker"])["batch"].transform("max")
    rows = rows.assign(tail=(rows["batch"] <= TAIL_SHARE * largest).to_numpy())
    both = rows.groupby("draft_config")["tail"].transform("nunique") == 2
    rows = rows[both.to_numpy()]
    known = rows.groupby("draft_config")[["accepted_tokens", "request_steps"]].transform("sum")
    rows = rows.assign(
        expected=known["accepted_tokens"] / known["request_steps"].clip(lower=1) * rows["request_steps"]
    )
    names = ["accepted_tokens", "expected", "request_steps"]
    sums = rows.groupby(["step", "worker", "tail"])[names].sum().unstack("tail")
    if sums.empty or {False, True} - set(rows["tail"]):
        return None
    sums = sums.dropna()
    tail, bulk = (
        np.stack([sums[(name, side)].to_numpy(np.float64) for name in names]) for side in (True, False)
    )
    enough = min(tail[2].sum(), bulk[2].sum()) >= FEWEST_REQUEST_STEPS
    if not enough or len(sums) < FEWEST_ROLLOUTS or bulk[0].sum() == 0:
        return None
    jackknife = Jackknife(len(sums), "rollouts of one worker")
    figures = divide(jackknife.ratio(tail[0], tail[1]), jackknife.ratio(bulk[0], bulk[1]))
    return TailAcceptance(
        ratio=jackknife.estimate(figures, positive=True),
        tail=float(tail[0].sum() / tail[2].sum()),
        bulk=float(bulk[0].sum() / bulk[2].sum()),
        rollouts=len(sums),
        request_steps=int(tail[2].sum()),
        steps_share=float(rows["engine_steps"][rows["tail"]].sum() / rows["engine_steps"].sum()),
    )
