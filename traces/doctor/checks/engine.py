"""What the engines did that they should not: work done twice, compilation in timed steps, stale samples."""

from __future__ import annotations

from tlt.traces.doctor.base import CannotRunError, Check, Limits, Sign, grade
from tlt.traces.doctor.needs import need_run
from tlt.traces.doctor.subject import Member, RunTables, Subject
from tlt.traces.runs.engine_steps import ENGINE_STEPS
from tlt.traces.runs.stalls import stalls

MOST_TOLD = 3  # stalls
AGAIN_NOTICE, AGAIN_PROBLEM = 0.001, 0.02  # recomputed, as a share of the rollout time or of all tokens
COMPILED_NOTICE, COMPILED_PROBLEM = 1e-9, 0.01  # of the engine steps' time


def _preempted(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Prefill beyond the prompts: what was preempted is computed again."""
    del subject, limits
    run = need_run(member)
    share, told, source = _recomputed(run)
    severity = grade(share, AGAIN_NOTICE, AGAIN_PROBLEM)
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=told,
            why="The KV cache is too small for the requests that run at once: what is thrown out is "
            "prefilled "
            "again, and the batch shrinks meanwhile.",
            todo="Give the cache more memory, let fewer requests run at once, or place long ones apart.",
            source=source,
        )
    ]


def _recomputed(run: RunTables) -> tuple[float, str, str]:
    """Return the share that was computed again, a sentence and the source."""
    causes = run.intervals["cause"].astype(str)
    seconds = run.intervals["end_s"] - run.intervals["start_s"]
    again_s, all_s = float(seconds[causes == "recompute"].sum()), float(seconds.sum())
    if again_s > 0 and run.keeps_order():
        share = again_s / all_s
        return share, f"{again_s:,.1f} worker-seconds ({share:.1%}) prefill again what was computed before", (
            "intervals.parquet: recompute"
        )  # fmt: skip
    if run.engine_steps is None or not run.keeps_order():
        if run.summary.kind == "simulated" and run.keeps_order():
            return 0.0, "", ""  # a simulated run books what it computes again
        raise CannotRunError(
            f"no {ENGINE_STEPS} to count prefilled tokens in, or a schedule that resumes requests"
        )
    filled, prompts = int(run.engine_steps["prompt_tokens"].sum()), int(run.responses["prompt_tokens"].sum())
    share = max(filled - prompts, 0) / max(prompts + run.summary.response_tokens, 1)
    told = f"{filled - prompts:,} tokens were prefilled beyond the {prompts:,} of the prompts"
    return share, told, f"{ENGINE_STEPS}: prompt_tokens; responses.parquet: prompt_tokens"


def _compiled(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    run = need_run(member)
    if run.engine_steps is None:
        raise CannotRunError(f"no {ENGINE_STEPS}")
    lost_s = float(run.engine_steps["seconds"][run.engine_steps["compiled"]].sum())
    share = lost_s / max(float(run.engine_steps["seconds"].sum()), 1e-12)
    severity = grade(share, COMPILED_NOTICE, COMPILED_PROBLEM)
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=f"something was compiled or captured inside {int(run.engine_steps['compiled'].sum()):,} "
            f"timed engine steps "
            f"({lost_s:,.2f} s, {share:.1%} of the engine steps' time)",
            why="It happens once in a run and then belongs to no policy; in a short run it decides.",
            todo="Warm the engine up at every batch and K that the run meets, then measure again.",
            source=f"{ENGINE_STEPS}: compiled",
        )
    ]


def _stale(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject
    most, mean, source = _staleness(member)
    if most <= limits.staleness_steps:
        return []
    return [
        Sign(
            severity="problem",
            found=f"samples are up to {most} policy updates behind the weights that they train (mean "
            f"{mean:.2f}), "
            f"more than the bound of {limits.staleness_steps}",
            why="Importance ratios grow with it, and clipping takes the gradient away.",
            todo="Bound the staleness of the schedule, or state the bound that you accept with "
            "--max-staleness.",
            source=source,
        )
    ]


def _staleness(member: Member) -> tuple[int, float, str]:
    """Return the largest and mean staleness in policy updates, and where from."""
    if member.report is not None and member.report.staleness is not None:
        found = member.report.staleness
        return found.max, found.mean, "versions of first and last token in the file (a lower bound)"
    run = need_run(member)
    if run.schedule is not None and len(run.schedule[1]):
        rows = run.schedule[1]
        weights = rows["trained_responses"].clip(lower=0)
        mean = float((rows["staleness_mean"] * weights).sum() / max(int(weights.sum()), 1))
        return int(rows["staleness_max"].max()), mean, "schedule.parquet: staleness_max, staleness_mean"
    if run.rewards is not None and len(run.rewards):
        behind = run.rewards["step"] - int(run.steps["step"].min()) - run.rewards["policy_version"]
        return int(behind.max()), float(behind.mean()), "rewards.parquet: step less policy_version"
    if run.summary.kind == "simulated":
        return 0, 0.0, "the plain synchronous schedule"
    raise CannotRunError("no versions of the policy by response")


def _stalled(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    run = need_run(member)
    if run.engine_steps is None:
        raise CannotRunError(f"no {ENGINE_STEPS}")
    found = stalls(run.engine_steps)
    if not found:
        return []
    return [
        Sign(
            severity="problem",
            found="; ".join(stall.text() for stall in found[:MOST_TOLD])
            + (f"; {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""),
            why="A process that was stopped or a machine that was paused is measured as the policy: "
            "a run with much of it is not ranked, and what placement would save is told of the others.",
            todo="Look at what else ran on the machine, and measure the run again.",
            source=f"{ENGINE_STEPS}: t_s, seconds",
        )
    ]


CHECKS = (
    Check(name="stalls", looks_for="workers that stood still", examine=_stalled),
    Check(name="preemptions", looks_for="prefill of what was computed before", examine=_preempted),
    Check(name="compilation", looks_for="compilation inside timed engine steps", examine=_compiled),
    Check(name="staleness", looks_for="samples older than a bound", examine=_stale),
)
