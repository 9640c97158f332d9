"""The report as one HTML page: no scripts, nothing loaded from elsewhere, every text escaped."""

from __future__ import annotations

import base64
import html
import re
import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tlt.analysis.comparison.advice import ADVICE_HEADERS, ADVICE_NOTES, advice_cells, advice_sentences
from tlt.analysis.comparison.compare import ComparisonTable
from tlt.analysis.comparison.tables import COLUMN_NOTES, html_rows, html_table, ledger_cells, number, unbroken
from tlt.analysis.comparison.verdict import Verdict
from tlt.analysis.drawing.figure import CAUSE_COLOURS, Picture
from tlt.analysis.load import Run, RunSet
from tlt.traces.runs.runfolder import CAUSES, Advice

_TEMPLATE = Path(__file__).with_name("report.html")
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
INTERVAL_NOTE = (
    "Intervals are 95 % percentile intervals of a paired bootstrap over RL steps. They say how much a figure "
    "varies from step to step on these lengths. They do not cover errors of the cost model, of the "
    "acceptance model or of the lengths, which are the same in every step."
)

DRAWN_NOTE = (
    "Intervals of speedups are 95 % percentile intervals of a paired bootstrap over RL steps, pooled over "
    "draws of the step-time coefficients; $way. They cover how much a figure varies from step to step on "
    "these lengths, and the error of the step times. They do not cover errors of the acceptance model or of "
    "the lengths. The figures themselves are those of the fit."
)


def render(
    runs: RunSet, table: ComparisonTable, verdict: Verdict, pictures: list[Picture], plan: str = ""
) -> str:
    """Return the page. The answer comes first, then what it rests on; `plan` is HTML to stand above it."""
    ledger_headers, ledger_rows = ledger_cells(table)
    first = runs.runs[0].summary
    parts = {
        "title": text(table.name),
        "subtitle": text(
            f"{first.kind}: {first.model} on {first.gpus} x {first.gpu}, {first.workers} workers of "
            f"{first.gpus_per_worker}, {first.steps} RL steps, {len(runs.runs)} "
            f"{'policy' if len(runs.runs) == 1 else 'policies'}"
        ),
        "plan": plan,
        "answer": text(verdict.sentence),
        "covers": "".join(
            f'<p class="dim">{text(said)}</p>' for said in (verdict.covers, verdict.ceiling) if said
        ),
        "warnings": _warnings(table),
        "table": html_table(table),
        "advice": _advice(runs.advice()),
        "column_notes": text(COLUMN_NOTES),
        "pictures": "\n".join(figure(picture) for picture in pictures),
        "ledger": html_rows(ledger_headers, ledger_rows, names=(1,)),
        "accounting": text(
            "GPU-seconds by cause, in brackets GPU-hours and the share of the run's GPUs x wall time. Every "
            "GPU-second is booked to exactly one cause; the last row is how far the sum is from the total."
        ),
        "lengths": words(("Figure", "Value"), length_facts(runs.runs[0])),
        "sources": sources(runs.runs),
        "interval_note": text(_interval_note(runs)),
        "causes": _causes(),
        "facts": words(("Run", "Policy", "GPUs", "Wall time (s)", "Seed", "Tool"), _facts(runs.runs)),
        "files": _files(runs.runs),
        "settings": "\n".join(settings(run) for run in runs.runs),
    }
    return string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def _interval_note(runs: RunSet) -> str:
    """Say what the intervals rest on."""
    found = runs.recommendation
    if found is None or found.draws() == 0:
        return INTERVAL_NOTE
    way = (
        "how each policy's steps answer to them was simulated over the first steps, and is taken to be linear"
        if found.error.linear
        else "under each draw every policy was simulated again"
    )
    return string.Template(DRAWN_NOTE).substitute(way=way)


def document(title: str, parts: Sequence[str]) -> str:
    """Return a page in the report's style whose body is `parts`, which are HTML; `title` is escaped."""
    style = _STYLE.search(_TEMPLATE.read_text(encoding="utf-8"))
    assert style is not None, "the report's page has a style"
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n{style.group()}\n</head>\n<body>"
    )
    return "\n".join([head, *parts, "</body>\n</html>"]) + "\n"


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


