"""What to draft at which batch size: the advice as a table and in words."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from tlt.analysis.drawing.tables import TextTable, terminal_table
from tlt.traces.runs.runfolder import Advice, BatchAdvice

ADVICE_HEADERS = ("Batch", "Context (tokens)", "Draft config", "Gain [95 %]", "Runner-up", "May flip")
ADVICE_NOTES = (
    "Batch: requests that one worker runs at once. Context: tokens that each of them holds when so many are "
    "left. Draft config: the fastest to draft with at that batch; one number is a chain of so many "
    "drafts, three a tree (depth, top-k, tokens to verify), off is no speculation. Gain: its tokens per "
    "second over those without speculation, of decode alone. May flip: the runner-up is ahead in more than "
    "2.5 % of the draws of the step times. *: batch or context lies outside the points that the step times "
    "were fitted to."
)
NOTHING = "No worker runs a request in every step of this workload, so there is no advice by batch size."


def advice_table(advice: Advice) -> TextTable:
    """Return the advice as text, a row a batch size."""
    rows = [
        (
            f"{row.requests:,}{'*' if row.extrapolated else ''}",
            f"{row.context_tokens:,.0f}",
            row.draft_config,
            f"{row.gain:.2f}x [{row.gain_low:.2f}, {row.gain_high:.2f}]",
            row.runner_up,
            "yes" if row.may_flip else "no",
        )
        for row in advice.rows
    ]
    return TextTable(ADVICE_HEADERS, rows, names=(2, 4, 5))


def advice_terminal(advice: Advice) -> Table:
    """Return a rich table; names are shown as they are, never read as markup."""
    shown = terminal_table("What to draft at which batch size")
    for header in ADVICE_HEADERS:
        named = header in ("Draft config", "Runner-up", "May flip")
        shown.add_column(Text(header), justify="left" if named else "right", overflow="fold")
    for row in advice_table(advice).rows:
        shown.add_row(*map(Text, row))
    return shown


def pays_sentence(advice: Advice) -> str:
    """Say from which batch size on drafting pays: the largest one whose gain has its interval above 1.

    A batch without such a gain below it is named, and so is the largest batch that gains by the fit alone.
    `advice` has a row or more.
    """
    fitted = [row for row in advice.rows if row.gain > 1]
    certain = [row for row in fitted if row.gain_low > 1]
    if not fitted:
        return "Drafting pays at none of the batch sizes of this workload."
    if len(certain) == len(advice.rows):
        return f"Drafting pays at every batch of this workload ({_range(advice.rows)} a worker)."
    words = (
        f"Drafting starts to pay at batch <= {certain[-1].requests:,}{_except(advice, certain)}"
        if certain
        else "Drafting pays for certain at no batch"
    )
    if not certain or fitted[-1].requests > certain[-1].requests:
        words += (
            f"; by the fit alone at batch <= {fitted[-1].requests:,}{_except(advice, fitted)}, where the "
            "interval includes 1"
        )
    return f"{words}."


def advice_sentences(advice: Advice) -> list[str]:
    """Return from which batch size on drafting pays, and what the intervals cover if there are any."""
    if not advice.rows:
        return [NOTHING]
    covers = (
        f"The intervals of the gains are over a step-time error of {100 * advice.cost_error:.1f} % "
        f"({advice.cost_error_source}) alone; context and acceptance are given."
    )
    return [pays_sentence(advice), covers]


def _range(rows: tuple[BatchAdvice, ...]) -> str:
    first, last = rows[0].requests, rows[-1].requests
    if first == last:
        return f"{first:,} {'request' if first == 1 else 'requests'}"
    return f"{first:,} to {last:,} requests"


def _except(advice: Advice, paying: list[BatchAdvice]) -> str:
    """Name the batch sizes below the largest paying one at which drafting does not pay."""
    pays = {row.requests for row in paying}
    below = [row.requests for row in advice.rows if row.requests < max(pays)]
    gaps = [f"{requests:,}" for requests in below if requests not in pays]
    return f" (but not at {', '.join(gaps)})" if gaps else ""
