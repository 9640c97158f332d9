"""Prompt groups: their size, responses that are all alike, and rewards that teach nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.traces.doctor.base import CannotRunError, Check, Limits, Sign, grade
from tlt.traces.doctor.needs import need_rollouts, some
from tlt.traces.doctor.subject import Member, Subject

ALIKE_NOTICE, ALIKE_PROBLEM = 0.05, 0.5  # share of the groups
BEYOND_CHANCE = 3.0
FEW_GROUPS = 10
FLAT_NOTICE = 0.5
LONG_TOKENS = 32  # shorter responses may well be equal by chance
REPEATS_NOTICE, REPEATS_PROBLEM = 0.02, 0.5  # share of the long responses


def _alike(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Groups of which all lengths are equal, beyond what equal lengths give by chance."""
    del subject, limits
    rows = need_rollouts(member)
    groups = rows.groupby(["step", "prompt_id"])["response_tokens"].agg(["size", "nunique"])
    groups = groups[groups["size"] >= 2]
    if groups.empty:
        raise CannotRunError("no prompt with more than one response")
    same = int((groups["nunique"] == 1).sum())
    _, counts = np.unique(rows["response_tokens"].to_numpy(), return_counts=True)
    frequency = counts / counts.sum()
    sizes, times = np.unique(groups["size"].to_numpy(), return_counts=True)
    chance = sum(float((frequency**size).sum()) * n for size, n in zip(sizes, times, strict=True)) / len(
        groups
    )
    share = same / len(groups)
    severity = grade(share, ALIKE_NOTICE, ALIKE_PROBLEM, len(groups) < FEW_GROUPS)
    if severity is None or share < BEYOND_CHANCE * chance:
        return []
    return [
        Sign(
            severity=severity,
            found=f"in {same:,} of {len(groups):,} groups ({share:.0%}) all responses have one length; "
            f"{chance:.1%} would by chance",
            why="Identical responses have no advantage over one another, so the group teaches nothing; a "
            "temperature of 0, one seed for all, or a policy that has collapsed looks like this.",
            todo="Check temperature and seeds, and the texts of such a group. Its drafts can come from a "
            "sibling response.",
            source="response_tokens by step and prompt",
        )
    ]


def _sizes(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    rows = need_rollouts(member)
    sizes = rows.groupby(["step", "prompt_id"]).size()
    usual = int(sizes.mode().max())
    if len(sizes) < 2:
        raise CannotRunError("one prompt group")
    found = [
        ("more", sizes[sizes > usual], "A prompt that was drawn twice in a step, or responses that were "
         "written twice.", "Check whether their responses repeat; two draws of a prompt are no error."),
        ("fewer", sizes[sizes < usual], "Responses that were filtered, failed or not written: advantages of "
         "such a group rest on fewer, and its longest may be what is missing.",
         "Give all responses that were generated; import counts what it left out."),
    ]  # fmt: skip
    return [
        Sign(
            severity="notice",
            found=f"{len(odd):,} of {len(sizes):,} groups have {which} than the usual {usual} responses, "
            f"{'at most' if which == 'more' else 'at least'} "
            f"{int(odd.max() if which == 'more' else odd.min())}",
            why=why,
            todo=todo,
            source=f"groups of steps {some(sorted({int(step) for step, _ in odd.index}))}",
        )
        for which, odd, why, todo in found
        if not odd.empty
    ]


def _doubled(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    if member.run is None:
        return _same_texts(member)
    run = member.run
    again = run.responses[run.responses.duplicated(["step", "request"])]
    if again.empty:
        return []
    return [
        Sign(
            severity="problem",
            found=f"{len(again):,} rows repeat a request of the same step",
            why="Its tokens are counted twice.",
            todo="Make the run folder again.",
            source=f"responses.parquet: steps {some(sorted(set(again['step'].tolist())))}",
        )
    ]


def _same_texts(member: Member) -> list[Sign]:
    """Responses to one prompt that are equal word for word."""
    rows = need_rollouts(member)
    if "text_hash" not in rows:
        raise CannotRunError("no texts: neither a run folder nor a trace that was imported with their hashes")
    rows = rows[(rows["response_tokens"] >= LONG_TOKENS) & (rows["text_hash"] != 0)]
    if rows.empty:
        raise CannotRunError(f"no response of {LONG_TOKENS} tokens or more whose text is known")
    same = rows.duplicated(["prompt_id", "text_hash"], keep=False)
    share = float(same.mean())
    severity = grade(share, REPEATS_NOTICE, REPEATS_PROBLEM, len(rows) < FEW_GROUPS)
    if severity is None:
        return []
    again = rows[same]
    over_steps = again.groupby(["prompt_id", "text_hash"])["step"].nunique() > 1
    return [
        Sign(
            severity=severity,
            found=f"{len(again):,} of {len(rows):,} responses of {LONG_TOKENS} tokens or more ({share:.0%}) "
            f"are word for word another one to the same prompt, {int(over_steps.sum()):,} texts of them in "
            "more than one step",
            why="Written twice, as after a restart, they are counted twice; sampled so, they come of a "
            "temperature of 0, one seed for all, or a policy that has collapsed.",
            todo="Look whether a step was logged twice, then at temperature and seeds.",
            source=f"text_hash by prompt: steps {some(sorted(set(again['step'].tolist())))}",
        )
    ]


def _rewarded(member: Member) -> tuple[pd.DataFrame, str]:
    """Return reward by step and prompt_id, and the file; raises CannotRunError without rewards."""
    if member.run is None:
        rows = need_rollouts(member)
        if "reward" not in rows:
            raise CannotRunError("no rewards, or not of all responses")
        return rows, "reward by step and prompt"
    run = member.run
    if run.rewards is None:
        raise CannotRunError("no rewards")
    joined = run.rewards.merge(run.responses[["step", "request", "group"]], on=["step", "request"])
    return joined.rename(columns={"group": "prompt_id"}), "rewards.parquet by step and group"


def _flat(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    rows, source = _rewarded(member)
    groups = rows.groupby(["step", "prompt_id"])["reward"].agg(["size", "nunique"])
    groups = groups[groups["size"] >= 2]
    if groups.empty:
        raise CannotRunError("no prompt with more than one response")
    share = float((groups["nunique"] == 1).mean())
    if share < FLAT_NOTICE:
        return []
    return [
        Sign(
            severity="notice",
            found=f"in {share:.0%} of {len(groups):,} groups all rewards are equal",
            why="Advantages that are relative to the group are then 0: their rollouts cost time and "
            "teach nothing.",
            todo="Filter or resample prompts that are too easy or too hard.",
            source=source,
        )
    ]


CHECKS = (
    Check(name="groups-alike", looks_for="groups whose responses are all alike", examine=_alike),
    Check(name="group-sizes", looks_for="groups of unusual size", examine=_sizes),
    Check(name="repeated-responses", looks_for="responses that are counted twice", examine=_doubled),
    Check(name="flat-rewards", looks_for="groups with equal rewards", examine=_flat),
)
