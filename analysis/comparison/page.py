"""The page of a comparison. The answer comes first, then what it rests on."""

from __future__ import annotations

import numpy as np

from tlt.analysis.comparison.advice import ADVICE_NOTES, advice_sentences, advice_table
from tlt.analysis.comparison.by_batch import BATCH_NOTES, batch_table
from tlt.analysis.comparison.by_position import POSITION_NOTES, position_table
from tlt.analysis.comparison.compare import ComparisonTable
from tlt.analysis.comparison.explore import explore_data
from tlt.analysis.comparison.sessions import SESSION_NOTES, session_table
from tlt.analysis.comparison.shared_warnings import shared_warnings
from tlt.analysis.comparison.tables import (
    COLUMN_NOTES,
    SCHEDULE_NOTES,
    ledger_table,
    policy_table,
    schedule_table,
    scheduled,
)
from tlt.analysis.drawing.estimates import number
from tlt.analysis.drawing.figure import CAUSE_COLOURS, Picture
from tlt.analysis.drawing.html import page
from tlt.analysis.drawing.regrets import REGRET_NOTES, regret_table
from tlt.analysis.load import Run, RunSet, source_rows
from tlt.traces.results.answer import Answer
from tlt.traces.runs.runfolder import CAUSES

TEMPLATE = "comparison/report.html"


def render(
    runs: RunSet,
    table: ComparisonTable,
    answer: Answer,
    pictures: list[Picture],
    template: str = TEMPLATE,
    **more: object,
) -> str:
    """Return the page; `template` is TEMPLATE or one that extends it, and `more` is what that asks for."""
    advice, drawn = runs.advice(), runs.recommendation
    return page(
        template,
        title=table.name,
        first=runs.runs[0].summary,
        runs=runs.runs,
        answer=answer,
        regrets=regret_table(answer.regrets) if answer.regrets is not None else None,
        regret_notes=REGRET_NOTES,
        warnings=shared_warnings(table),
        table=policy_table(table),
        column_notes=COLUMN_NOTES,
        schedules=schedule_table(table) if scheduled(table) else None,
        schedule_notes=SCHEDULE_NOTES,
        sessions=session_table(runs.runs),
        session_notes=SESSION_NOTES,
        advice_words=" ".join(advice_sentences(advice)) if advice is not None else "",
        advice=advice_table(advice) if advice is not None and advice.rows else None,
        advice_notes=ADVICE_NOTES,
        **acceptance_values(runs.runs),
        pictures=pictures,
        ledger=ledger_table(table),
        lengths=length_facts(runs.runs[0]),
        sources=source_rows(runs.runs),
        drawn=drawn if drawn is not None and drawn.draws() else None,
        causes=CAUSES,
        colours=CAUSE_COLOURS,
        facts=_facts(runs.runs),
        explore=explore_data(answer, runs),
        **more,
    )


def acceptance_values(runs: tuple[Run, ...]) -> dict[str, object]:
    """Return what comparison/acceptance.html asks for: the tables by batch and by position and request."""
    return {
        "batches": batch_table(runs),
        "batch_notes": BATCH_NOTES,
        "positions": position_table(runs),
        "position_notes": POSITION_NOTES,
    }


def length_facts(run: Run) -> list[tuple[str, ...]]:
    """Return name and text of what the response lengths of a run look like, in tokens."""
    lengths = run.responses["response_tokens"].to_numpy()
    if len(lengths) == 0:
        return [("responses", "0")]
    median, p90, p99 = np.quantile(lengths, [0.5, 0.9, 0.99], method="inverted_cdf").tolist()
    longest = int(lengths.max())
    by_step = run.responses.groupby("step")["response_tokens"].agg(["max", "median"])
    return [
        ("responses", f"{len(lengths):,}"),
        ("prompt tokens, mean", number(float(run.responses["prompt_tokens"].mean()))),
        ("response tokens, mean", number(float(lengths.mean()))),
        ("median / p90 / p99 / longest", f"{median:,.0f} / {p90:,.0f} / {p99:,.0f} / {longest:,}"),
        ("longest / median, all steps", number(longest / median) if median > 0 else "-"),
        (
            "longest / median within a step, mean",
            number(float((by_step["max"] / by_step["median"].clip(lower=1)).mean())),
        ),
        ("truncated", f"{int(run.responses['truncated'].sum()):,} of {len(lengths):,}"),
    ]


def _facts(runs: tuple[Run, ...]) -> list[tuple[str, ...]]:
    return [
        (
            run.path.name,
            run.summary.policy,
            run.summary.hardware,
            number(run.summary.wall_s),
            str(run.summary.seed),
            run.summary.tool_version
            + ("" if run.summary.elapsed_s is None else f", took {run.summary.elapsed_s:.3g} s"),
        )
        for run in runs
    ]
