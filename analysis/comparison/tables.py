"""The tables of a comparison: the same cells on the terminal, in Markdown and on the page."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from tlt.analysis.comparison.compare import ComparisonTable, Row, ScheduleRow
from tlt.analysis.drawing.estimates import number, speedup_text
from tlt.analysis.drawing.tables import TextTable, markdown_rows, terminal_table
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
RATE = "s / M tokens"
_NARROW = {
    RATE: "s / M\ntokens",
    "Step (s)": "Step\n(s)",
    "Total (s)": "Total\n(s)",
    "Rollout (s/step)": "Rollout\n(s)",
    "Speedup [95 %]": "Speedup\n(95 %)",
    "Drafter / idle": "Drafter\n/ idle",
    "Tokens/s": "Tokens\n/s",
    "Accept. length (with bonus)": "Accept.\nlength\n(bonus)",
}
_POLICY_COLUMNS = 12  # characters of a policy's name that fit the terminal's table beside its figures
COLUMN_NOTES = (
    "Step: mean RL step time. Total: sum of the steps. Rollout: mean time from a step's start to its last "
    "response. Speedup: the baseline's seconds a trained token over the policy's, with its 95 % interval; "
    "where all train on the same responses that of the totals. s / M tokens: seconds of RL steps a million "
    "trained tokens. "
    "Idle: share of GPU time that waits for the longest responses or for other GPUs; waiting for rewards is "
    "a phase, not idle. Drafter / idle: share of the otherwise idle GPU time "
    "that went to drafter training. Tokens/s: response tokens a second, whole cluster. Acceptance length: "
    "tokens a drafting engine step yields for a request, the bonus token counted."
)


def policy_table(table: ComparisonTable) -> TextTable:
    """Return the figures of each policy as text, a row a policy.

    Where policies train on other responses, seconds a million trained tokens stand first, in place of totals.
    """
    rows = [_row_cells(row) for row in table.rows]
    if not by_token(table):
        return TextTable(HEADERS, rows)
    first = [number(row.schedule.seconds_per_million_tokens) for row in table.rows]
    headers = (HEADERS[0], RATE, *HEADERS[1:2], *HEADERS[3:])
    cells = [(row[0], own, row[1], *row[3:]) for own, row in zip(first, rows, strict=True)]
    return TextTable(headers, cells)


def by_token(table: ComparisonTable) -> bool:
    """Return whether some policy trains on other responses than the rest."""
    return any(row.token_factor != 1.0 for row in table.rows)


def terminal(table: ComparisonTable) -> Table:
    """Return a rich table that fits 80 columns; names are shown as they are, never read as markup."""
    shown = terminal_table(table.name)
    headers, cells, _ = policy_table(table)
    for header in headers:
        first = header == headers[0]
        shown.add_column(
            Text(_NARROW.get(header, header)),
            justify="left" if first else "right",
            overflow="fold",
            no_wrap=True,
        )
    for policy, *figures in cells:
        shown.add_row(
            Text(folded(policy, _POLICY_COLUMNS)),
            *(Text(figure.replace(" [", "\n").replace(", ", "-").rstrip("]")) for figure in figures),
        )
    return shown


def markdown(table: ComparisonTable) -> str:
    """Return a Markdown table, pipes escaped; below it what schedules cost beside time, if any do."""
    text = markdown_rows(*policy_table(table)[:2])
    if scheduled(table):
        text += "\n" + markdown_rows(*schedule_table(table)[:2])
    return text


def ledger_table(table: ComparisonTable) -> TextTable:
    """Return the ledger as text: one row a cause that occurs in any policy, then the totals.

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
    return TextTable(headers, rows, names=(1,))


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
    RATE,
    "Lag in flight / in queue",
    "Dropped",
    "Wasted (GPU-s)",
    "Pauses (GPU-s)",
)
# The policy's name says it; too wide for 80 columns: the verdict tells them of the best.
NOT_ON_TERMINAL = ("Schedule", "Tokens trained / step", *SCHEDULE_HEADERS[SCHEDULE_HEADERS.index(RATE) + 1 :])
SCHEDULE_NOTES = (
    "On-policy: whether the trained tokens come from the weights that they update (mixed: a response may "
    "have tokens of several versions). Order kept: each step trains on the responses to its own prompts. "
    "Staleness: policy updates between the begin of a response and its training. Wasted: share of the "
    "generated tokens that were thrown away, and the GPU-seconds of generation that this share is. Lag: the "
    "staleness that came about while a response was generated, and until it was trained on. Dropped: "
    "responses given up, spare or too stale. Pauses: GPUs that wait for engines to stop before new weights "
    "go out. Speedup: of seconds a trained token. "
    "A schedule that knows lengths in advance cannot be run, and is no bound either."
)


def scheduled(table: ComparisonTable) -> bool:
    """Return whether any policy runs under another schedule than the plain synchronous one."""
    return any(row.schedule.name != "synchronous" or row.schedule.clairvoyant for row in table.rows)


def schedule_table(table: ComparisonTable) -> TextTable:
    """Return what the schedules cost beside time as text, a row a policy."""
    rows = [
        (
            row.policy,
            row.schedule.name + (" (knows lengths)" if row.schedule.clairvoyant else ""),
            number(row.mean_step_s),
            speedup_text(row.speedup),
            row.schedule.on_policy,
            "yes" if row.schedule.keeps_order else "no",
            f"{row.schedule.staleness_mean:.2f} / {row.schedule.staleness_max}",
            f"{row.schedule.wasted_share:.1%}",
            number(row.schedule.trained_tokens),
            number(row.schedule.seconds_per_million_tokens),
            _lags(row.schedule),
            "-" if row.schedule.dropped_responses is None else f"{row.schedule.dropped_responses:,}",
            number(row.schedule.wasted_gpu_s),
            number(row.ledger.gpu_seconds["sync_pause"]),
        )
        for row in table.rows
    ]
    return TextTable(SCHEDULE_HEADERS, rows, names=(1, 4, 5))


def _lags(schedule: ScheduleRow) -> str:
    if schedule.in_flight_lag is None or schedule.in_queue_lag is None:
        return "-"
    return f"{schedule.in_flight_lag:.2f} / {schedule.in_queue_lag:.2f}"


def schedule_terminal(table: ComparisonTable) -> Table:
    """Return the table of what the schedules cost beside time."""
    shown = terminal_table()
    for column, header in enumerate(SCHEDULE_HEADERS):
        if header not in NOT_ON_TERMINAL:
            words = header.replace(" [", "\n[").replace(" / ", "\n/ ").replace("Order kept", "Order\nkept")
            shown.add_column(Text(words), justify="right" if column else "left", overflow="fold")
    for row in schedule_table(table).rows:
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
