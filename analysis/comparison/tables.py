"""The comparison table for the terminal, Markdown and HTML: the same cells in each."""

from __future__ import annotations

import html
import math
import re

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tlt.analysis.comparison.compare import ComparisonTable, Row
from tlt.traces.common.intervals import Estimate
from tlt.traces.runs.runfolder import CAUSES
from tltsched.written.policy_name import folded

HEADERS = (
    "Policy",
    "Step (s)",
    "Total (s)",
    "Rollout (s/step)",
    "Speedup [95 %]",
    "Idle",
    "Drafter / idle",
    "Tokens/s",
    "Accept. length (with bonus)",
)
_NARROW_HEADERS = (
    "Policy",
    "Step\n(s)",
    "Total\n(s)",
    "Rollout\n(s)",
    "Speedup\n(95 %)",
    "Idle",
    "Drafter\n/ idle",
    "Tokens\n/s",
    "Accept.\nlength\n(bonus)",
)
_POLICY_COLUMNS = 12  # characters of a policy's name that fit the terminal's table beside its figures
COLUMN_NOTES = (
    "Step: mean RL step time. Total: sum of the steps. Rollout: mean time from a step's start to its last "
    "response. Speedup: the baseline's total over the policy's, with its 95 % interval. "
    "Idle: share of GPU time in which nothing was done. Drafter / idle: share of the otherwise idle GPU time "
    "that went to drafter training. Tokens/s: response tokens a second, whole cluster. Acceptance length: "
    "tokens a drafting engine step yields for a request, the bonus token counted."
)


def number(value: float | None) -> str:
    """Return four significant digits with thousands separators; `-` if there is no figure."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    value = (
        float(f"{value:.4g}") if abs(value) < 1000 else value
    )  # rounded first: 0.99996 has the decimals of 1
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def speedup_text(estimate: Estimate) -> str:
    """Return `2.31x [2.20, 2.41]`, `1x` for the baseline, or the bare value where there is no interval."""
    if math.isnan(estimate.value):
        return "-"
    if estimate.interval is None:
        return f"{estimate.value:.2f}x [n/a]"
    if estimate.reason:
        return "1x"
    low, high = estimate.interval
    return f"{estimate.value:.2f}x [{low:.2f}, {high:.2f}]"


def cells(table: ComparisonTable) -> list[tuple[str, ...]]:
    """Return the table's text, one tuple of len(HEADERS) a policy."""
    return [_row_cells(row) for row in table.rows]


