"""Is the drafter at work, everywhere? Acceptance as a whole, by context, by position, in the tail."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.traces.doctor.base import CannotRunError, Check, Limits, Sign
from tlt.traces.doctor.needs import draft_counts, drafting_stretches, drafts_by_batch, need_drafts
from tlt.traces.doctor.subject import Member, Subject
from tlt.traces.runs.acceptance import acceptance_length_with_bonus, every_draft_accepted
from tlt.traces.runs.batch_acceptance import (
    FEWEST_ROLLOUTS,
    TAIL_SHARE,
    bucket_words,
    by_bucket,
    tail_acceptance,
)
from tlt.traces.runs.records import RECORDS

DEAD = 0.02  # accepted drafts a request engine step: below it speculation only costs
FEWEST_REQUEST_STEPS = 500  # on each side of a limit of context
CONTEXT_BINS = 128
COLLAPSE, FALL = 0.3, 0.7  # acceptance past a limit over that before it
FALLEN_TAIL = 0.9  # accepted in the tail over that in the bulk: a smaller fall is of no consequence
BROKEN_CHAIN = 0.1  # share accepted at a position of those accepted at the one before


def _dead(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    run = need_drafts(member)
    length = acceptance_length_with_bonus(run.steps)
    assert length is not None
    if length - 1 >= DEAD:
        return []
    return [
        Sign(
            severity="problem",
            found=f"acceptance length {length:.3f} with the bonus token over "
            f"{int(run.steps['request_steps'].sum()):,} request-steps: hardly a draft was accepted",
            why="Each engine step pays for drafting and verification and emits what plain decode would. A "
            "wrong name "
            "of the drafter's algorithm, or weights of another model, look like this.",
            todo="Check that the engine loaded the drafter that belongs to this policy; until then turn "
            "speculation off.",
            source="steps.parquet: accepted_tokens, request_steps",
        )
    ]


def _perfect(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    run = need_drafts(member)
    counts, source = draft_counts(run)
    if not every_draft_accepted(counts):
        return []
    return [
        Sign(
            severity="problem",
            found=f"all {int(counts['drafted_tokens'].sum()):,} drafts were accepted",
            why="No drafter achieves this: verification was not at work, so neither times nor texts count.",
            todo="Check the acceptance settings of the engine (a forced or synthetic acceptance?).",
            source=f"{source}: drafts, and those of them that were accepted",
        )
    ]


def _by_context(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Find the context past which acceptance is a fraction of that before, at the same depths."""
    del subject, limits
    rows, source = drafting_stretches(need_drafts(member))
    context = rows["context_tokens"].to_numpy(np.float64)
    edges = np.linspace(0.0, float(context.max()) if len(context) else 1.0, CONTEXT_BINS + 1)
    place = np.clip(np.digitize(context, edges) - 1, 0, CONTEXT_BINS - 1)
    by_depth = rows.groupby("depth")[["accepted_tokens", "request_steps"]].transform("sum")
    expected = by_depth["accepted_tokens"] / by_depth["request_steps"] * rows["request_steps"]
    accepted, usual, count = (
        np.bincount(place, weights=values.to_numpy(np.float64), minlength=CONTEXT_BINS)
        for values in (rows["accepted_tokens"], expected, rows["request_steps"])
    )
    before, after = np.cumsum(count)[:-1], np.cumsum(count[::-1])[::-1][1:]
    enough = (before >= FEWEST_REQUEST_STEPS) & (after >= FEWEST_REQUEST_STEPS)
    usual_before, usual_after = np.cumsum(usual)[:-1], np.cumsum(usual[::-1])[::-1][1:]
    if not enough.any() or not usual.sum():
        raise CannotRunError("too few drafting engine steps, or one context only")
    low = np.cumsum(accepted)[:-1] / np.maximum(usual_before, 1e-12)
    high = np.cumsum(accepted[::-1])[::-1][1:] / np.maximum(usual_after, 1e-12)
    ratio = np.where(enough & (low > 0), high / np.maximum(low, 1e-12), np.inf)
    at = int(np.argmin(ratio))
    if ratio[at] > FALL:
        return []
    past = context >= edges[at + 1]
    length = [acceptance_length_with_bonus(rows[some]) or 1.0 for some in (~past, past)]
    return [
        Sign(
            severity="problem" if ratio[at] <= COLLAPSE else "notice",
            found=f"past a mean context of about {edges[at + 1]:,.0f} tokens {ratio[at]:.0%} as many drafts "
            f"are accepted as before, at the same K (acceptance length {length[0]:.2f}, then "
            f"{length[1]:.2f})",
            why="The longest responses end a rollout, and they are the ones with a long context. A drafter "
            "that was trained on, or whose cache is limited to, fewer positions looks like this; so, to "
            "a lesser degree, do long responses of another kind.",
            todo="Check the drafter's longest position and the engine's limit for it; turn speculation off "
            "past it, or train the drafter on longer texts.",
            source=f"{source}: {int(after[at]):,} request-steps past that context",
        )
    ]


