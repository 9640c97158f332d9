"""Sessions of a comparison: turns, tools, and what prefix caches found of the contexts."""

from __future__ import annotations

from tlt.analysis.drawing.estimates import number
from tlt.analysis.drawing.tables import TextTable
from tlt.analysis.ledger import book
from tlt.analysis.load import Run

SESSION_HEADS = (
    "Policy", "Turns go", "Sessions", "Turns each", "At tools, s", "Waiting for tools, s", "Timed out",
    "Found in caches", "Computed again, tokens", "GPUs idle for tools",
)  # fmt: skip
SESSION_NOTES = (
    "Turns go: the routing rule. At tools, waiting for them (cluster.tools_at_once): seconds a session, in "
    "the mean. Found in caches: share of the contexts of all turns, in whole blocks as engines count. "
    "Computed again: tokens of contexts that were computed before and were gone, or lay on another worker. "
    "Idle for tools: GPU time in which a worker had nothing to decode while a session that ran there was "
    "at its tool."
)


def session_table(runs: tuple[Run, ...]) -> TextTable | None:
    """Return what sessions met with as text, a row a policy; None where requests are single responses."""
    rows = []
    for run in runs:
        if run.sessions is None:
            continue
        facts, sessions = run.sessions
        ledger = book(run.summary, run.intervals)
        rows.append(
            (
                run.policy,
                facts.routing,
                f"{len(sessions):,}",
                number(float(sessions["turns"].mean())),
                number(float(sessions["tool_s"].mean())),
                number(float(sessions["tool_queue_s"].mean())),
                f"{facts.timeouts:,}",
                f"{facts.hit_share:.1%}",
                f"{facts.again_tokens:,}",
                f"{ledger.share(ledger.gpu_seconds['tool_wait']):.1%}",
            )
        )
    return TextTable(SESSION_HEADS, rows, names=(1,)) if rows else None


def session_sentence(run: Run) -> str:
    """Return what tools and caches did in a run; "" where requests are single responses."""
    if run.sessions is None:
        return ""
    facts, sessions = run.sessions
    ledger = book(run.summary, run.intervals)
    queue_s = float(sessions["tool_queue_s"].mean())
    queued = f", {number(queue_s)} s more in the queue for them" if queue_s else ""
    return (
        f"Under {run.policy} a session has {number(float(sessions['turns'].mean()))} turns and waits "
        f"{number(float(sessions['tool_s'].mean()))} s at its tools{queued}; "
        f"{ledger.share(ledger.gpu_seconds['tool_wait']):.1%} of the GPU time is idle for that. With turns "
        f"placed by {facts.routing}, {facts.hit_share:.1%} of the contexts were found in prefix caches and "
        f"{facts.again_tokens:,} tokens computed again."
    )
