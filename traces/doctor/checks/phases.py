"""Where the time of a step goes beside the rollout."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.traces.doctor.base import CannotRunError, Check, Limits, Sign, grade
from tlt.traces.doctor.needs import need_run
from tlt.traces.doctor.subject import Member, RunTables, Subject
from tlt.traces.importers.phases import PhaseTimes
from tlt.traces.runs.runfolder import CAUSES
from tlt.traces.runs.timeline import booked_seconds
from tlt.traces.runs.training import PREEMPTION_AIM_S, late_stops

REWARD_NOTICE, REWARD_PROBLEM = 0.10, 0.25  # of a step
WAITING_NOTICE, WAITING_PROBLEM = 0.15, 0.5  # of a rollout
SMALL_ROLLOUT = 0.5  # of a step
GAP_NOTICE, GAP_PROBLEM = 0.01, 0.05  # of a step
PHASES = tuple(cause for cause, (category, _) in CAUSES.items() if category == "phase" and cause != "other")
SIDE_BY_SIDE = ("admission_wait", "batch_wait")  # causes of a run whose trainers do not wait for a rollout


def phase_shares(member: Member) -> tuple[dict[str, float], str]:
    """Return the share of each phase in the steps' time (`rollout` and those of PHASES), and where from."""
    if member.run is not None:
        return _shares_of_run(member.run), "steps.parquet, intervals.parquet"
    times = member.phases
    if times is None:
        raise CannotRunError("no times of phases")
    why = times.side_by_side()
    if why:
        raise CannotRunError(
            f"rollouts go on while the policy is trained, so they have no share of a step: {why}"
        )
    if "step" not in times.phases or times.phases["step"].mean_s <= 0:
        raise CannotRunError("the log does not time whole steps")
    whole_s = times.phases["step"].mean_s
    found = {
        ("rollout" if name == "gen" else name): time.mean_s / whole_s for name, time in times.phases.items()
    }
    del found["step"]
    waits = waiting(times)
    if waits is not None:
        found["rollout"] -= waits[0] / whole_s
    return found, f"phase times of {times.lines:,} logged steps"


def waiting(times: PhaseTimes) -> tuple[float, float] | None:
    """Return the mean seconds of a rollout in which nothing is generated, at the least and the most."""
    about = times.rollouts
    if "gen" not in times.phases or not about.fixed_most.observations:
        return None
    return about.fixed_least.mean_s, about.fixed_most.mean_s


def _shares_of_run(run: RunTables) -> dict[str, float]:
    """After the rollout a phase's seconds are the mean over workers."""
    if run.intervals["cause"].isin(SIDE_BY_SIDE).any():
        raise CannotRunError("rollouts and training run side by side: shares of a step mean little")
    start_s, rollout_end_s, end_s = (
        run.steps[name].to_numpy(np.float64) for name in ("start_s", "rollout_end_s", "end_s")
    )
    whole_s = float((end_s - start_s).sum())
    after_s = float((end_s - rollout_end_s).sum())
    if not whole_s > 0 or not after_s > 1e-6 * whole_s:
        raise CannotRunError("rollouts alone: no phase follows them")
    booked = booked_seconds(run.intervals, run.steps, rollout_end_s, end_s)
    shares = {name: float(booked[name].sum()) / run.summary.workers / whole_s for name in PHASES}
    return {"rollout": 1.0 - after_s / whole_s} | {name: share for name, share in shares.items() if share > 0}


def _reward(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    shares, source = phase_shares(member)
    if "rollout" not in shares:
        raise CannotRunError("the rollout is not timed")
    if "reward" not in shares:
        raise CannotRunError("rewards are not timed")
    rollout, reward = shares["rollout"], shares["reward"]
    severity = grade(reward, REWARD_NOTICE, REWARD_PROBLEM)
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=f"rewards take {reward:.0%} of a step and the rollout {rollout:.0%}: a rollout of "
            f"twice the "
            f"speed makes the step {1 / (1 - rollout / 2):.2f} times as fast, the same for rewards alone "
            f"gives "
            f"{1 / (1 - reward / 2):.2f}",
            why="What is saved in the rollout is divided by a step that mostly does something else (Amdahl).",
            todo="Score responses as they finish, in parallel, or on idle workers, before tuning "
            "speculation.",
            source=source,
        )
    ]


