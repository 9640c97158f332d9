"""Does speculation pay where it is on, and what does it cost where it is off?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.traces.doctor.base import CannotRunError, Check, Limits, Sign, grade
from tlt.traces.doctor.needs import drafting_stretches, need_drafts, need_run, some, span, stretches
from tlt.traces.doctor.subject import Member, RunTables, Subject
from tlt.traces.runs.acceptance import acceptance_length_with_bonus, lengths_with_bonus
from tlt.traces.runs.engine_steps import cells, engine_step_seconds_by_cell
from tltsched.draft_config import OFF
from tltsched.policies.base import Batch

LOSES = 0.98  # plain over drafted seconds for the same tokens: below it a loss is more than noise
FEWEST_ENGINE_STEPS = 20  # in a cell that is said to lose
COVERED = 0.1  # share of drafting time that must have a plain time to be compared with
LOST_NOTICE, LOST_PROBLEM = 0.005, 0.02  # of the decode time
TAX_NOTICE, TAX_PROBLEM = 0.005, 0.03
LEAST_TAX = 0.03  # of an engine step
STALE_FALL = 0.1  # of accepted drafts: with an old drafter this is a problem
TIMES_TODO = (
    "Draft less or not at all there: `tlt sim recommend` gives the K for each batch, `tlt sim export` writes "
    "it for an engine."
)


def _own_times(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Compare drafting with engine steps at K = 0: its own, or those of a policy beside it."""
    del limits
    run = need_drafts(member)
    rows, source = drafting_stretches(run)
    plain, origin = _plain_times(run, subject)
    plain_s = plain.reindex(cells(rows)).to_numpy(np.float64)
    return _losses(run, rows, plain_s, source, origin)


