"""Acceptance by position in the response, and how far responses differ from one another."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.analysis.drawing.tables import TextTable
from tlt.analysis.load import Run
from tlt.plugin.requests import FIRST_BIN_TOKENS
from tlt.traces.common.arrays import Floats
from tlt.traces.runs.acceptance import acceptance_length_with_bonus, lengths_with_bonus

FEWEST_STEPS = 20  # engine steps of a response in a bin; with fewer its acceptance there says nothing
FEWEST_PAIRS = 30
SHARES = ((0.1, "lowest tenth below"), (0.5, "median response"), (0.9, "highest tenth above"))
POSITION_NOTES = (
    "Acceptance length with bonus of engine steps that drafted, by how long the response was before; in "
    "brackets the responses that had drafts there. A column mixes the draft configurations that its policy "
    "used there. Lowest tenth, median, highest tenth: acceptance length with bonus of whole responses, with "
    "chance in it. Between responses: standard deviation of accepted drafts an engine step between "
    "responses of one bin and draft configuration, as far as it lasts into the next bin, so that chance "
    "cancels. In a simulated run both follow from the model of acceptance; in jump mode some chance is left, "
    "since bins of one stretch have one rate."
)


def position_table(runs: tuple[Run, ...]) -> TextTable | None:
    """Return a row a bin of positions and a column a policy; None if no run has drafts by request."""
    counted = [(run.policy, run.acceptance) for run in runs if run.acceptance is not None]
    if not counted:
        return None
    edges = sorted({int(edge) for _, rows in counted for edge in rows["from_token"].unique()})
    body = [(f"from {edge:,}", *(_cell(rows, edge) for _, rows in counted)) for edge in edges]
    for share, words in SHARES:
        body.append((words, *(_share_cell(rows, share) for _, rows in counted)))
    spreads = [spread_between_responses(rows) for _, rows in counted]
    body.append(("between responses", *("-" if each is None else f"{each:.2f}" for each in spreads)))
    return TextTable(("Tokens before", *(policy for policy, _ in counted)), body)


def lengths_of_responses(rows: pd.DataFrame) -> Floats:
    """Return the acceptance length with bonus of each response that drafted in FEWEST_STEPS or more."""
    sums = rows.groupby(["step", "request"])[["accepted_tokens", "request_steps"]].sum()
    sums = sums[sums["request_steps"] >= FEWEST_STEPS]
    accepted, steps = (sums[name].to_numpy(np.float64) for name in ("accepted_tokens", "request_steps"))
    return lengths_with_bonus(accepted, steps)


def spread_between_responses(rows: pd.DataFrame) -> float | None:
    """Return the standard deviation of accepted drafts an engine step between responses, without chance.

    `rows` has ACCEPTANCE_COLUMNS. It is the root of the covariance between neighbouring bins of a response
    under one draft configuration, 0 if that is negative; None if there are too few of them.
    """
    rows = rows[rows["request_steps"] >= FEWEST_STEPS]
    cells = rows[["step", "request", "from_token"]].assign(
        config=rows["draft_config"].astype("str"), rate=rows["accepted_tokens"] / rows["request_steps"]
    )
    edge = cells["from_token"]
    before = cells.assign(from_token=np.where(edge > FIRST_BIN_TOKENS, edge // 2, edge - FIRST_BIN_TOKENS))
    pairs = cells.merge(before, on=["step", "request", "config", "from_token"], suffixes=("", "_next"))
    alike = pairs.groupby(["from_token", "config"])
    free = len(pairs) - alike.ngroups
    if free < FEWEST_PAIRS:
        return None
    above = pairs[["rate", "rate_next"]] - alike[["rate", "rate_next"]].transform("mean")
    covariance = float((above["rate"] * above["rate_next"]).sum()) / free
    return float(np.sqrt(max(covariance, 0.0)))


def _share_cell(rows: pd.DataFrame, share: float) -> str:
    lengths = lengths_of_responses(rows)
    return f"{np.quantile(lengths, share):.2f} ({len(lengths):,})" if len(lengths) else "-"


def _cell(rows: pd.DataFrame, edge: int) -> str:
    here = rows[rows["from_token"] == edge]
    length = acceptance_length_with_bonus(here)
    if length is None:
        return "-"
    return f"{length:.2f} ({len(here[['step', 'request']].drop_duplicates()):,})"