def _amdahl(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    shares, source = phase_shares(member)
    rollout = shares.get("rollout")
    if rollout is None:
        raise CannotRunError("the rollout is not timed")
    if rollout >= SMALL_ROLLOUT:
        return []
    others = sorted(((share, name) for name, share in shares.items() if name != "rollout"), reverse=True)
    told = ", ".join(f"{CAUSES[name][1]} {share:.0%}" for share, name in others[:3])
    return [
        Sign(
            severity="notice",
            found=f"the rollout is {rollout:.0%} of a step: at best, with rollouts that take no time, a "
            f"step is "
            f"{1 / (1 - rollout):.2f} times as fast (beside it {told or 'nothing that is timed'})",
            why="No speculation and no schedule of the rollout can give more than that.",
            todo="Look at the largest other phase first.",
            source=source,
        )
    ]


def _waiting(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    times = member.phases
    found = None if times is None else waiting(times)
    if times is None or found is None:
        raise CannotRunError("no log says what of a rollout is waiting")
    (least_s, most_s), rollout_s = found, times.phases["gen"].mean_s
    severity = grade(most_s / rollout_s, WAITING_NOTICE, WAITING_PROBLEM)
    if severity is None:
        return []
    reach = f"{least_s:.3g} to {most_s:.3g} s" if most_s > 1.02 * least_s else f"{least_s:.3g} s"
    return [
        Sign(
            severity=severity,
            found=f"of the {rollout_s:.3g} s of a rollout {reach} are waiting for tools or scoring, or no "
            "generation",
            why="No speculation shortens that, and GPUs have little to do meanwhile.",
            todo="Look at the slowest tools and at how many responses run at once before tuning speculation.",
            source=f"phase times of {times.lines:,} logged steps",
        )
    ]


def _handover(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """The time from a step's last response to the moment at which every worker is in a phase."""
    del subject, limits
    run = need_run(member)
    if not run.keeps_order():
        raise CannotRunError("responses are carried over steps")
    waits = _waits(run)
    if waits.empty:
        raise CannotRunError("rollouts alone: no phase follows them")
    share = float(waits["wait_s"].sum() / waits["step_s"].sum())
    severity = grade(share, GAP_NOTICE, GAP_PROBLEM)
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=f"from the last response to the next phase {waits['wait_s'].median():.2f} s pass "
            f"(median of "
            f"{len(waits)} steps, at most {waits['wait_s'].max():.2f} s): {share:.1%} of the steps' time",
            why="All GPUs wait in it.",
            todo="Look for what is done in between: stopping a trainer, gathering results, freeing memory.",
            source="responses.parquet: finish_s; intervals.parquet: first phase of each step",
        )
    ]


def _waits(run: RunTables) -> pd.DataFrame:
    """Return wait_s and step_s, a row a step that has a phase after its rollout."""
    last_s = run.responses.groupby("step")["finish_s"].max()
    phases = run.intervals[run.intervals["cause"].astype(str).isin(PHASES)]
    steps = run.steps.set_index("step")
    after = phases[phases["end_s"] > phases["step"].map(steps["rollout_end_s"])]
    entered = after.groupby(["step", "worker"])["start_s"].min().groupby("step").max()
    table = pd.DataFrame({"entered": entered, "last": last_s, "step_s": steps["end_s"] - steps["start_s"]})
    table = table.dropna()
    return table.assign(wait_s=(table["entered"] - table["last"]).clip(lower=0.0))


def _late_stops(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    run = need_run(member)
    if run.updates is None or not int(run.steps["trained_tokens"].sum()):
        raise CannotRunError("no record of a drafter's trainer that had to make way")
    found = late_stops(run.updates)
    if not found.late:
        return []
    return [
        Sign(
            severity="notice",
            found=f"in {found.late} of {found.steps} steps drafter training took longer than "
            f"{1000 * PREEMPTION_AIM_S:.0f} ms to make way, at most {1000 * found.longest_s:,.0f} ms",
            why="The next phase waits for it on all GPUs, so a trainer of idle time becomes one of busy "
            "time.",
            todo="Train in shorter passes, or stop before the last response.",
            source="updates.parquet: handover_s, stop_s",
        )
    ]


CHECKS = (
    Check(name="reward-time", looks_for="rewards that hide what the rollout gains", examine=_reward),
    Check(name="amdahl", looks_for="a rollout that is a small part of the step", examine=_amdahl),
    Check(name="waiting", looks_for="rollouts that wait for tools and scoring", examine=_waiting),
    Check(
        name="handover", looks_for="waiting between the last response and the next phase", examine=_handover
    ),
    Check(name="late-stops", looks_for="drafter training that makes way late", examine=_late_stops),
)
