"""Each check of the doctor on a run that has its fault, and on one that has not."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.traces.doctor_faults import (
    ELSEWHERE,
    FAULTS,
    NOTICE,
    PROBLEM,
    Spoil,
    context_ends,
    one_full_worker,
    stands_still,
    the_chain_breaks,
    too_slow,
)
from tests.traces.doctor_runs import PLAIN_S, SAMPLES, healthy, write_comparison
from tlt.traces.doctor import CHECKS
from tlt.traces.doctor.base import Finding, Limits
from tlt.traces.doctor.diagnosis import Diagnosis, examine
from tlt.traces.doctor.subject import read_subject
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.reading.items import Options
from tlt.traces.lengths.files import write_trace
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.step_times import DraftConfigTimes, StepTimeTable


def look(path: Path, limits: Limits | None = None, **options: int) -> Diagnosis:
    return examine(read_subject(path, Options(**options)), limits or Limits())


def found(diagnosis: Diagnosis, check: str) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.check == check]


def ran(diagnosis: Diagnosis, check: str) -> bool:
    return bool(next(one for one in diagnosis.checks if one.check == check).ran_on)


def step_times(plain_s: float) -> Callable[[tuple[DraftConfig, ...], int], StepTimeTable]:
    return lambda draft_configs, most: StepTimeTable(
        tuple(DraftConfigTimes(draft_config, (plain_s,) * (most + 1)) for draft_config in draft_configs)
    )


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


def test_a_rollout_in_which_a_worker_stood_still_says_nothing_of_placement(tmp_path: Path) -> None:
    """A stall of 60 s was advised against by placing requests otherwise."""
    run, unequal = healthy(), healthy()
    one_full_worker(unequal)
    step = run.engine_steps["step"][5]  # where stands_still puts it
    mine, slow = run.responses["step"] == step, unequal.responses["worker"] == 0
    unequal.responses.loc[slow, "finish_s"] += 60.0
    run.responses = run.responses.where(~mine, unequal.responses)
    run.steps.loc[run.steps["step"] == step, ["rollout_end_s", "end_s"]] += 60.0
    assert found(look(run.write(tmp_path / "untold")), "dispatch")
    stands_still(run)
    diagnosis = look(run.write(tmp_path / "told"))
    assert found(diagnosis, "stalls")
    assert not found(diagnosis, "dispatch")
    assert ran(diagnosis, "dispatch")


def test_who_waits_for_a_worker_that_stood_still_is_not_idle(tmp_path: Path) -> None:
    """The others' wait of a minute would be advised against by training a drafter in it."""
    run = healthy()
    run.intervals["cause"] = run.intervals["cause"].replace("drafter_training", "speculate")
    still = run.intervals["step"] == run.engine_steps["step"][5]  # where stands_still puts it
    last = run.intervals.index[still & (run.intervals["worker"] == 1)][-1]
    run.intervals.loc[last, "cause"] = "tail_idle"
    run.intervals.loc[last, "end_s"] += 60.0
    assert found(look(run.write(tmp_path / "untold")), "idle")
    stands_still(run)
    diagnosis = look(run.write(tmp_path / "told"))
    assert found(diagnosis, "stalls")
    assert not found(diagnosis, "idle")
    assert ran(diagnosis, "idle")


def test_a_position_that_breaks_is_named(tmp_path: Path) -> None:
    run = healthy()
    the_chain_breaks(run)
    (finding,) = found(look(run.write(tmp_path / "run")), "acceptance-position")
    assert finding.found.startswith("draft position 2 is accepted in 1.0% of the engine steps")


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
    assert "its own engine steps at K = 0" in finding.source


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
    off = (slow.engine_steps["k"] == 0) & (slow.engine_steps["prompt_tokens"] == 0)
    slow.engine_steps.loc[off, "seconds"] = 1.2 * PLAIN_S
    (finding,) = found(look(write_comparison(tmp_path / "c", none, fine, slow)), "off-tax")
    assert (finding.policy, finding.severity) == ("slow", PROBLEM)
    assert "takes 20.0% longer than in none" in finding.found


