"""What to draft at which batch size: the advice as a table and in words."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from tlt.analysis.drawing.tables import TextTable, terminal_table
from tlt.traces.runs.runfolder import Advice, BatchAdvice

ADVICE_HEADERS = (
    "Batch",
    "Context (tokens)",
    "Draft config",
    "Gain [95 %]",
    "Regret [to]",
    "Runner-up",
    "Equal within 1 %",
)
ADVICE_NOTES = (
    "Batch: requests that one worker runs at once. Context: tokens that each of them holds when so many are "
    "left. Draft config: the fastest to draft with at that batch; one number is a chain of so many "
    "drafts, three a tree (depth, top-k, tokens to verify), off is no speculation. Gain: its tokens per "
    "second over those without speculation, of decode alone. Regret: share of the time that it loses where "
    "another one is faster, mean over the draws of the step times and upper end of its 95 % interval. "
    "Runner-up: what it loses over the best by the fit. Equal within 1 %: draft configurations that are as "
    "good; ~: by the fit alone, the error of the step times leaves more open. *: batch or context lies "
    "outside the points that the step times were fitted to."
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
            regret_cell(row),
            row.runner_up + ("" if row.runner_up_lost is None else f" ({row.runner_up_lost:.1%})"),
            equals_cell(row),
        )
        for row in advice.rows
    ]
    return TextTable(ADVICE_HEADERS, rows, names=(2, 5, 6))


def advice_terminal(advice: Advice) -> Table:
    """Return a rich table, the runner-up left out for its width; names are never read as markup."""
    shown = terminal_table("What to draft at which batch size")
    kept = [at for at, header in enumerate(ADVICE_HEADERS) if header != "Runner-up"]
    for header in (ADVICE_HEADERS[at] for at in kept):
        named = header in ("Draft config", "Equal within 1 %")
        shown.add_column(
            Text(header.replace(" ", "\n", 1)), justify="left" if named else "right", overflow="fold"
        )
    for row in advice_table(advice).rows:
        shown.add_row(*(Text(row[at]) for at in kept))
    return shown


def regret_cell(row: BatchAdvice) -> str:
    """Return the mean regret and the upper end of its interval; `-` where an earlier version told none."""
    if row.regret is None or row.regret_high is None:
        return "-"
    return f"{row.regret:.1%} [{row.regret_high:.1%}]"


def equals_cell(row: BatchAdvice) -> str:
    """Return the draft configurations as good as the best, those by the fit alone with a tilde."""
    return ", ".join((*row.ties, *(f"~{name}" for name in row.near))) or "none"


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
    return [pays_sentence(advice), *_lost(advice), covers]


def _lost(advice: Advice) -> list[str]:
    """Say what following the table may lose, by the batch where that is most."""
    told = [row for row in advice.rows if row.regret is not None and row.regret_high is not None]
    if not told:
        return []
    mean = max(row.regret or 0.0 for row in told)
    worst = max(told, key=lambda row: row.regret_high or 0.0)
    return [
        f"For the error of the step times its choice loses at most {mean:.1%} of the time in the mean at any "
        f"batch; the 95 % interval ends at {worst.regret_high:.1%} or below (batch {worst.requests:,})."
    ]


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
