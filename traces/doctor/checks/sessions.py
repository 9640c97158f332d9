"""Do sessions hold what a prediction needs: waits, whole turns, room in the context, kept prefixes?"""

from __future__ import annotations

import numpy as np

from tlt.traces.doctor.base import Check, Limits, Sign, grade, shares_are_few
from tlt.traces.doctor.needs import need_sessions
from tlt.traces.doctor.subject import Member, Subject
from tlt.traces.sessions.turns import CUT_ENDS, LENGTH, TIMEOUT, TURN_LIMIT

UNKNOWN_NOTICE, UNKNOWN_PROBLEM = 1e-9, 0.5  # share of the waits between turns
CUT_NOTICE, CUT_PROBLEM = 0.01, 0.10  # share of the sessions
NEAR_CAP = 0.98  # of the cap on a context
SHORT_NOTICE, SHORT_PROBLEM = 1e-9, 0.2  # share of the turns after the first
HANGING = 20.0  # times the median of the waits of a session


def _waits(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    sessions = need_sessions(member)
    between = sessions.wait_s[~sessions.last]
    unknown = int(np.isnan(between).sum())
    known = between[np.isfinite(between)]
    zeros = bool(len(known)) and not known.any()
    if not len(between):
        return []
    severity = "problem" if zeros else grade(unknown / len(between), UNKNOWN_NOTICE, UNKNOWN_PROBLEM)
    if severity is None:
        return []
    told = f"{unknown:,} of {len(between):,} waits between turns are not known"
    if zeros:
        told = f"all {len(known):,} waits that are known are 0 s: they were not measured"
    return [
        Sign(
            severity=severity,
            found=told,
            why="While a tool runs, its request decodes nothing and its cache is kept, or given up: without "
            "waits neither batches nor cache hits can be predicted.",
            todo="Record the seconds of tools (docs/sessions.md), or assume a law: "
            "`tlt trace convert FILE OUT --law wait_s=LAW`.",
            source="wait_s of the turns that another follows",
        )
    ]


def _cut(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    sessions = need_sessions(member)
    ends = sessions.end[sessions.last]
    cut = np.isin(ends, CUT_ENDS)
    severity = grade(float(cut.mean()), CUT_NOTICE, CUT_PROBLEM, shares_are_few(len(ends)))
    if severity is None:
        return []
    by = (("cap", LENGTH), ("limit of turns", TURN_LIMIT), ("time-out", TIMEOUT))
    listed = [f"{int((ends == code).sum()):,} by the {name}" for name, code in by if (ends == code).any()]
    causes = ", ".join(listed) or "from outside"
    return [
        Sign(
            severity=severity,
            found=f"{int(cut.sum()):,} of {len(ends):,} sessions ({cut.mean():.1%}) were cut: {causes}",
            why="A session that is cut has no answer and mostly no reward, and how long it would have gone "
            "on is not known.",
            todo="Raise the limit that cuts, or take turns as censored (`tlt trace fit` does).",
            source="end of each session's last turn",
        )
    ]


def _context(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    sessions = need_sessions(member)
    contexts, cap = sessions.context_tokens[sessions.last], sessions.limits.max_context_tokens
    if cap is None:
        return []
    near = contexts >= NEAR_CAP * cap
    severity = grade(float(near.mean()), CUT_NOTICE, CUT_PROBLEM, shares_are_few(len(near)))
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=f"{int(near.sum()):,} of {len(near):,} sessions end within 2 % of the cap on a context, "
            f"{cap:,} tokens",
            why="What tools say fills the context, so that there is no room left for the answer.",
            todo="Raise the cap, or shorten what tools return.",
            source="prompt, response and kept tokens of each session's last turn",
        )
    ]


def _prefix(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    sessions = need_sessions(member)
    before = np.concatenate([[0], sessions.context_tokens[:-1]])
    later = ~sessions.first
    lost = np.where(later, before - sessions.kept_tokens, 0)
    severity = grade(float((lost[later] > 0).mean()) if later.any() else 0.0, SHORT_NOTICE, SHORT_PROBLEM)
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=f"{int((lost > 0).sum()):,} of {int(later.sum()):,} later turns begin with less than the "
            f"context before; {int(lost.sum()):,} tokens of it are put in again or left out",
            why="Where a prompt is not its predecessor and more, an engine's prefix cache ends at the first "
            "token that differs: templates that drop reasoning, and shortened histories, do this.",
            todo="Keep the context as it was where the trainer allows it; else count with the prefill.",
            source="kept_tokens of turns after the first",
        )
    ]


def _hanging(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    sessions = need_sessions(member)
    waited = sessions.per_session(sessions.wait_s)
    known = waited[np.isfinite(waited) & (sessions.turns > 1)]
    if shares_are_few(len(known)) or not known.any():
        return []
    median = float(np.median(known))
    hanging = int((known > HANGING * median).sum()) if median else 0
    if not hanging:
        return []
    return [
        Sign(
            severity="notice",
            found=f"{hanging:,} of {len(known):,} sessions wait more than {HANGING:g} times the median of "
            f"{median:,.1f} s, the longest {float(known.max()):,.0f} s",
            why="A synchronous step lasts as long as its longest session: a tool that hangs holds all GPUs.",
            todo="Give tools a time-out, or let the step go on without the last sessions (over-sampling, "
            "tail batching).",
            source="wait_s, summed by session",
        )
    ]


CHECKS = (
    Check(name="tool-waits", looks_for="waits for tools that nobody recorded", examine=_waits),
    Check(
        name="cut-sessions", looks_for="sessions cut by a cap, a limit of turns or a time-out", examine=_cut
    ),
    Check(name="full-contexts", looks_for="contexts that tools filled up to the cap", examine=_context),
    Check(name="lost-prefixes", looks_for="prompts that do not go on from the turn before", examine=_prefix),
    Check(name="hanging-tools", looks_for="few sessions that wait far longer than others", examine=_hanging),
)