def _by_position(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    run = need_drafts(member)
    if run.decision_intervals is None or run.decision_intervals.positions.empty:
        raise CannotRunError(f"no {RECORDS} with acceptance by position")
    sums = run.decision_intervals.positions.groupby("position")[["drafted", "accepted"]].sum()
    share = (sums["accepted"] / sums["drafted"].clip(lower=1)).to_numpy(np.float64)
    for position in range(1, len(share)):
        before = share[position - 1]
        reached = before * float(sums["drafted"].iloc[position])
        if reached < FEWEST_REQUEST_STEPS or share[position] / before >= BROKEN_CHAIN:
            continue
        return [
            Sign(
                severity="problem",
                found=f"draft position {position} is accepted in {share[position]:.1%} of the engine steps, "
                f"position "
                f"{position - 1} in {before:.1%}: the chain breaks there",
                why="What is drafted past that position is paid for and thrown away.",
                todo=f"Check how the drafter feeds its own output back; draft at most {position} tokens "
                "until then.",
                source=f"{RECORDS}: accepted_by_position",
            )
        ]
    return []


def _tail(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Find a run whose last requests get fewer drafts accepted than the rest did, beyond chance."""
    del subject, limits
    rows, source = drafts_by_batch(need_drafts(member))
    found = tail_acceptance(rows)
    if found is None or found.ratio.interval is None:
        raise CannotRunError(
            f"fewer than {FEWEST_ROLLOUTS} rollouts of a worker that draft alike before and after their "
            f"batch fell to {TAIL_SHARE:.0%} of its largest"
        )
    low, high = found.ratio.interval
    if high >= 1.0 or found.ratio.value > FALLEN_TAIL:
        return []
    return [
        Sign(
            severity="notice",
            found=f"once {TAIL_SHARE:.0%} or fewer of a worker's largest drafting batch are left, "
            f"{found.ratio.value:.0%} as many drafts are accepted at the same K as before (95 % "
            f"interval {low:.0%} to {high:.0%} over {found.rollouts} rollouts of a worker): "
            f"{found.tail:.2f} an engine step of a request, not {found.bulk:.2f}; "
            f"{found.steps_share:.0%} of the engine steps that draft are there; by batch "
            f"{_by_bucket(rows)} (bonus token not counted)",
            why="The responses that are left last are the hard ones, or the drafter is worse far into a "
            "response. A mean over all drafts promises more than speculation gives in the tail.",
            todo="Judge speculation by this run's law, not by its mean (`tlt sim fit-acceptance RUN "
            "--out LAW.json` where drafts are recorded by request, then acceptance.law); draft fewer in "
            "the tail, or let goodput decide by the requests that run; train the drafter on long responses.",
            source=f"{source}: {found.request_steps:,} request-steps of the tail; a rollout counts once, "
            "whatever its drafts",
        )
    ]


def _by_bucket(rows: pd.DataFrame) -> str:
    """Return accepted drafts an engine step of a request by batch, the largest batch first."""
    rates = [
        f"{bucket_words(number)}: {some['accepted_tokens'].sum() / some['request_steps'].sum():.2f}"
        for number, some in by_bucket(rows).items()
    ]
    return ", ".join(reversed(rates))


CHECKS = (
    Check(name="acceptance-none", looks_for="acceptance length 1.0", examine=_dead),
    Check(name="acceptance-all", looks_for="every draft accepted", examine=_perfect),
    Check(name="acceptance-context", looks_for="acceptance that ends past a context", examine=_by_context),
    Check(name="acceptance-position", looks_for="a chain that breaks at a position", examine=_by_position),
    Check(name="acceptance-tail", looks_for="a tail that accepts less than the bulk", examine=_tail),
)