def test_policies_with_the_same_lengths(tmp_path: Path) -> None:
    diagnosis = look(write_comparison(tmp_path / "c", healthy("none", drafts=False), healthy("one")))
    assert ran(diagnosis, "policy-lengths")
    assert not found(diagnosis, "policy-lengths")
    assert diagnosis.policies == ("none", "one")


def test_policies_that_were_to_roll_out_the_same_lengths(tmp_path: Path) -> None:
    none, other = healthy("none"), healthy("other")
    for run in (none, other):
        run.left_out.add("rewards")
    other.responses["response_tokens"] += 1
    (finding,) = found(look(write_comparison(tmp_path / "c", none, other)), "policy-lengths")
    assert finding.severity == PROBLEM


def test_training_policies_with_lengths_of_their_own(tmp_path: Path) -> None:
    none, near, far = healthy("none"), healthy("near"), healthy("far")
    noise = np.random.default_rng(1).integers(-3, 4, len(near.responses))
    near.responses["response_tokens"] += noise
    far.responses["response_tokens"] = (far.responses["response_tokens"] * 0.9).astype(int) + 1
    one, two = found(look(write_comparison(tmp_path / "c", none, near, far)), "policy-lengths")
    assert (one.severity, two.severity) == (PROBLEM, NOTICE)
    assert one.found.startswith("far ")
    assert "paired over 6 steps" in two.found


# --- other things than run folders --------------------------------------------------------------------------


def areal(
    folder: Path, lines: int, broken: int, empty_ones: int = 0, texts: int = 1000, rewards: int = 2
) -> Path:
    """Write a log whose responses take turns in so many texts and rewards."""
    folder.mkdir(parents=True)
    rows = [
        json.dumps(
            {
                "task_id": number // SAMPLES, "sample_idx": number % SAMPLES, "seqlen": 50 + 7 * number,
                "prompt_len": 40, "head_version": 3, "tail_version": 3, "reward": -1.0 * (number % rewards),
                "prompt": "p", "completion": f"c{number % texts}",
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


def test_a_log_whose_texts_repeat_and_whose_rewards_are_flat(tmp_path: Path) -> None:
    fine = look(areal(tmp_path / "fine", 40, 0))
    assert ran(fine, "repeated-responses")
    assert ran(fine, "flat-rewards")
    spoilt = areal(tmp_path / "spoilt", 40, 0, texts=1, rewards=1)
    trace, _ = import_trace(spoilt, Options())
    write_trace(trace, tmp_path / "spoilt.parquet")
    for path in (spoilt, tmp_path / "spoilt.parquet"):
        (again,) = found(look(path), "repeated-responses")
        (flat,) = found(look(path), "flat-rewards")
        assert (again.severity, flat.severity) == (PROBLEM, NOTICE)
        assert "36 of 36 responses of 32 tokens or more (100%)" in again.found
        assert "100% of 10 groups" in flat.found


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


@pytest.mark.parametrize("seed", range(40))
def test_odd_tables_are_told_of_and_break_nothing(seed: int, tmp_path: Path) -> None:
    """Whatever the tables hold, the doctor answers or says which input is wrong."""
    rng = np.random.default_rng(seed)
    run = healthy()
    for name in ("responses", "intervals", "steps", "engine_steps", "updates", "rewards"):
        table = getattr(run, name)
        kind = rng.integers(5)
        if kind == 0:
            setattr(run, name, table.iloc[:0])
        elif kind == 1:
            setattr(run, name, table.sample(frac=0.5, random_state=int(rng.integers(1 << 30))))
        elif kind == 2:
            column = str(rng.choice([each for each in table.columns if each not in ("cause", "compiled")]))
            odd = [0, -1, 100] if table[column].dtype.kind == "i" else [np.nan, np.inf, -1.0, 0.0]
            setattr(run, name, table.assign(**{column: rng.choice(odd)}))
    with suppress(InputError):
        examine(read_subject(run.write(tmp_path / "run"), Options()), Limits(step_times=step_times(PLAIN_S)))
