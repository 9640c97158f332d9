"""The report of a counterfactual: the observed run, its reproduction, the policies, the bounds."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tlt.analysis.comparison.compare import ComparisonTable, differences
from tlt.analysis.comparison.page import document, figure, shared_warnings, sources, text, words
from tlt.analysis.comparison.pictures import save
from tlt.analysis.comparison.tables import html_rows, number, speedup_text
from tlt.analysis.counterfactual.figures import Answer, PolicyAnswer, answer_of
from tlt.analysis.counterfactual.picture import draw_counterfactual
from tlt.analysis.counterfactual.words import (
    answer_sentences,
    batch_sentences,
    limit_sentence,
    observed_sentence,
    reproduction_sentence,
)
from tlt.analysis.drawing.figure import Picture
from tlt.analysis.load import RunSet
from tlt.traces.common.intervals import Estimate
from tlt.traces.results.counterfactual import Counterfactual, read_counterfactual
from tlt.traces.runs.runfolder import write_json
from tltsched.written.policy_name import folded

NAME = "counterfactual"
ANSWER = "answer.json"
SHOWN_STEPS = 12  # on the terminal
STEP_HEADERS = (
    "Step", "Responses", "Longest", "Rollout logged (s)", "modelled (s)", "Step logged (s)", "modelled (s)",
)  # fmt: skip
HEADERS = (
    "Policy", "Step (s)", "Speedup [95 %]", "GPU-hours", "Idle GPU-hours", "Saved GPU-hours [95 %]",
    "Saved USD [95 %]", "Fastest in",
)  # fmt: skip
COST_HEADERS = ("Policy", "On-policy", "Order kept", "Staleness mean / max", "Wasted", "Can be run")
NOTE = (
    "Intervals are paired over the steps and pooled over draws of the step times: their error is that of "
    "the calibration, and where the log has rollout seconds those of the observed policy stay as they were, "
    "within the error of the fitted factor. They do not cover acceptance. Fastest in: share of the "
    "resamples in which a policy is the fastest of those that are ranked. Policies that change the order of "
    "samples are counted as if they trained on as many tokens."
)


def present_counterfactual(
    folder: Path, runs: RunSet, table: ComparisonTable, console: Console
) -> list[Picture]:
    """Write answer.json, counterfactual.html and its picture into `folder`, and print tables and answer.

    Raises InputError if counterfactual.json is malformed.
    """
    told = read_counterfactual(folder)
    answer = answer_of(told, runs, table)
    picture = draw_counterfactual(told, answer, runs)
    write_json(folder / ANSWER, answer)
    save([picture], folder / "pictures")
    page = folder / f"{NAME}.html"
    page.write_text(render(told, answer, runs, table, picture), encoding="utf-8")
    console.print(Text(f"{told.source}, read as {told.read_as}"))
    console.print(Text(observed_sentence(told)))
    console.print()
    console.print(Text(reproduction_sentence(told), style="bold"))
    if told.fit is not None:
        console.print(_terminal(STEP_HEADERS, step_cells(told)[:SHOWN_STEPS]))
        if len(told.steps) > SHOWN_STEPS:
            console.print(Text(f"and {len(told.steps) - SHOWN_STEPS} more steps, in {page.name}"))
    console.print()
    priced = told.price_usd_per_gpu_hour is not None
    console.print(_terminal(*policy_table(answer, priced)))
    console.print()
    console.print(_terminal(COST_HEADERS, [cost_cells(policy) for policy in answer.policies]))
    console.print()
    for sentence in (*answer_sentences(answer), limit_sentence(told, answer)):
        if sentence:
            console.print(Text(sentence))
    for sentence in basis(told):
        console.print(Text(sentence))
    for flag in flags_of(told, answer, runs, table):
        console.print(Text(f"! {flag}", style="yellow"))
    console.print(Text(f"counterfactual: {page}"), soft_wrap=True)
    return [picture]


def flags_of(told: Counterfactual, answer: Answer, runs: RunSet, table: ComparisonTable) -> list[str]:
    """Return all that must be read with the figures."""
    # What a comparison says of other batches is said of speedups by response, and here they are by token.
    own = msgspec.structs.replace(table, warnings=tuple(differences(runs.runs)))
    return [*told.flags, *batch_sentences(answer), *shared_warnings(own)]


def basis(told: Counterfactual) -> list[str]:
    """Return sentences on what the figures rest on, and on what was assumed."""
    found = [f"Step times: {told.cost_source}.", f"Acceptance: {told.acceptance_source}."]
    found += [f"Lengths: {told.lengths_source}".rstrip(".") + "."]
    return [*found, *(f"Taken: {each}." for each in told.assumptions)]


def step_cells(told: Counterfactual) -> list[tuple[str, ...]]:
    """Return a row a step of the observed run."""
    return [
        (
            f"{step.step}", f"{step.responses:,}", f"{step.longest_tokens:,}",
            number(step.rollout_s), number(step.modelled_rollout_s),
            number(step.step_s), number(step.modelled_step_s),
        )
        for step in told.steps
    ]  # fmt: skip


def policy_table(answer: Answer, priced: bool) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headers and a row a policy; money only where there is a price."""
    rows = [policy_cells(policy) for policy in answer.policies]
    if priced:
        return HEADERS, rows
    return (*HEADERS[:6], HEADERS[7]), [(*row[:6], row[7]) for row in rows]


