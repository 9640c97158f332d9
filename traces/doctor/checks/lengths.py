"""Are the lengths those of whole responses, and are all steps there?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.traces.doctor.base import CannotRunError, Check, Limits, Sign, grade, shares_are_few
from tlt.traces.doctor.needs import need_rollouts, need_rows, some
from tlt.traces.doctor.subject import Member, Subject
from tlt.traces.importers.collect import EMPTY

CUT_NOTICE, CUT_PROBLEM = 0.01, 0.10  # share of the responses
LOW_CAP = 2.0  # cap over median below which it is suspiciously low
PILE = 0.01  # share of responses at exactly the longest length that looks like an unstated cap
LEAST_PILE = 5
EMPTY_NOTICE, EMPTY_PROBLEM = 1e-6, 0.02
LEFT_NOTICE, LEFT_PROBLEM = 1e-6, 0.05
SMALL_STEP = 0.9  # of the median responses a step


def _cap(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    rows = need_rows(member)
    lengths = rows["response_tokens"].to_numpy(np.int64)
    longest, share = int(lengths.max()), float(rows["truncated"].mean())
    told = f"{int(rows['truncated'].sum()):,} of {len(rows):,} responses ({share:.1%}) were cut"
    if not share:
        at_most = int((lengths == longest).sum())
        if member.max_response_tokens is not None or at_most < max(LEAST_PILE, PILE * len(lengths)):
            return []
        share = at_most / len(lengths)
        told = (
            f"{at_most:,} of {len(lengths):,} responses ({share:.1%}) have exactly the longest length, "
            f"{longest:,} tokens, and none is marked as cut: this looks like a cap that nobody stated"
        )
    cap, median = member.max_response_tokens or longest, max(float(np.median(lengths)), 1.0)
    few = shares_are_few(len(lengths))
    severity = grade(share, CUT_NOTICE, CUT_PROBLEM, few)
    if severity is None:
        return []
    low = cap < LOW_CAP * median
    return [
        Sign(
            severity="problem" if low and not few else severity,
            found=f"{told}; the cap is {cap / median:.1f} times the median of {median:,.0f} tokens"
            + (": suspiciously low" if low else ""),
            why="A response that is cut has no end and mostly no reward, its true length is unknown, and "
            "a low "
            "cap makes the tail look shorter than it is.",
            todo="Raise the cap, or treat lengths as censored (`tlt trace fit` does); state it with --cap "
            "where the file does not.",
            source="response_tokens and truncated of the responses",
        )
    ]


def _empty(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    rows = need_rows(member)
    skipped = 0 if member.report is None else sum(x.count for x in member.report.skipped if x.reason == EMPTY)
    empty = skipped + int((rows["response_tokens"] <= 0).sum())
    total = len(rows) + skipped
    few = shares_are_few(total)
    severity = grade(empty / total, EMPTY_NOTICE, EMPTY_PROBLEM, few)
    if severity is None:
        return []
    first = (
        ""
        if member.report is None
        else next((x.first for x in member.report.skipped if x.reason == EMPTY), "")
    )
    return [
        Sign(
            severity=severity,
            found=f"{empty:,} of {total:,} responses are empty (0 tokens)",
            why="A policy that ends at once, a stop string at the start, or a failed request looks like "
            "this; "
            "means over responses are lower than the work that was done.",
            todo="Look at the prompts of these responses and at the engine's errors.",
            source=f"first at {first}" if first else "response_tokens of the responses",
        )
    ]


def _left_out(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    rows = need_rows(member)
    if member.report is None:
        raise CannotRunError("not read from a framework's file")
    if member.report.lengths == "generated":
        raise CannotRunError("a log of metrics: most of its lines are no responses")
    left = [one for one in member.report.skipped if one.reason != EMPTY]
    count = sum(one.count for one in left)
    total = len(rows) + count
    severity = grade(count / total, LEFT_NOTICE, LEFT_PROBLEM, shares_are_few(total))
    if severity is None:
        return []
    reasons = "; ".join(f"{one.count:,} x {one.reason}" for one in left[:3])
    return [
        Sign(
            severity=severity,
            found=f"{count:,} of {total:,} records gave no response: {reasons}",
            why="Aborted and failed responses took time that the lengths do not show.",
            todo="Look at the first of them; count their time as wasted.",
            source=f"first at {left[0].first}",
        )
    ]


def _missing(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    rows = need_rollouts(member)
    counts = rows.groupby("step").size()
    numbers = counts.index.to_numpy(np.int64)
    signs = []
    apart = np.diff(numbers)
    gone = int(numbers[-1] - numbers[0]) + 1 - len(numbers)
    evenly = len(apart) > 1 and int(apart.min()) == int(apart.max())
    if member.run is not None and member.run.summary.steps != len(member.run.steps):
        signs.append(_broken_off(member.run.summary.steps, len(member.run.steps)))
    if gone:
        signs.append(
            Sign(
                severity="notice" if evenly else "problem",
                found=f"{gone:,} steps between {numbers[0]} and {numbers[-1]} are missing"
                + (f": every {apart[0]} steps one was written" if evenly else "")
                + f"; after {some(numbers[:-1][apart > 1].tolist())}",
                why="Sums over the run leave them out, and drift over steps looks faster than it was.",
                todo="Give all files of the run; if it dumps every Nth step, say so when figures are shown.",
                source="step of the responses",
            )
        )
    small = counts[counts < SMALL_STEP * counts.median()]
    if len(small) and not shares_are_few(int(counts.median())):
        signs.append(
            Sign(
                severity="notice",
                found=f"{len(small):,} of {len(counts):,} steps have fewer than {SMALL_STEP:.0%} of the "
                f"usual "
                f"{counts.median():,.0f} responses, at least {small.min():,}: steps "
                f"{some(small.index.tolist())}",
                why="A file that was cut short, or filtered groups; the longest of a step may be among them.",
                todo="Check whether the framework filters before it writes.",
                source="responses by step",
            )
        )
    return signs


def _broken_off(stated: int, found: int) -> Sign:
    return Sign(
        severity="problem",
        found=f"summary.json states {stated:,} steps, steps.parquet has {found:,}",
        why="The run broke off or its files were mixed.",
        todo="Let the run end: the same command goes on where it can.",
        source="summary.json, steps.parquet",
    )


def _repeated(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Steps with the very lengths of another step: one batch twice."""
    del subject, limits
    rows = need_rollouts(member)
    keys = rows.groupby("step")[["prompt_tokens", "response_tokens"]].apply(_fingerprint)
    sizes = rows.groupby("step").size()
    keys = keys[sizes >= 8]
    if len(keys) < 2:
        raise CannotRunError("fewer than two steps of 8 responses or more")
    again = keys[keys.duplicated()]
    if again.empty:
        return []
    return [
        Sign(
            severity="problem" if member.kind == "rollout" else "notice",
            found=f"{len(again):,} of {len(keys):,} steps have exactly the lengths of an earlier step: "
            f"{some(again.index.tolist())}",
            why="Sampled responses do not repeat: a file was written or given twice, or a replay reuses its "
            "lengths. Intervals over steps are then too narrow.",
            todo="Leave the repeats out, or draw more lengths.",
            source="prompt_tokens and response_tokens by step",
        )
    ]


def _fingerprint(rows: pd.DataFrame) -> int:
    return hash(np.sort(rows.to_numpy(np.int64) @ np.array([1 << 31, 1])).tobytes())


CHECKS = (
    Check(name="truncation", looks_for="responses at the cap, and a low cap", examine=_cap),
    Check(name="empty-responses", looks_for="responses of 0 tokens", examine=_empty),
    Check(name="left-out", looks_for="records that gave no response", examine=_left_out),
    Check(name="missing-steps", looks_for="steps that are missing or small", examine=_missing),
    Check(name="repeated-steps", looks_for="steps that repeat another", examine=_repeated),
)
