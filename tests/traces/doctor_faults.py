"""What can be wrong with a run: functions that spoil a healthy one, and the checks that have to find it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pandas as pd

from tests.traces.doctor_runs import BATCH, DRAFT_S, PLAIN_S, STEPS, TAIL_BATCH, Tables, decision_interval
from tlt.traces.runs.runfolder import ScheduleFacts
from tltsched.events import DecisionEnded

PROBLEM, NOTICE = "problem", "notice"
Spoil = Callable[[Tables], None]


def cut(run: Tables) -> None:
    cap = int(run.responses["response_tokens"].quantile(0.7))
    over = run.responses["response_tokens"] >= cap
    run.responses.loc[over, "response_tokens"] = cap
    run.responses["truncated"] = over


def unmarked_cap(run: Tables) -> None:
    run.responses["response_tokens"] = run.responses["response_tokens"].clip(upper=600)


def empty(run: Tables) -> None:
    run.responses.loc[:9, "response_tokens"] = 0


def a_step_is_missing(run: Tables) -> None:
    run.responses = run.responses[run.responses["step"] != 2]


def it_broke_off(run: Tables) -> None:
    run.summary = msgspec.structs.replace(run.summary, steps=STEPS + 1)


def a_small_step(run: Tables) -> None:
    run.responses = run.responses.drop(run.responses.index[run.responses["step"] == 3][:10])


def a_step_twice(run: Tables) -> None:
    lengths = run.responses.loc[run.responses["step"] == 0, "response_tokens"].to_numpy()
    run.responses.loc[run.responses["step"] == 4, "response_tokens"] = lengths


def alike(run: Tables) -> None:
    first = run.responses.groupby(["step", "group"])["response_tokens"].transform("first")
    run.responses["response_tokens"] = first


def a_large_group(run: Tables) -> None:
    run.responses.loc[(run.responses["step"] == 1) & (run.responses["group"] == 0), "group"] = 1


def a_small_group(run: Tables) -> None:
    odd = run.responses[(run.responses["step"] == 1) & (run.responses["group"] == 0)].index[:1]
    run.responses = run.responses.drop(index=odd)


def a_response_twice(run: Tables) -> None:
    run.responses = pd.concat([run.responses, run.responses.iloc[:1]], ignore_index=True)


def flat(run: Tables) -> None:
    run.rewards["reward"] = 1.0


def nothing_accepted(run: Tables) -> None:
    run.steps["accepted_tokens"] = 0


def all_accepted(run: Tables) -> None:
    run.engine_steps["accepted_tokens"] = run.engine_steps["drafted_tokens"]


def context_ends(run: Tables) -> None:
    long = run.engine_steps["context_tokens"] > 1250 * BATCH
    run.engine_steps.loc[long, "accepted_tokens"] = 0


def context_falls(run: Tables) -> None:
    long = run.engine_steps["context_tokens"] > 1250 * BATCH
    run.engine_steps.loc[long, "accepted_tokens"] = run.engine_steps["accepted_tokens"] // 2


def the_tail_accepts_less(run: Tables) -> None:
    tail = (run.engine_steps["batch"] == TAIL_BATCH) & (run.engine_steps["k"] > 0)
    run.engine_steps.loc[tail, "accepted_tokens"] = TAIL_BATCH


def the_chain_breaks(run: Tables) -> None:
    run.events = [
        decision_interval(event.t_s, (0.8, 0.6, 0.01, 0.0)) if isinstance(event, DecisionEnded) else event
        for event in run.events
    ]


def too_slow(run: Tables) -> None:
    run.engine_steps.loc[run.engine_steps["k"] > 0, "seconds"] = 4 * PLAIN_S


def too_slow_by_decision_interval(run: Tables) -> None:
    """No single engine steps: the record has plain and drafting decision intervals of like batches."""
    run.left_out.add("engine_steps")
    run.events = [event for event in run.events if not isinstance(event, DecisionEnded)]
    slow = decision_interval(STEPS + 3.0, (0.5,), step_s=2 * DRAFT_S)
    run.events += [decision_interval(STEPS + 1.0, ()), decision_interval(STEPS + 2.0, ()), slow]


def old_drafter(run: Tables) -> None:
    run.steps["drafter_age_steps"] = np.arange(STEPS) + 8


def old_drafter_fades(run: Tables) -> None:
    old_drafter(run)
    run.steps.loc[run.steps["drafter_age_steps"] > 10, "accepted_tokens"] //= 2


def one_full_worker(run: Tables) -> None:
    """The longer ones of each step sit on worker 0, which is slower for its large batch."""
    rank = run.responses.groupby("step")["response_tokens"].rank(pct=True)
    run.responses["worker"] = np.where(rank > 0.4, 0, 1)
    pace_s = np.where(rank > 0.4, 0.03, 0.01)
    run.responses["finish_s"] = run.responses["start_s"] + run.responses["response_tokens"] * pace_s
    run.steps["rollout_end_s"] = run.responses.groupby("step")["finish_s"].max().to_numpy()


def idle(run: Tables) -> None:
    run.intervals["cause"] = run.intervals["cause"].replace("drafter_training", "tail_idle")
    late = run.intervals["cause"] == "speculate"
    run.intervals.loc[late, "cause"] = np.where(run.intervals.loc[late, "worker"] == 0, "tail_idle", "decode")


def slow_rewards(run: Tables) -> None:
    run.intervals["cause"] = run.intervals["cause"].replace("policy_update", "reward")
    stretch_phases(run, 3.0)


def long_updates(run: Tables) -> None:
    stretch_phases(run, 6.0)


def stretch_phases(run: Tables, times: float) -> None:
    """Make what follows each rollout longer; steps then overlap, which no check looks at."""
    base = run.intervals["step"].map(run.steps.set_index("step")["rollout_end_s"])
    after = run.intervals["start_s"] >= base - 1e-9
    for name in ("start_s", "end_s"):
        longer = base + times * (run.intervals[name] - base)
        run.intervals[name] = run.intervals[name].where(~after, longer)
    run.steps["end_s"] = run.steps["rollout_end_s"] + times * (
        run.steps["end_s"] - run.steps["rollout_end_s"]
    )


def slow_handover(run: Tables) -> None:
    first = run.intervals["cause"] == "reward"
    run.intervals.loc[first, "cause"] = "tail_idle"


def late_trainer(run: Tables) -> None:
    run.updates.loc[1, "handover_s"] = 0.5


def preempted(run: Tables) -> None:
    run.engine_steps.loc[run.engine_steps["prompt_tokens"] > 0, "prompt_tokens"] += 2000


def recomputed(run: Tables) -> None:
    some = run.intervals.index[run.intervals["cause"] == "speculate"][:2]
    run.intervals.loc[some, "cause"] = "recompute"


def compiles(run: Tables) -> None:
    run.engine_steps.loc[5, "compiled"] = True


def stands_still(run: Tables) -> None:
    run.engine_steps.loc[5, "seconds"] = 60.0


def stale_weights(run: Tables) -> None:
    run.rewards["policy_version"] = 0


def stale_schedule(run: Tables) -> None:
    rows = pd.DataFrame(
        {
            "step": range(STEPS), "trained_responses": 32, "response_tokens": 1, "wasted_tokens": 0,
            "carried_responses": 0, "carried_tokens": 0, "staleness_mean": 2.0, "staleness_max": 9,
        }
    )  # fmt: skip
    run.schedule = ScheduleFacts(name="async", keeps_order=False, on_policy="no"), rows


FAULTS: list[tuple[str, Spoil, str]] = [
    ("truncation", cut, PROBLEM),
    ("truncation", unmarked_cap, PROBLEM),
    ("empty-responses", empty, PROBLEM),
    ("missing-steps", a_step_is_missing, PROBLEM),
    ("missing-steps", it_broke_off, PROBLEM),
    ("missing-steps", a_small_step, NOTICE),
    ("repeated-steps", a_step_twice, PROBLEM),
    ("groups-alike", alike, PROBLEM),
    ("group-sizes", a_large_group, NOTICE),
    ("group-sizes", a_small_group, NOTICE),
    ("repeated-responses", a_response_twice, PROBLEM),
    ("flat-rewards", flat, NOTICE),
    ("acceptance-none", nothing_accepted, PROBLEM),
    ("acceptance-all", all_accepted, PROBLEM),
    ("acceptance-context", context_ends, PROBLEM),
    ("acceptance-context", context_falls, NOTICE),
    ("acceptance-tail", the_tail_accepts_less, NOTICE),
    ("acceptance-position", the_chain_breaks, PROBLEM),
    ("break-even", too_slow, PROBLEM),
    ("break-even", too_slow_by_decision_interval, PROBLEM),
    ("drafter-age", old_drafter, NOTICE),
    ("drafter-age", old_drafter_fades, PROBLEM),
    ("dispatch", one_full_worker, PROBLEM),
    ("idle", idle, NOTICE),
    ("reward-time", slow_rewards, PROBLEM),
    ("amdahl", long_updates, NOTICE),
    ("handover", slow_handover, NOTICE),
    ("late-stops", late_trainer, NOTICE),
    ("preemptions", preempted, PROBLEM),
    ("preemptions", recomputed, PROBLEM),
    ("compilation", compiles, NOTICE),
    ("stalls", stands_still, PROBLEM),
    ("staleness", stale_weights, PROBLEM),
    ("staleness", stale_schedule, PROBLEM),
]
ELSEWHERE = {
    "policy-lengths",
    "left-out",
    "off-tax",
    "break-even-calibrated",
    "break-even-stated",
    "waiting",
    "tool-waits", "cut-sessions", "full-contexts", "lost-prefixes", "hanging-tools",  # tests/traces/sessions
}  # fmt: skip  # tests below
