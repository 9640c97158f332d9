"""What checks need of a member of the subject: it is returned, or CannotRunError says what is missing."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.traces.doctor.base import CannotRunError
from tlt.traces.doctor.subject import Member, RunTables
from tlt.traces.runs.batch_acceptance import of_engine_steps, read_batch_acceptance
from tlt.traces.runs.engine_steps import ENGINE_STEPS, stretches_of_engine_steps
from tlt.traces.runs.records import RECORDS
from tlt.traces.sessions.schema import Sessions

METRICS = "metrics"  # of an engine, where they stand for a file


def need_run(member: Member) -> RunTables:
    """Return the tables of a run folder."""
    if member.run is None:
        raise CannotRunError("no run folder: the file holds lengths, not what the engines did")
    return member.run


def need_rows(member: Member) -> pd.DataFrame:
    """Return the responses."""
    if member.rows is None:
        raise CannotRunError("no lengths were read from the log")
    if member.rows.empty:
        raise CannotRunError("no responses")
    return member.rows


def need_sessions(member: Member) -> Sessions:
    """Return the sessions."""
    if member.sessions is None:
        raise CannotRunError("no turns: each response is one")
    return member.sessions


def need_rollouts(member: Member) -> pd.DataFrame:
    """Return the responses if they have the steps and groups of RL training."""
    rows = need_rows(member)
    if member.kind == "serving":
        raise CannotRunError("serving lengths: no RL steps and no prompt groups")
    if member.kind == "generated" and member.run is None:
        raise CannotRunError("lengths drawn from logged means: single responses were not recorded")
    return rows


def need_drafts(member: Member) -> RunTables:
    """Return the tables of a run that speculated."""
    run = need_run(member)
    if not run.drafts():
        raise CannotRunError("nothing was drafted")
    return run


def stretches(run: RunTables) -> tuple[pd.DataFrame, str]:
    """Return the decode stretches (STRETCH_COLUMNS), and the file that they are of."""
    if run.engine_steps is not None:
        return stretches_of_engine_steps(run.engine_steps), ENGINE_STEPS
    if run.decision_intervals is not None:
        return run.decision_intervals.stretches, RECORDS if run.live is None else METRICS
    raise CannotRunError(f"neither {ENGINE_STEPS} nor {RECORDS}: no times by batch")


def drafts_by_batch(run: RunTables) -> tuple[pd.DataFrame, str]:
    """Return what was accepted at which batch (BATCH_ACCEPTANCE_COLUMNS), and the file."""
    if run.engine_steps is not None:
        return of_engine_steps(run.engine_steps), ENGINE_STEPS
    rows = read_batch_acceptance(run.path)
    if rows is None:
        raise CannotRunError(f"neither {ENGINE_STEPS} nor {RECORDS}: no drafts by batch")
    return rows, RECORDS


def draft_counts(run: RunTables) -> tuple[pd.DataFrame, str]:
    """Return drafted_tokens and accepted_tokens, in rows that add up, and the file."""
    if run.engine_steps is not None:
        return run.engine_steps, ENGINE_STEPS
    told = run.decision_intervals
    if run.live is None or told is None or told.positions.empty:
        raise CannotRunError(f"no {ENGINE_STEPS}: drafted tokens are not counted")
    return told.positions.rename(
        columns={"drafted": "drafted_tokens", "accepted": "accepted_tokens"}
    ), METRICS


def need_live(member: Member) -> tuple[RunTables, pd.DataFrame]:
    """Return the run, and what its engines tell while they run (LIVE_COLUMNS)."""
    run = need_run(member)
    if run.live is None or run.live.empty:
        raise CannotRunError("no facts of engines that run: neither the plugin's nor their metrics")
    return run, run.live


def drafting_stretches(run: RunTables) -> tuple[pd.DataFrame, str]:
    """Return the stretches that drafted (at least one), and the file."""
    rows, source = stretches(run)
    drafting = rows[rows["depth"] > 0].reset_index(drop=True)
    if drafting.empty:
        raise CannotRunError(f"no steady engine steps in {source} that draft")
    return drafting, source


def span(values: pd.Series[float] | np.ndarray) -> str:
    """Return `low to high`, or the one value."""
    low, high = f"{float(np.min(values)):,.0f}", f"{float(np.max(values)):,.0f}"
    return low if low == high else f"{low} to {high}"


def some(numbers: list[int]) -> str:
    """Return the first few numbers of a list."""
    listed = ", ".join(f"{number:,}" for number in numbers[:6])
    return listed + (f" and {len(numbers) - 6:,} more" if len(numbers) > 6 else "")
