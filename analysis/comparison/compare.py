"""Compare runs of the same lengths: one row a policy, each against the first."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd

from tlt.analysis.comparison.pace import against
from tlt.analysis.ledger import Ledger, book, check_accounting, rollout_share_of_step, useful_tokens_per_s
from tlt.analysis.load import Run, RunSet, overlaps
from tlt.traces.common.intervals import Estimate, speedup
from tlt.traces.lengths.run_as_trace import by_request
from tlt.traces.runs.acceptance import acceptance_length_with_bonus
from tlt.traces.runs.runfolder import ScheduleFacts
from tltsched.errors import InputError

LAGS = ("in_flight_lag_mean", "in_queue_lag_mean")


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy's rollout schedule costs beside time."""

    name: str
    on_policy: str
    keeps_order: bool
    clairvoyant: bool
    staleness_mean: float  # policy updates between the begin of a response and its training
    staleness_max: int
    in_flight_lag: float | None  # of the mean, while it was generated; None: the run did not tell
    in_queue_lag: float | None  # and from its end to its training
    dropped_responses: int | None  # in all steps: spare or too stale
    wasted_share: float  # of the response tokens that were generated
    wasted_gpu_s: float  # of generation, by the share of tokens
    trained_responses: float  # a step
    trained_tokens: float  # response tokens a step
    seconds_per_million_tokens: float  # of RL steps, per trained response tokens


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. Times are seconds; acceptance lengths count the bonus token (None: nothing was drafted)."""

    policy: str
    mean_step_s: float
    total_s: float  # sum of the RL steps
    rollout_s: float  # mean of the RL steps
    rollout_share: float
    speedup: Estimate  # of seconds a trained token, over the baseline's (1), pooled over draws if there are
    idle_share: float
    drafter_share_of_idle: float
    tokens_per_s: float  # response tokens / wall time, whole cluster
    acceptance_length_with_bonus: float | None
    accounting_error: float  # relative, as check_accounting returns it
    ledger: Ledger
    warnings: tuple[str, ...]
    schedule: ScheduleRow
    token_factor: float = 1.0  # the reference's trained tokens over its own
    left_behind: int = 0  # responses under way or put off at the end
    unsettled: bool = False  # too many of those to rank it
    stood_still: str = ""  # for how long workers did, where that is too much to rank it
    trainer_share: float | None = None  # of the workers, where some train and do nothing else


class ComparisonTable(msgspec.Struct, frozen=True, kw_only=True):
    """The rows in the order of the runs, and sentences about the comparison as a whole."""

    name: str
    rows: tuple[Row, ...]
    steps: int
    warnings: tuple[str, ...]


def compare(runs: RunSet) -> ComparisonTable:
    """Build the table of a comparison, or of a single run.

    Raises AccountingError if the GPU time of a run does not add up and InputError if the runs did not roll
    out the same responses: (step, request, response_tokens) must be equal in every run. Runs that trained a
    policy may differ in lengths, since each generated its own; so may schedules that change the order of
    samples. Then a warning says how far they do.
    """
    baseline = runs.runs[0]
    reference = _rolled_out(baseline)
    warnings = differences(runs.runs)
    for run in runs.runs[1:]:
        if not (run.keeps_order() and baseline.keeps_order()):
            warnings += _own_batches(baseline, run)
        elif run.trained_policy() and baseline.trained_policy():
            warnings += _own_lengths(baseline, reference, run)
        else:
            _check_same_responses(baseline.policy, reference, run)
            warnings += _pace(baseline, run)
    return ComparisonTable(
        name=runs.name,
        rows=tuple(_row(run, runs) for run in runs.runs),
        steps=len(baseline.steps),
        warnings=tuple(warnings),
    )


def _pace(baseline: Run, run: Run) -> list[str]:
    """Tell of a machine that ran faster or slower under one of two live policies."""
    pace = against(run, baseline)
    if pace is None or not pace.unlike:
        return []
    return [f"{pace.words(run.policy, baseline.policy)}."]


def _row(run: Run, runs: RunSet) -> Row:
    difference = check_accounting(run.summary, run.intervals)
    ledger = book(run.summary, run.intervals)
    step_s = run.step_seconds()
    rollout_s = run.rollout_seconds()
    gained = (
        Estimate(1.0, (1.0, 1.0), "the baseline itself")
        if run is runs.runs[0]
        else speedup(runs.counted_seconds(runs.runs[0]), runs.counted_seconds(run))
    )
    return Row(
        policy=run.policy,
        mean_step_s=float(step_s.mean()) if len(step_s) else 0.0,
        total_s=float(step_s.sum()),
        rollout_s=float(rollout_s.mean()) if len(rollout_s) else 0.0,
        rollout_share=rollout_share_of_step(run.steps),
        speedup=gained,
        idle_share=ledger.idle_share(),
        drafter_share_of_idle=ledger.drafter_share_of_idle(),
        tokens_per_s=useful_tokens_per_s(run.summary),
        acceptance_length_with_bonus=acceptance_length_with_bonus(run.steps),
        accounting_error=difference,
        ledger=ledger,
        warnings=run.summary.warnings,
        schedule=_schedule_row(run, ledger),
        token_factor=runs.token_factor(run),
        left_behind=run.left_behind(),
        unsettled=run.unsettled(),
        stood_still=run.stood_still(),
        trainer_share=_trainer_share(run),
    )


def _trainer_share(run: Run) -> float | None:
    if run.schedule is None or not overlaps(run.schedule[0].name):
        return None
    training = run.intervals[run.intervals["cause"] == "policy_update"]
    return int(training["worker"].nunique()) / run.summary.workers


def _schedule_row(run: Run, ledger: Ledger) -> ScheduleRow:
    tokens = int(run.responses["response_tokens"].sum())
    steps = max(len(run.steps), 1)
    facts, rows = run.schedule or (ScheduleFacts(name="synchronous", keeps_order=True, on_policy="yes"), None)
    trained = len(run.responses)
    wasted, stale, stalest = 0, 0.0, 0
    lags: dict[str, float | None] = dict.fromkeys(LAGS, 0.0)
    dropped: int | None = 0
    if rows is not None and len(rows):
        # What is unfinished at the end is neither trained on nor wasted.
        wasted = int(rows["wasted_tokens"].sum())
        stale = _mean(rows, "staleness_mean", trained) or 0.0
        stalest = int(rows["staleness_max"].max())
        lags = {name: _mean(rows, name, trained) for name in LAGS}
        dropped = None if (rows["dropped_responses"] < 0).any() else int(rows["dropped_responses"].sum())
    share = wasted / (wasted + tokens) if tokens else 0.0
    return ScheduleRow(
        name=facts.name,
        on_policy=facts.on_policy,
        keeps_order=facts.keeps_order,
        clairvoyant=facts.clairvoyant,
        staleness_mean=stale,
        staleness_max=stalest,
        in_flight_lag=lags["in_flight_lag_mean"],
        in_queue_lag=lags["in_queue_lag_mean"],
        dropped_responses=dropped,
        wasted_share=share,
        wasted_gpu_s=share * ledger.category_gpu_s("rollout"),
        trained_responses=trained / steps,
        trained_tokens=tokens / steps,
        seconds_per_million_tokens=float(run.step_seconds().sum()) / tokens * 1e6 if tokens else 0.0,
    )


def _mean(rows: pd.DataFrame, column: str, trained: int) -> float | None:
    """Return the mean of a column over trained responses; None: it was not told."""
    total = float((rows[column] * rows["trained_responses"]).sum(skipna=False)) / max(trained, 1)
    return None if np.isnan(total) else total


def _rolled_out(run: Run) -> pd.DataFrame:
    return by_request(run.responses, "step", "request", "response_tokens")


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
        f"responses of {run.policy}",
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
        f"{run.policy} generated other lengths than {baseline.policy}: {mean:,.1f} tokens a response in the "
        f"mean, not {base:,.1f}. Its speedup includes the difference; tlt report train says more about it."
    ]


def _own_batches(baseline: Run, run: Run) -> list[str]:
    """Say how the batches of a policy whose schedule changes the order of samples differ from the baseline's.

    Raises InputError if its steps train on another number of responses.
    """
    counts = [each.responses.groupby("step").size().to_numpy() for each in (baseline, run)]
    if len(counts[0]) != len(counts[1]) or (counts[0] != counts[1]).any():
        raise InputError(
            f"responses of {run.policy}", f"{counts[1].tolist()[:4]}... a step",
            f"as many a step as {baseline.policy} has",
            "the comparison is invalid: every step must train on the same number of responses",
        )  # fmt: skip
    mean, base = (float(each.responses["response_tokens"].mean()) for each in (run, baseline))
    lengths = f"{mean:,.0f} tokens in the mean", f"{base:,.0f}"
    other = "as there" if lengths[0].startswith(f"{lengths[1]} ") else f"there {lengths[1]}"
    words = (
        f"{run.policy} trains on other responses than {baseline.policy}, as many a step: of {lengths[0]}, "
        f"{other}. It is compared by seconds a trained token."
    )
    left = run.left_behind()
    if left:
        words += (
            f" At its end {left:,} responses are under way or put off, {left / len(run.responses):.0%} of "
            "those it trained on, and the long ones are among them: more steps make that matter less."
        )
    return [words]


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
