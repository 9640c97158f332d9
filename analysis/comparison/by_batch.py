"""Acceptance by batch: what drafts get accepted while many requests run, and while few are left."""

from __future__ import annotations

import pandas as pd

from tlt.analysis.drawing.tables import TextTable
from tlt.analysis.load import Run
from tlt.traces.runs.acceptance import acceptance_length_with_bonus
from tlt.traces.runs.batch_acceptance import bucket_words, by_bucket

BATCH_NOTES = (
    "Acceptance length with bonus: tokens that an engine step which verifies drafts yields for a request, "
    "the bonus token counted, by the number of requests that the worker ran; in brackets the engine steps. A "
    "column mixes the draft configurations that its policy used at that batch, so a change of K moves it as "
    "well. Where it falls with the batch, the responses that are left last accept less than the mean says. "
    "Live: engine step by engine step; simulated: by decision interval, at its mean batch, or by request "
    "where a static policy decides once a rollout. Falling: decision intervals in which the batch falls by "
    "half or more; their record does not say what was accepted at which batch."
)


def batch_table(runs: tuple[Run, ...]) -> TextTable | None:
    """Return a row a range of batches and a column a policy; None if no run has drafts and says when."""
    known = [(run.policy, rows) for run in runs if (rows := run.drafts_by_batch()) is not None]
    if not known:
        return None
    cells = [by_bucket(rows) for _, rows in known]
    body = [
        (bucket_words(number), *(_cell(some.get(number)) for some in cells))
        for number in sorted(set().union(*cells))
    ]
    falling = [rows[rows["falls"]] for _, rows in known]
    if any(len(rows) for rows in falling):
        body.append(("falling", *map(_cell, falling)))
    body.append(("all", *(_cell(rows) for _, rows in known)))
    return TextTable(("Batch", *(policy for policy, _ in known)), body)


def _cell(rows: pd.DataFrame | None) -> str:
    length = None if rows is None else acceptance_length_with_bonus(rows)
    if rows is None or length is None:
        return "-"
    return f"{length:.2f} ({int(rows['engine_steps'].sum()):,})"
