"""The report of a counterfactual: the observed run, its reproduction, the policies, the bounds."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tlt.analysis.comparison.compare import ComparisonTable
from tlt.analysis.comparison.explore import explore_data
from tlt.analysis.comparison.shared_warnings import shared_warnings
from tlt.analysis.counterfactual.picture import draw_counterfactual
from tlt.analysis.counterfactual.words import (
    answer_sentences,
    limit_sentence,
    observed_sentence,
    reproduction_sentence,
)
from tlt.analysis.drawing.estimates import estimate_text, number, speedup_text
from tlt.analysis.drawing.figure import Picture, save
from tlt.analysis.drawing.html import page
from tlt.analysis.drawing.regrets import REGRET_NOTES, instead_text
from tlt.analysis.drawing.tables import TextTable, terminal_table
from tlt.analysis.load import RunSet, source_rows
from tlt.traces.common.writing import write_file
from tlt.traces.results.answer import ANSWER, Answer, PolicyAnswer
from tlt.traces.results.counterfactual import COUNTERFACTUAL, Counterfactual
from tltsched.written.policy_name import folded

NAME = "counterfactual"
SHOWN_STEPS = 12  # on the terminal
STEP_HEADERS = (
    "Step", "Responses", "Longest", "Rollout logged (s)", "modelled (s)", "Step logged (s)", "modelled (s)",
)  # fmt: skip
HEADERS = (
    "Policy", "Step (s)", "Speedup [95 %]", "GPU-hours", "Idle", "Saved GPU-hours [95 %]",
    "Saved USD [95 %]", "Taken instead [95 %]",
)  # fmt: skip
COST_HEADERS = ("Policy", "On-policy", "Order kept", "Staleness mean / max", "Wasted", "Can be run")
TEMPLATE = "counterfactual/report.html"


def present_counterfactual(
    folder: Path, case: Counterfactual, answer: Answer, runs: RunSet, table: ComparisonTable, console: Console
) -> list[Picture]:
    """Write counterfactual.html and its picture into `folder`, and print tables and answer."""
    if case.needed:
        return _refuse(folder, case, console)
    picture = draw_counterfactual(case, answer, runs)
    save([picture], folder / "pictures")
    path = folder / f"{NAME}.html"
    write_file(path, render(case, answer, runs, table, picture).encode())
    _print_observed(case, path, console)
    priced = case.price_usd_per_gpu_hour is not None
    console.print(_terminal(policy_table(answer, priced)))
    console.print()
    console.print(_terminal(consequence_table(answer)))
    console.print()
    for sentence in (*answer_sentences(answer), limit_sentence(case, answer)):
        if sentence:
            console.print(Text(sentence))
    for sentence in basis(case):
        console.print(Text(sentence))
    for flag in flags_of(case, table):
        console.print(Text(f"! {flag}", style="yellow"))
    console.print(Text(f"counterfactual: {path}"), soft_wrap=True)
    return [picture]


def _print_observed(case: Counterfactual, path: Path, console: Console) -> None:
    """Print the observed run and how well the model reproduces it."""
    console.print(Text(f"{case.source}, read as {case.read_as}"))
    console.print(Text(observed_sentence(case)))
    console.print()
    console.print(Text(reproduction_sentence(case), style="bold"))
    if case.fit is not None:
        console.print(_terminal(TextTable(STEP_HEADERS, step_cells(case)[:SHOWN_STEPS])))
        if len(case.steps) > SHOWN_STEPS:
            console.print(Text(f"and {len(case.steps) - SHOWN_STEPS} more steps, in {path.name}"))
    console.print()


def _refuse(folder: Path, case: Counterfactual, console: Console) -> list[Picture]:
    """Print what a ranking needs, in place of one, and leave no answer of an earlier call."""
    for stale in (folder / ANSWER, folder / f"{NAME}.html", folder / "pictures" / f"{NAME}.png"):
        stale.unlink(missing_ok=True)
    _print_observed(case, folder / COUNTERFACTUAL, console)
    console.print(Text("Nothing is ranked. It would need:"))
    for each in case.needed:
        console.print(Text(f"  - {each}"))
    for sentence in (*basis(case), *(f"! {flag}" for flag in case.flags)):
        console.print(Text(sentence))
    return []


def flags_of(case: Counterfactual, table: ComparisonTable) -> list[str]:
    """Return all that must be read with the figures."""
    return [*case.flags, *shared_warnings(table)]


def basis(case: Counterfactual) -> list[str]:
    """Return sentences on what the figures rest on, and on what was assumed."""
    found = [f"Step times: {case.cost_source}.", f"Acceptance: {case.acceptance_source}."]
    found += [f"Lengths: {case.lengths_source}".rstrip(".") + "."]
    return [*found, *(f"Taken: {each}." for each in case.assumptions)]


def step_cells(case: Counterfactual) -> list[tuple[str, ...]]:
    """Return a row a step of the observed run."""
    return [
        (
            f"{step.step}", f"{step.responses:,}", f"{step.longest_tokens:,}",
            number(step.rollout_s), number(step.modelled_rollout_s),
            number(step.step_s), number(step.modelled_step_s),
        )
        for step in case.steps
    ]  # fmt: skip


def policy_table(answer: Answer, priced: bool) -> TextTable:
    """Return a row a policy; money only where there is a price."""
    rows = [(*policy_cells(policy), _instead(answer, policy)) for policy in answer.policies]
    if priced:
        return TextTable(HEADERS, rows)
    return TextTable((*HEADERS[:6], HEADERS[7]), [(*row[:6], row[7]) for row in rows])


def policy_cells(policy: PolicyAnswer) -> tuple[str, ...]:
    """Return the text of one policy."""
    return (
        policy.policy,
        number(policy.step_s),
        speedup_text(policy.speedup),
        number(policy.gpu_hours),
        f"{policy.idle_share:.1%}",
        estimate_text(policy.saved_gpu_hours, "{:,.2g}".format),
        "-" if policy.saved_usd is None else estimate_text(policy.saved_usd, "{:,.2f}".format),
    )


def _instead(answer: Answer, policy: PolicyAnswer) -> str:
    """Return what is lost by taking a policy instead of the best, and whether it is a tie."""
    if not policy.rank:
        return "not ranked"
    if policy.policy == answer.recommended or answer.regrets is None:
        return "the choice" if policy.policy == answer.recommended else "-"
    tie = " (tie)" if policy.policy in answer.regrets.group else ""
    return instead_text(answer.regrets.instead[policy.policy]) + tie


def consequence_table(answer: Answer) -> TextTable:
    """Return what each policy costs beside time."""
    return TextTable(COST_HEADERS, [_cost_cells(policy) for policy in answer.policies], names=(1, 2, 5))


def _cost_cells(policy: PolicyAnswer) -> tuple[str, ...]:
    return (
        policy.policy,
        policy.on_policy,
        "yes" if policy.keeps_order else "no",
        f"{policy.staleness_mean:.2f} / {policy.staleness_max}",
        f"{policy.wasted_share:.1%}",
        "no, it knows lengths" if policy.clairvoyant else "yes",
    )


def render(
    case: Counterfactual, answer: Answer, runs: RunSet, table: ComparisonTable, picture: Picture
) -> str:
    """Return the page."""
    return page(
        TEMPLATE,
        title=f"Counterfactual of {case.source}",
        read_as=case.read_as,
        observed=observed_sentence(case),
        reproduction=reproduction_sentence(case),
        steps=TextTable(STEP_HEADERS, step_cells(case)) if case.fit is not None else None,
        headline=answer.headline,
        rest=" ".join((answer.rest, *answer_sentences(answer)[1:])),
        warnings=flags_of(case, table),
        picture=picture,
        regret_notes=REGRET_NOTES if answer.regrets is not None else "",
        policies=policy_table(answer, case.price_usd_per_gpu_hour is not None),
        consequences=consequence_table(answer),
        limit=limit_sentence(case, answer),
        basis=[(sentence,) for sentence in basis(case)],
        sources=source_rows(runs.runs),
        explore=explore_data(answer, runs),
    )


def _terminal(table: TextTable) -> Table:
    """Return a rich table; names are shown as they are, never read as markup."""
    shown = terminal_table()
    for column, header in enumerate(table.headers):
        narrow = header.replace(" [", "\n[").replace(" GPU-hours", "\nGPU-h").replace("GPU-hours", "GPU-h")
        narrow = narrow.replace(" logged", "\nlogged").replace(" mean / max", "\nmean / max")
        shown.add_column(
            Text(narrow), justify="right" if column else "left", overflow="fold", no_wrap=not column
        )
    for name, *cells in table.rows:
        broken = (cell.replace(" [", "\n[").replace(", ", ",\n") for cell in cells)
        shown.add_row(Text(folded(name, 12)), *map(Text, broken))
    return shown
