"""Do workers wait for one another, and is the wait used?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.traces.doctor.base import CannotRunError, Check, Limits, Sign, grade
from tlt.traces.doctor.needs import need_run
from tlt.traces.doctor.subject import Member, RunTables, Subject
from tlt.traces.runs.runfolder import CAUSES
from tlt.traces.runs.stalls import stalls
from tltsched.dispatch import longest_first
from tltsched.events import Request

SAVED_NOTICE, SAVED_PROBLEM = 0.03, 0.10  # of the rollouts' time
IDLE_NOTICE = 0.2  # of the GPU time
IDLE = tuple(cause for cause, (category, _) in CAUSES.items() if category == "idle")


TODO = (
    "Try drafter training on idle workers, or a schedule that refills them: `tlt sim compare` with "
    "--policies none,tlt, or `tlt sim counterfactual`."
)
TOOLS_TODO = (
    "Give a worker more sessions, so that some decode while others wait, or take fewer workers; where calls "
    "queue (tool_queue_s in sessions.parquet) let more tools run at once."
)


def _dispatch(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Hold each step's tokens by worker against longest-first placement of the same responses."""
    del subject, limits
    run = need_run(member)
    if run.summary.workers < 2:
        raise CannotRunError("one worker")
    if run.has_sessions():
        raise CannotRunError("sessions, whose turns are routed one by one")
    if not run.keeps_order():
        raise CannotRunError("responses are carried over steps, so a step's tokens are not its workers' load")
    rollouts_s = dict(zip(run.steps["step"], run.steps["rollout_end_s"] - run.steps["start_s"], strict=True))
    still = _stood_still(run)
    found = [
        _step(rows, run.summary.workers, float(rollouts_s[step]))
        for step, rows in run.responses.groupby("step")
        if step in rollouts_s and step not in still
    ]
    if not found:
        raise CannotRunError("no responses in rollouts in which all workers went on")
    skew, best, saved_s, rollout_s = np.array(found, dtype=np.float64).T
    share = float(saved_s.sum() / rollout_s.sum()) if rollout_s.sum() > 0 else 0.0
    severity = grade(share, SAVED_NOTICE, SAVED_PROBLEM)
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=f"the fullest worker has {np.mean(skew):.2f} times the mean tokens of a step (at most "
            f"{np.max(skew):.2f}); longest-first placement would have {np.mean(best):.2f}. It saves up "
            f"to {saved_s.sum():,.1f} s of {rollout_s.sum():,.1f} s of rollout ({share:.1%}; modelled: time "
            "in proportion to a worker's tokens, never below the mean time of the workers, nor below the "
            "longest response at the fastest pace seen)",
            why="The step waits for its fullest worker; the others idle.",
            todo="Place requests by expected length, or let workers take them from one queue "
            "(`tlt sim compare` with another cluster.dispatch says what each is worth).",
            source=f"responses.parquet: worker, response_tokens of {len(found)} steps",
        )
    ]


def _stood_still(run: RunTables) -> set[int]:
    """Return the steps in which a worker stood still: their time says nothing of placement or policy."""
    return set() if run.engine_steps is None else {stall.step for stall in stalls(run.engine_steps)}


def _step(rows: pd.DataFrame, workers: int, rollout_s: float) -> tuple[float, float, float, float]:
    """Return the fullest worker over the mean, the same longest first, and the seconds saved and taken."""
    tokens = rows["response_tokens"].to_numpy(np.int64)
    worker = np.clip(rows["worker"].to_numpy(np.int64), 0, workers - 1)
    load = np.bincount(worker, weights=tokens, minlength=workers)
    requests = [Request(number, 0, 0, int(length)) for number, length in enumerate(tokens)]
    placed = longest_first(requests, workers)
    best = max(sum(request.length_hint_tokens for request in mine) for mine in placed)
    mean = max(float(load.mean()), 1.0)
    pace_s = float(((rows["finish_s"] - rows["start_s"]).to_numpy() / np.maximum(tokens, 1)).min())
    floor_s = max(pace_s, 0.0) * float(tokens.max())
    ends_s = rows["finish_s"].groupby(worker).max() - float(rows["start_s"].min())
    after_s = max(rollout_s * best / max(float(load.max()), 1.0), floor_s, float(ends_s.sum()) / workers)
    return float(load.max()) / mean, best / mean, max(rollout_s - after_s, 0.0), rollout_s


def _idle(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    run = need_run(member)
    intervals = run.intervals[~run.intervals["step"].isin(_stood_still(run))]
    seconds = intervals["end_s"] - intervals["start_s"]
    by_cause = seconds.groupby(intervals["cause"].astype(str)).sum()
    total = float(by_cause.sum())
    if not total:
        raise CannotRunError("no intervals")
    idle = {cause: float(by_cause.get(cause, 0.0)) / total for cause in IDLE}
    share = sum(idle.values())
    trains = float(by_cause.get("drafter_training", 0.0)) > 0
    if share < IDLE_NOTICE or trains:
        return []
    main = max(idle, key=lambda cause: idle[cause])
    gpu_h = share * total * run.summary.gpus_per_worker / 3600
    return [
        Sign(
            severity="notice",
            found=f"{share:.1%} of the GPU time is idle ({gpu_h:,.2f} GPU-hours), most of it "
            f"{CAUSES[main][1].removeprefix('idle, ')}, and no drafter is trained in it",
            why="Idle GPUs cost as much as busy ones, and a drafter trained in that time stays fresh for "
            "free.",
            todo=TOOLS_TODO if main == "tool_wait" else TODO,
            source="intervals.parquet: idle causes over all",
        )
    ]


CHECKS = (
    Check(name="dispatch", looks_for="a worker imbalance that placement would cure", examine=_dispatch),
    Check(name="idle", looks_for="idle GPUs that train no drafter", examine=_idle),
)