def shared_warnings(table: ComparisonTable) -> list[str]:
    """Return every warning once, with the policies that it concerns unless it concerns all."""
    policies_of: dict[str, list[str]] = {}
    for row in table.rows:
        for warning in row.warnings:
            policies_of.setdefault(warning, []).append(row.policy)
    return [
        *table.warnings,
        *(
            warning if len(policies) == len(table.rows) else f"{', '.join(policies)}: {warning}"
            for warning, policies in policies_of.items()
        ),
    ]


def text(value: str) -> str:
    """Return text for a page, escaped."""
    return unbroken(html.escape(value))


def words(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table of words, aligned left."""
    return f'<div class="words">{html_rows(headers, rows)}</div>'


def _warnings(table: ComparisonTable) -> str:
    warnings = shared_warnings(table)
    if not warnings:
        return ""
    items = "".join(f"<li>{text(warning)}</li>" for warning in warnings)
    return f'<div class="warnings"><strong>Read with these figures</strong><ul>{items}</ul></div>'


def _advice(advice: Advice | None) -> str:
    if advice is None:
        return ""
    table = html_rows(ADVICE_HEADERS, advice_cells(advice), names=(2, 4, 5)) if advice.rows else ""
    notes = f'<p class="dim">{text(ADVICE_NOTES)}</p>' if advice.rows else ""
    sentences = text(" ".join(advice_sentences(advice)))
    return f"<h2>What to draft at which batch size</h2>\n<p>{sentences}</p>\n{table}{notes}"


def figure(picture: Picture) -> str:
    """Return a picture with its caption, the image inside the page."""
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure><img alt="{text(picture.title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text(picture.caption)}</figcaption></figure>"
    )


def sources(runs: tuple[Run, ...]) -> str:
    """Return a table that says of each kind of figure whether it was measured, modelled or assumed."""
    fields = (
        ("Step times and costs", "cost_source"),
        ("Response lengths", "lengths_source"),
        ("Acceptance of drafts", "acceptance_source"),
        ("Timeline", "kind"),
    )
    rows: list[tuple[str, ...]] = []
    for label, field in fields:
        values = dict.fromkeys(str(getattr(run.summary, field)) for run in runs)
        rows += [(label, value) for value in values]
    return words(("What", "Measured, published, modelled or assumed"), rows)


def _causes() -> str:
    rows = "".join(
        f'<tr><th scope="row"><span class="swatch" style="background:{CAUSE_COLOURS[cause]}"></span>'
        f"{text(cause)}</th><td>{text(category)}</td><td>{text(meaning)}</td></tr>\n"
        for cause, (category, meaning) in CAUSES.items()
    )
    head = "<thead><tr><th>Cause</th><th>Category</th><th>What the worker's GPUs do</th></tr></thead>"
    return f'<div class="words scroll"><table>{head}<tbody>\n{rows}</tbody></table></div>'


def _facts(runs: tuple[Run, ...]) -> list[tuple[str, ...]]:
    return [
        (
            run.path.name,
            run.summary.policy,
            f"{run.summary.gpus} x {run.summary.gpu}",
            number(run.summary.wall_s),
            str(run.summary.seed),
            run.summary.tool_version
            + ("" if run.summary.elapsed_s is None else f", took {run.summary.elapsed_s:.3g} s"),
        )
        for run in runs
    ]


def _files(runs: tuple[Run, ...]) -> str:
    names = ", ".join("trace.json" if len(runs) == 1 else f"{run.path.name}/trace.json" for run in runs)
    return text(
        f"Timelines for ui.perfetto.dev or chrome://tracing, beside this page: {names}. "
        "The pictures are in pictures/."
    )


def settings(run: Run) -> str:
    """Return the settings of a run, folded away."""
    shown = run.config_text or "no resolved_config.json in this run folder"
    return f"<details><summary>{text(run.policy)}</summary><pre>{html.escape(shown)}</pre></details>"