def terminal(table: ComparisonTable) -> Table:
    """Return a rich table that fits 80 columns; names are shown as they are, never read as markup."""
    shown = Table(
        title=Text(table.name),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for header in _NARROW_HEADERS:
        first = header == _NARROW_HEADERS[0]
        shown.add_column(
            Text(header), justify="left" if first else "right", overflow="fold", no_wrap=not first
        )
    for policy, *figures in cells(table):
        shown.add_row(
            Text(folded(policy, _POLICY_COLUMNS)),
            *(Text(figure.replace(" [", "\n").replace(", ", "-").rstrip("]")) for figure in figures),
        )
    return shown


def markdown(table: ComparisonTable) -> str:
    """Return a Markdown table, pipes escaped; below it what schedules cost beside time, if any do."""
    text = markdown_rows(HEADERS, cells(table))
    if scheduled(table):
        text += "\n" + markdown_rows(SCHEDULE_HEADERS, schedule_cells(table))
    return text


def html_table(table: ComparisonTable) -> str:
    """Return an HTML table, everything escaped; below it what schedules cost beside time, if any do."""
    text = html_rows(HEADERS, cells(table))
    if scheduled(table):
        notes = f"<p>{html.escape(SCHEDULE_NOTES)}</p>\n"
        text += html_rows(SCHEDULE_HEADERS, schedule_cells(table), names=(1, 4, 5)) + notes
    return text


def ledger_cells(table: ComparisonTable) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headers and rows of the ledger: one row a cause that occurs in any policy, then the totals.

    Amounts are GPU-seconds, in brackets GPU-hours and the share of the run's GPU time.
    """
    used = [cause for cause in CAUSES if any(row.ledger.gpu_seconds[cause] > 0 for row in table.rows)]
    headers = ("Cause", "Category", *(row.policy for row in table.rows))
    rows = []
    for cause in used:
        amounts = [_amount(row, row.ledger.gpu_seconds[cause]) for row in table.rows]
        rows.append((cause, CAUSES[cause][0], *amounts))
    totals = [_amount(row, row.ledger.total_gpu_s()) for row in table.rows]
    rows.append(("GPUs x wall time", "", *totals))
    rows.append(("adds up within", "", *(f"{row.accounting_error:.1e} relative" for row in table.rows)))
    return headers, rows


def markdown_rows(headers: tuple[str, ...], rows: list[tuple[str, ...]], figures: int | None = None) -> str:
    """Return any text table as Markdown.

    The last `figures` columns are aligned to the right; None means all but the first.
    """
    safe = [tuple(_pipe_safe(cell) for cell in row) for row in rows]
    frame = pd.DataFrame(safe, columns=pd.Index([_pipe_safe(header) for header in headers]))
    right = len(headers) - 1 if figures is None else figures
    align = ["left"] * (len(headers) - right) + ["right"] * right
    return str(frame.to_markdown(index=False, disable_numparse=True, colalign=align)) + "\n"


def html_rows(headers: tuple[str, ...], rows: list[tuple[str, ...]], names: tuple[int, ...] = ()) -> str:
    """Return any text table as HTML, everything escaped. Columns `names` hold words and are aligned left."""

    def cell(tag: str, column: int, text: str) -> str:
        kind = ' class="name"' if column in names else ""
        return f"<{tag}{kind}>{unbroken(html.escape(text))}</{tag.split()[0]}>"

    head = "".join(cell('th scope="col"', column, header) for column, header in enumerate(headers))
    body = "".join(
        "<tr>"
        + cell('th scope="row"', 0, row[0])
        + "".join(cell("td", column, text) for column, text in enumerate(row[1:], 1))
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n'
    )


def unbroken(text: str) -> str:
    """Keep a browser from breaking a line inside an interval or before a percent sign."""
    return re.sub(r"(?<=[0-9%],) (?=[0-9])| (?=%)", "\u00a0", text)


SCHEDULE_HEADERS = (
    "Policy",
    "Schedule",
    "Step (s)",
    "Speedup [95 %]",
    "On-policy",
    "Order kept",
    "Staleness mean / max",
    "Wasted",
    "Tokens trained / step",
    "s / M tokens",
)
SCHEDULE_NOTES = (
    "On-policy: whether the trained tokens come from the weights that they update (mixed: a response may "
    "have tokens of several versions). Order kept: each step trains on the responses to its own prompts. "
    "Staleness: policy updates between the begin of a response and its training. Wasted: share of the "
    "generated tokens that were thrown away. s / M tokens: seconds of RL steps a million trained tokens. "
    "A schedule that knows lengths in advance is a bound."
)


def scheduled(table: ComparisonTable) -> bool:
    """Return whether any policy runs under another schedule than the plain synchronous one."""
    return any(row.schedule.name != "synchronous" or row.schedule.clairvoyant for row in table.rows)


def schedule_cells(table: ComparisonTable) -> list[tuple[str, ...]]:
    """Return what the schedules cost beside time, one tuple of len(SCHEDULE_HEADERS) a policy."""
    return [
        (
            row.policy,
            row.schedule.name + (" (bound)" if row.schedule.clairvoyant else ""),
            number(row.mean_step_s),
            speedup_text(row.speedup),
            row.schedule.on_policy,
            "yes" if row.schedule.keeps_order else "no",
            f"{row.schedule.staleness_mean:.2f} / {row.schedule.staleness_max}",
            f"{row.schedule.wasted_share:.1%}",
            number(row.schedule.trained_tokens),
            number(row.schedule.seconds_per_million_tokens),
        )
        for row in table.rows
    ]


def schedule_terminal(table: ComparisonTable) -> Table:
    """Return the table of what the schedules cost beside time."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for column, header in enumerate(SCHEDULE_HEADERS):
        if header not in ("Schedule", "Tokens trained / step"):  # the policy's name says it; too wide for 80
            words = header.replace(" [", "\n[").replace(" / ", "\n/ ").replace("Order kept", "Order\nkept")
            shown.add_column(Text(words), justify="right" if column else "left", overflow="fold")
    for row in schedule_cells(table):
        kept = (folded(row[0], _POLICY_COLUMNS), *row[2:8], row[9])
        shown.add_row(*(Text(cell.replace(" [", "\n").replace(", ", "-").rstrip("]")) for cell in kept))
    return shown


def _row_cells(row: Row) -> tuple[str, ...]:
    return (
        row.policy,
        number(row.mean_step_s),
        number(row.total_s),
        number(row.rollout_s),
        speedup_text(row.speedup),
        f"{row.idle_share:.1%}",
        f"{row.drafter_share_of_idle:.1%}",
        number(row.tokens_per_s),
        "-" if row.acceptance_length_with_bonus is None else f"{row.acceptance_length_with_bonus:.2f}",
    )


def _amount(row: Row, gpu_s: float) -> str:
    if gpu_s == 0:
        return "0"
    return f"{number(gpu_s)} ({number(gpu_s / 3600)}, {row.ledger.share(gpu_s):.1%})"


def _pipe_safe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