def _calibrated(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Compare drafting with the times of a calibration at the same batch and context."""
    del subject
    run = need_drafts(member)
    if limits.step_times is None:
        raise CannotRunError("no --calibration")
    rows, source = drafting_stretches(run)
    batch = (rows["request_steps"] / rows["engine_steps"]).to_numpy(np.float64)
    table = limits.step_times((OFF,), int(np.ceil(batch.max())))
    context = batch * rows["context_tokens"].to_numpy(np.float64)
    plain_s = np.array(
        [
            table.engine_step_s(OFF, Batch(max(round(size), 1), round(tokens)))
            for size, tokens in zip(batch, context, strict=True)
        ]
    )
    return _losses(run, rows, plain_s, source, f"calibration {limits.calibration} at K = 0")


def _losses(run: RunTables, rows: pd.DataFrame, plain_s: np.ndarray, source: str, origin: str) -> list[Sign]:
    """plain_s: seconds of a plain engine step at each row's batch and context, shape (rows,), or NaN."""
    seconds = rows["seconds"].to_numpy(np.float64)
    known = np.isfinite(plain_s)
    if seconds[known].sum() < COVERED * seconds.sum():
        raise CannotRunError("no engine steps at K = 0 at the batches and contexts that it drafted at")
    emitted = lengths_with_bonus(
        rows["accepted_tokens"].to_numpy(np.float64), rows["request_steps"].to_numpy(np.float64)
    )
    plain_total = emitted * plain_s * rows["engine_steps"].to_numpy(np.float64)
    frame = rows.assign(
        cell=cells(rows), plain=plain_total, batch=rows["request_steps"] / rows["engine_steps"]
    )[known]
    sums = frame.groupby(["draft_config", "cell"])[
        ["seconds", "plain", "engine_steps", "request_steps", "accepted_tokens"]
    ].sum()
    losing = sums[(sums["plain"] < LOSES * sums["seconds"]) & (sums["engine_steps"] >= FEWEST_ENGINE_STEPS)]
    lost_s = float((losing["seconds"] - losing["plain"]).sum())
    decode_s = float(stretches(run)[0]["seconds"].sum())
    severity = grade(lost_s / decode_s, LOST_NOTICE, LOST_PROBLEM)
    if severity is None:
        return []
    where = frame.set_index(["draft_config", "cell"]).loc[losing.index]
    length = acceptance_length_with_bonus(losing)
    assert length is not None  # every group has request-steps
    needed = length * float(losing["seconds"].sum()) / float(losing["plain"].sum())
    draft_configs = ", ".join(dict.fromkeys(str(name) for name, _ in losing.index))
    return [
        Sign(
            severity=severity,
            found=f"speculation loses at batches of {span(where['batch'])} (K {draft_configs}): it took "
            f"{float(losing['seconds'].sum()):,.1f} s for what plain decode does in about "
            f"{float(losing['plain'].sum()):,.1f} s, {lost_s / decode_s:.1%} of the decode time; acceptance "
            f"length {length:.2f} there, break-even {needed:.2f} (with the bonus token)",
            why="Verifying costs more the more requests run, so the acceptance that pays rises with the "
            "batch.",
            todo=TIMES_TODO,
            source=f"{source}: {int(losing['engine_steps'].sum()):,} engine steps in {len(losing)} groups "
            f"of like batch and context; plain times from {origin}",
        )
    ]


def _plain_times(run: RunTables, subject: Subject) -> tuple[pd.Series[float], str]:
    """Return the seconds of a plain engine step by cell: of policies that never draft, else its own."""
    never = _never_drafting(run, subject)
    own, source = stretches(run)
    own_s = engine_step_seconds_by_cell(own[own["depth"] == 0])
    if never is None:
        return own_s, f"its own engine steps at K = 0 ({source})"
    times, name = never
    return times.combine_first(own_s), f"{name}, which never drafts"


def _never_drafting(run: RunTables, subject: Subject) -> tuple[pd.Series[float], str] | None:
    """Return plain times by cell of the first policy beside it that never drafts, on the same engine."""
    for other in subject.members:
        if other.run is None or other.run is run or other.run.drafts():
            continue
        one, two = run.summary, other.run.summary
        if (one.kind, one.gpu, one.model, one.cost_source) != (two.kind, two.gpu, two.model, two.cost_source):
            continue
        try:
            return engine_step_seconds_by_cell(stretches(other.run)[0]), other.name
        except CannotRunError:
            continue
    return None


def _stated(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject
    run = need_drafts(member)
    if limits.break_even is None:
        raise CannotRunError("no --break-even")
    length = acceptance_length_with_bonus(run.steps)
    assert length is not None
    if length >= limits.break_even:
        return []
    return [
        Sign(
            severity="problem",
            found=f"acceptance length {length:.2f} with the bonus token, below the stated break-even of "
            f"{limits.break_even:.2f}",
            why="At that acceptance speculation is slower than plain decode.",
            todo=TIMES_TODO,
            source="steps.parquet: accepted_tokens, request_steps",
        )
    ]


def _off_tax(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del limits
    run = need_run(member)
    rows, source = stretches(run)
    off = rows[rows["depth"] == 0]
    if not run.drafts() or off.empty:
        raise CannotRunError("no engine steps at K = 0 in a run that drafts")
    never = _never_drafting(run, subject)
    if never is None:
        raise CannotRunError("no policy beside it that never drafts, on the same engine")
    plain_s = never[0].reindex(cells(off)).to_numpy(np.float64)
    known = np.isfinite(plain_s)
    took_s = float(off["seconds"][known].sum())
    plain = float((plain_s * off["engine_steps"].to_numpy(np.float64))[known].sum())
    if not plain:
        raise CannotRunError("no batch and context at which both policies ran at K = 0")
    tax, share = took_s / plain - 1.0, (took_s - plain) / float(rows["seconds"].sum())
    severity = grade(share, TAX_NOTICE, TAX_PROBLEM) if tax >= LEAST_TAX else None
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=f"with speculation configured but off an engine step takes {tax:.1%} longer than in "
            f"{never[1]}, at the same batch and context: {took_s - plain:,.1f} s, {share:.1%} of its "
            "decode time",
            why="The drafter is kept in step, or graphs and buffers differ, though nothing is drafted.",
            todo="Count the tax into the break-even; if the run is off most of the time, configure no "
            "speculation, or switch it with a drafter that is not kept in step.",
            source=f"{source}: {int(known.sum()):,} rows at K = 0",
        )
    ]


def _drafter_age(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject
    run = need_drafts(member)
    steps = run.steps[(run.steps["request_steps"] > 0) & (run.steps["drafter_version"] >= 0)]
    old = steps[steps["drafter_age_steps"] > limits.drafter_age_steps]
    if steps.empty:
        raise CannotRunError("no drafter with a version: drafts come from elsewhere")
    if old.empty:
        return []
    young = steps[~steps.index.isin(old.index)]
    lengths = [acceptance_length_with_bonus(rows) for rows in (young, old)]
    fall, told = 0.0, ""
    if lengths[0] is not None and lengths[1] is not None and lengths[0] > 1:
        fall = 1 - (lengths[1] - 1) / (lengths[0] - 1)
        told = f"; acceptance length {lengths[0]:.2f} up to that age and {lengths[1]:.2f} past it"
    return [
        Sign(
            severity="problem" if fall >= STALE_FALL else "notice",
            found=f"the drafter is up to {int(old['drafter_age_steps'].max())} policy updates old, more than "
            f"{limits.drafter_age_steps} in {len(old)} of {len(steps)} steps{told}",
            why="The policy moves on and a drafter that does not follow is accepted less; how fast "
            "depends on the learning rate, so it has to be watched.",
            todo="Train the drafter in the idle tail and publish it, or check that what is published "
            "arrives.",
            source=f"steps.parquet: drafter_age_steps of steps {some(old['step'].tolist())}",
        )
    ]


CHECKS = (
    Check(name="break-even", looks_for="drafting that the run's own times say loses", examine=_own_times),
    Check(name="break-even-calibrated", looks_for="the same against a calibration", examine=_calibrated),
    Check(name="break-even-stated", looks_for="acceptance below a stated break-even", examine=_stated),
    Check(name="off-tax", looks_for="what speculation costs while it is off", examine=_off_tax),
    Check(name="drafter-age", looks_for="an old drafter", examine=_drafter_age),
)
