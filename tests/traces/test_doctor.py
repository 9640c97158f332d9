"""Each check of the doctor on a run that has its fault, and on one that has not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from tests.traces.doctor_runs import (
    BATCH,
    DRAFT_S,
    PLAIN_S,
    SAMPLES,
    STEPS,
    Tables,
    epoch,
    healthy,
    write_comparison,
)
from tltsched.arms import Arm
from tltsched.events import EpochEnded
from tltsched.steptime import ArmTimes, StepTimeTable
from traces.doctor import CHECKS
from traces.doctor.base import Finding, Limits
from traces.doctor.diagnosis import Diagnosis, examine
from traces.doctor.subject import read_subject
from traces.importers.base import Options
from traces.runfolder import ScheduleFacts

PROBLEM, NOTICE = "problem", "notice"
Spoil = Callable[[Tables], None]


def look(path: Path, limits: Limits | None = None, **options: int) -> Diagnosis:
    return examine(read_subject(path, Options(**options)), limits or Limits())


def found(diagnosis: Diagnosis, check: str) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.check == check]


def ran(diagnosis: Diagnosis, check: str) -> bool:
    return bool(next(one for one in diagnosis.checks if one.check == check).ran_on)


def step_times(plain_s: float) -> Callable[[tuple[Arm, ...], int], StepTimeTable]:
    return lambda arms, most: StepTimeTable(tuple(ArmTimes(arm, (plain_s,) * (most + 1)) for arm in arms))


# --- what is wrong, one function a check --------------------------------------------------------------------


def cut(run: Tables) -> None:
    cap = int(run.responses["response_tokens"].quantile(0.7))
    over = run.responses["response_tokens"] >= cap
    run.responses.loc[over, "response_tokens"] = cap
    run.responses["capped"] = over


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


def a_response_twice(run: Tables) -> None:
    run.responses = pd.concat([run.responses, run.responses.iloc[:1]], ignore_index=True)


def flat(run: Tables) -> None:
    run.rewards["reward"] = 1.0


def nothing_accepted(run: Tables) -> None:
    run.steps["accepted_tokens"] = 0


def all_accepted(run: Tables) -> None:
    run.cycles["accepted_tokens"] = run.cycles["drafted_tokens"]


def context_ends(run: Tables) -> None:
    long = run.cycles["context_tokens"] > 1250 * BATCH
    run.cycles.loc[long, "accepted_tokens"] = 0


def context_falls(run: Tables) -> None:
    long = run.cycles["context_tokens"] > 1250 * BATCH
    run.cycles.loc[long, "accepted_tokens"] = run.cycles["accepted_tokens"] // 2


def the_chain_breaks(run: Tables) -> None:
    run.events = [
        epoch(event.t_s, (0.8, 0.6, 0.01, 0.0)) if isinstance(event, EpochEnded) else event
        for event in run.events
    ]


def too_slow(run: Tables) -> None:
    run.cycles.loc[run.cycles["k"] > 0, "seconds"] = 4 * PLAIN_S


def too_slow_by_epoch(run: Tables) -> None:
    """No single cycles: the record has plain and drafting epochs of like batches."""
    run.left_out.add("cycles")
    run.events = [event for event in run.events if not isinstance(event, EpochEnded)]
    slow = epoch(STEPS + 3.0, (0.5,), cycle_s=2 * DRAFT_S)
    run.events += [epoch(STEPS + 1.0, ()), epoch(STEPS + 2.0, ()), slow]


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
    run.cycles.loc[run.cycles["prompt_tokens"] > 0, "prompt_tokens"] += 2000


def recomputed(run: Tables) -> None:
    some = run.intervals.index[run.intervals["cause"] == "speculate"][:2]
    run.intervals.loc[some, "cause"] = "recompute"


def compiles(run: Tables) -> None:
    run.cycles.loc[5, "compiled"] = True


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
    ("repeated-responses", a_response_twice, PROBLEM),
    ("flat-rewards", flat, NOTICE),
    ("acceptance-none", nothing_accepted, PROBLEM),
    ("acceptance-all", all_accepted, PROBLEM),
    ("acceptance-context", context_ends, PROBLEM),
    ("acceptance-context", context_falls, NOTICE),
    ("acceptance-position", the_chain_breaks, PROBLEM),
    ("break-even", too_slow, PROBLEM),
    ("break-even", too_slow_by_epoch, PROBLEM),
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
    ("staleness", stale_weights, PROBLEM),
    ("staleness", stale_schedule, PROBLEM),
]
ELSEWHERE = {
    "arm-lengths",
    "left-out",
    "off-tax",
    "break-even-calibrated",
    "break-even-stated",
}  # tests below


def test_every_check_has_a_fault() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert {check for check, _, _ in FAULTS} | ELSEWHERE == set(names)


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    diagnosis = look(healthy().write(tmp_path / "run"))
    assert diagnosis.findings == ()
    for check in {name for name, _, _ in FAULTS}:
        assert ran(diagnosis, check), check


@pytest.mark.parametrize(("check", "spoil", "severity"), FAULTS)
def test_a_fault_is_found(check: str, spoil: Spoil, severity: str, tmp_path: Path) -> None:
    run = healthy()
    spoil(run)
    (finding,) = found(look(run.write(tmp_path / "run")), check)
    assert finding.severity == severity
    assert all((finding.found, finding.why, finding.todo, finding.source))


def test_a_position_that_breaks_is_named(tmp_path: Path) -> None:
    run = healthy()
    the_chain_breaks(run)
    (finding,) = found(look(run.write(tmp_path / "run")), "acceptance-position")
    assert finding.found.startswith("draft position 2 is accepted in 1.0% of the cycles")


def test_the_context_past_which_acceptance_ends_is_named(tmp_path: Path) -> None:
    run = healthy()
    context_ends(run)
    (finding,) = found(look(run.write(tmp_path / "run")), "acceptance-context")
    told = float(finding.found.split("about ")[1].split(" ")[0].replace(",", ""))
    assert told == pytest.approx(1250, rel=0.02)


def test_the_loss_of_drafting_is_reckoned(tmp_path: Path) -> None:
    run = healthy()
    too_slow(run)
    (finding,) = found(look(run.write(tmp_path / "run")), "break-even")
    assert "acceptance length 3.00 there, break-even 4.00" in finding.found
    assert "its own cycles at K = 0" in finding.source


def test_times_of_a_calibration(tmp_path: Path) -> None:
    path = healthy().write(tmp_path / "run")
    check = "break-even-calibrated"
    assert not ran(look(path), check)
    fine = look(path, Limits(step_times=step_times(PLAIN_S), calibration="c"))
    assert ran(fine, check)
    assert not found(fine, check)
    (finding,) = found(look(path, Limits(step_times=step_times(PLAIN_S / 4), calibration="c")), check)
    assert finding.severity == PROBLEM
    assert "break-even 6.00" in finding.found


def test_a_stated_break_even(tmp_path: Path) -> None:
    path = healthy().write(tmp_path / "run")
    check = "break-even-stated"
    assert not ran(look(path), check)
    assert not found(look(path, Limits(break_even=2.9)), check)
    (finding,) = found(look(path, Limits(break_even=3.1)), check)
    assert finding.severity == PROBLEM


def test_what_speculation_costs_while_it_is_off(tmp_path: Path) -> None:
    none, fine, slow = healthy("none", drafts=False), healthy("fine"), healthy("slow")
    off = (slow.cycles["k"] == 0) & (slow.cycles["prompt_tokens"] == 0)
    slow.cycles.loc[off, "seconds"] = 1.2 * PLAIN_S
    (finding,) = found(look(write_comparison(tmp_path / "c", none, fine, slow)), "off-tax")
    assert (finding.arm, finding.severity) == ("slow", PROBLEM)
    assert "takes 20.0% longer than in none" in finding.found


def test_arms_with_the_same_lengths(tmp_path: Path) -> None:
    diagnosis = look(write_comparison(tmp_path / "c", healthy("none", drafts=False), healthy("one")))
    assert ran(diagnosis, "arm-lengths")
    assert not found(diagnosis, "arm-lengths")
    assert diagnosis.arms == ("none", "one")


def test_arms_that_were_to_roll_out_the_same_lengths(tmp_path: Path) -> None:
    none, other = healthy("none"), healthy("other")
    for run in (none, other):
        run.left_out.add("rewards")
    other.responses["response_tokens"] += 1
    (finding,) = found(look(write_comparison(tmp_path / "c", none, other)), "arm-lengths")
    assert finding.severity == PROBLEM


def test_training_arms_with_lengths_of_their_own(tmp_path: Path) -> None:
    none, near, far = healthy("none"), healthy("near"), healthy("far")
    noise = np.random.default_rng(1).integers(-3, 4, len(near.responses))
    near.responses["response_tokens"] += noise
    far.responses["response_tokens"] = (far.responses["response_tokens"] * 0.9).astype(int) + 1
    one, two = found(look(write_comparison(tmp_path / "c", none, near, far)), "arm-lengths")
    assert (one.severity, two.severity) == (PROBLEM, NOTICE)
    assert one.found.startswith("far ")
    assert "paired over 6 steps" in two.found


# --- other things than run folders --------------------------------------------------------------------------


def areal(folder: Path, lines: int, broken: int, empty_ones: int = 0) -> Path:
    folder.mkdir(parents=True)
    rows = [
        json.dumps(
            {
                "task_id": number // SAMPLES, "sample_idx": number % SAMPLES, "seqlen": 50 + 7 * number,
                "prompt_len": 40, "head_version": 3, "tail_version": 3, "reward": 1.0, "prompt": "p",
                "completion": "c",
            }
        )
        for number in range(lines)
    ]  # fmt: skip
    for number in range(empty_ones):
        rows[number] = rows[number].replace(f'"seqlen": {50 + 7 * number}', '"seqlen": 40')
    (folder / "1.jsonl").write_text("\n".join(rows + ["{broken"] * broken) + "\n")
    return folder


def test_records_that_gave_no_response(tmp_path: Path) -> None:
    fine = look(areal(tmp_path / "fine", 40, 0))
    assert ran(fine, "left-out")
    assert fine.findings == ()
    (finding,) = found(look(areal(tmp_path / "broken", 40, 10)), "left-out")
    assert finding.severity == PROBLEM
    assert "10 of 50 records" in finding.found


def test_empty_responses_of_a_log(tmp_path: Path) -> None:
    (finding,) = found(look(areal(tmp_path / "log", 40, 0, empty_ones=4)), "empty-responses")
    assert finding.severity == PROBLEM
    assert "4 of 40" in finding.found


def test_a_few_responses_are_no_problem(tmp_path: Path) -> None:
    (finding,) = found(look(areal(tmp_path / "log", 8, 0, empty_ones=4)), "empty-responses")
    assert finding.severity == NOTICE


@pytest.mark.parametrize(("reward_s", "severity"), [(20.0, None), (60.0, NOTICE), (240.0, PROBLEM)])
def test_rewards_of_a_console_log(reward_s: float, severity: str | None, tmp_path: Path) -> None:
    lines = [
        f"step:{step} - response_length/mean:900.0 - response_length/max:4096.0 - "
        "response_length/clip_ratio:0.0 - prompt_length/mean:100.0 - perf/total_num_tokens:64000.0 - "
        f"timing_s/gen:300.0 - timing_s/reward:{reward_s} - timing_s/step:{400 + reward_s}"
        for step in range(1, 4)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    diagnosis = look(tmp_path / "train.log")
    assert ran(diagnosis, "reward-time")
    assert [finding.severity for finding in found(diagnosis, "reward-time")] == (
        [severity] if severity else []
    )


def test_a_log_with_phase_times_alone(tmp_path: Path) -> None:
    lines = [f"step:{step} - timing_s/gen:10.0 - timing_s/step:100.0" for step in range(1, 4)]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    diagnosis = look(tmp_path / "train.log")
    assert [finding.check for finding in diagnosis.findings] == ["amdahl"]
    assert not ran(diagnosis, "truncation")


def test_what_cannot_run_says_why(tmp_path: Path) -> None:
    diagnosis = look(areal(tmp_path / "log", 40, 0))
    reasons = {one.check: one.could_not for one in diagnosis.checks if not one.ran_on}
    assert "no run folder" in next(iter(reasons["dispatch"]))
    assert all(reasons.values())
