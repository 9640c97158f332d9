"""Compare runs of the same lengths: one row an arm, each against the first."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd

from analysis.bootstrap import Estimate, speedup
from analysis.ledger import Ledger, book, check_books, rollout_share_of_step, useful_tokens_per_s
from analysis.run import Run, RunSet
from tltsched.errors import InputError

SEED = 0  # of the bootstrap: the same runs give the same interval


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arm. Times are seconds; acceptance lengths count the bonus token (None: nothing was drafted)."""

    arm: str
    mean_step_s: float
    total_s: float  # sum of the RL steps
    rollout_s: float  # mean of the RL steps
    rollout_share: float
    speedup: Estimate  # over the baseline, pooled over draws if there are any; the baseline's is exactly 1
    idle_share: float
    drafter_share_of_idle: float
    tokens_per_s: float  # response tokens / wall time, whole cluster
    acceptance_length_with_bonus: float | None
    books_difference: float  # relative, as check_books returns it
    ledger: Ledger
    warnings: tuple[str, ...]


class ComparisonTable(msgspec.Struct, frozen=True, kw_only=True):
    """The rows in the order of the runs, and sentences about the comparison as a whole."""

    name: str
    rows: tuple[Row, ...]
    steps: int
    warnings: tuple[str, ...]


def compare(runs: RunSet) -> ComparisonTable:
    """Build the table of a comparison, or of a single run.

    Raises BooksError if the books of a run do not close and InputError if the runs did not roll out the same
    responses: (step, request, response_tokens) must be equal in every run. Runs that trained a policy may
    differ in lengths, since each generated its own; then a warning says how far they do.
    """
    baseline = runs.runs[0]
    reference = _rolled_out(baseline)
    warnings = differences(runs.runs)
    for run in runs.runs[1:]:
        if run.trained_policy() and baseline.trained_policy():
            warnings += _own_lengths(baseline, reference, run)
        else:
            _check_same_responses(baseline.arm, reference, run)
    return ComparisonTable(
        name=runs.name,
        rows=tuple(_row(run, runs) for run in runs.runs),
        steps=len(baseline.steps),
        warnings=tuple(warnings),
    )


def acceptance_length_with_bonus(steps: pd.DataFrame) -> float | None:
    """Return 1 + accepted / cycles over all drafting cycles of the steps; None if there was no such cycle."""
    cycles = int(steps["request_cycles"].sum())
    return 1 + int(steps["accepted_tokens"].sum()) / cycles if cycles else None


def _row(run: Run, runs: RunSet) -> Row:
    difference = check_books(run.summary, run.intervals)
    ledger = book(run.summary, run.intervals)
    step_s = run.step_seconds()
    rollout_s = run.steps["rollout_end_s"].to_numpy() - run.steps["start_s"].to_numpy()
    against = (
        Estimate(1.0, (1.0, 1.0), "the baseline itself")
        if run is runs.runs[0]
        else speedup(runs.step_seconds(runs.runs[0]), runs.step_seconds(run), seed=SEED)
    )
    return Row(
        arm=run.arm,
        mean_step_s=float(step_s.mean()) if len(step_s) else 0.0,
        total_s=float(step_s.sum()),
        rollout_s=float(rollout_s.mean()) if len(rollout_s) else 0.0,
        rollout_share=rollout_share_of_step(run.steps),
        speedup=against,
        idle_share=ledger.idle_share(),
        drafter_share_of_idle=ledger.drafter_share_of_idle(),
        tokens_per_s=useful_tokens_per_s(run.summary),
        acceptance_length_with_bonus=acceptance_length_with_bonus(run.steps),
        books_difference=difference,
        ledger=ledger,
        warnings=run.summary.warnings,
    )


def _rolled_out(run: Run) -> pd.DataFrame:
    columns = ["step", "request", "response_tokens"]
    return run.responses[columns].sort_values(columns[:2], kind="stable", ignore_index=True)


def _check_same_responses(baseline: str, reference: pd.DataFrame, run: Run) -> None:
    rows = _rolled_out(run)
    if len(rows) != len(reference):
        got = f"{len(rows)} responses, but {baseline} has {len(reference)}"
    else:
        unequal = np.flatnonzero((rows.to_numpy() != reference.to_numpy()).any(axis=1))
        if len(unequal) == 0:
            return
        here, there = rows.iloc[int(unequal[0])], reference.iloc[int(unequal[0])]
        got = f"{_response(here)}, where {baseline} has {_response(there)}"
    raise InputError(
        f"responses of {run.arm}",
        got,
        "the same (step, request, response_tokens) in every run",
        "the comparison is invalid: run every policy on the same lengths and seed",
    )


def _own_lengths(baseline: Run, reference: pd.DataFrame, run: Run) -> list[str]:
    """Say how far the lengths of a run that trained a policy are from the baseline's."""
    rows = _rolled_out(run)
    if rows.equals(reference):
        return []
    mean, base = (float(each["response_tokens"].mean()) for each in (rows, reference))
    return [
        f"{run.arm} generated other lengths than {baseline.arm}: {mean:,.1f} tokens a response in the mean, "
        f"not {base:,.1f}. Its speedup includes the difference; tlt report train says more about it."
    ]


def _response(row: pd.Series[int]) -> str:
    return f"step {row['step']} request {row['request']} of {row['response_tokens']} tokens"


def differences(runs: tuple[Run, ...]) -> list[str]:
    """Name the facts in which the runs differ though a fair comparison needs them equal."""
    sentences = []
    for field in ("kind", "gpus", "gpu", "model", "cost_source", "lengths_source", "tool_version"):
        values = list(dict.fromkeys(str(getattr(run.summary, field)) for run in runs))
        if len(values) > 1:
            sentences.append(f"The runs differ in {field}: {'; '.join(values)}.")
    return sentences