def policy_cells(policy: PolicyAnswer) -> tuple[str, ...]:
    """Return the text of one policy."""
    return (
        policy.policy,
        number(policy.step_s),
        speedup_text(policy.speedup),
        number(policy.gpu_hours),
        number(policy.idle_gpu_hours),
        _interval(policy.saved_gpu_hours, number),
        "-" if policy.saved_usd is None else _interval(policy.saved_usd, lambda value: f"{value:,.2f}"),
        f"{policy.fastest_share:.1%}" if policy.rank else "not ranked",
    )


def cost_cells(policy: PolicyAnswer) -> tuple[str, ...]:
    """Return what a policy costs beside time."""
    return (
        policy.policy,
        policy.on_policy,
        "yes" if policy.keeps_order else "no",
        f"{policy.staleness_mean:.2f} / {policy.staleness_max}",
        f"{policy.wasted_share:.1%}",
        "no, it knows lengths" if policy.bound else "yes",
    )


def render(
    told: Counterfactual, answer: Answer, runs: RunSet, table: ComparisonTable, picture: Picture
) -> str:
    """Return the page."""
    headers, rows = policy_table(answer, told.price_usd_per_gpu_hour is not None)
    sentences = " ".join(filter(None, answer_sentences(answer)))
    flags = flags_of(told, answer, runs, table)
    warnings = "".join(f"<li>{text(flag)}</li>" for flag in flags)
    parts = [
        f"<h1>Counterfactual of {text(told.source)}</h1>",
        f'<p class="dim">read as {text(told.read_as)}</p>',
        "<h2>1. What was observed</h2>",
        f"<p>{text(observed_sentence(told))}</p>",
        "<h2>2. How well the model reproduces it</h2>",
        f"<p><strong>{text(reproduction_sentence(told))}</strong></p>",
        html_rows(STEP_HEADERS, step_cells(told)) if told.fit is not None else "",
        "<h2>3. Other policies and schedules on the same lengths</h2>",
        f'<p class="answer">{text(sentences)}</p>',
        f'<div class="warnings"><strong>Read with these figures</strong><ul>{warnings}</ul></div>'
        if warnings
        else "",
        figure(picture),
        html_rows(headers, rows),
        f'<p class="dim">{text(NOTE)}</p>',
        html_rows(COST_HEADERS, [cost_cells(policy) for policy in answer.policies], names=(1, 2, 5)),
        "<h2>4. How far anything could go</h2>",
        f"<p>{text(limit_sentence(told, answer))}</p>",
        "<h2>What the figures rest on</h2>",
        words(("What",), [(sentence,) for sentence in basis(told)]),
        sources(runs.runs),
        '<p class="dim">The runs side by side, with GPU time by cause: report.html beside this page.</p>',
    ]
    return document(f"Counterfactual of {told.source}", parts)


def _interval(estimate: Estimate, form: object) -> str:
    assert callable(form)
    if estimate.interval is None or estimate.reason:
        return str(form(estimate.value))
    low, high = (form(end) for end in estimate.interval)
    return f"{form(estimate.value)} [{low}, {high}]"


def _terminal(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """Return a rich table; names are shown as they are, never read as markup."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for column, header in enumerate(headers):
        narrow = header.replace(" [", "\n[").replace(" GPU-hours", "\nGPU-h").replace("GPU-hours", "GPU-h")
        narrow = narrow.replace(" logged", "\nlogged").replace(" mean / max", "\nmean / max")
        shown.add_column(Text(narrow), justify="right" if column else "left", overflow="fold")
    for name, *cells in rows:
        shown.add_row(Text(folded(name, 14, "@")), *(Text(cell.replace(" [", "\n[")) for cell in cells))
    return shown
