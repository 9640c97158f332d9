from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis import training_runs as made
from tests.analysis.training_runs import FOLDERS, PLANS, PolicyPlan, write_policy, write_training
from tlt.analysis.comparison.compare import compare
from tlt.analysis.ledger import AccountingError
from tlt.analysis.load import load_runs
from tlt.analysis.training.facts import PolicyFacts
from tlt.analysis.training.figures import TrainFacts, amdahl, examine
from tlt.analysis.training.run import TrainSet, load_training
from tlt.analysis.training.time import gpu_seconds, phase_seconds
from tlt.traces.runs.decision_intervals import positions
from tlt.traces.runs.runfolder import RunFolder
from tltsched.errors import InputError

STEPS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("training"), steps=STEPS)


@pytest.fixture(scope="module")
def runs(folder: Path) -> TrainSet:
    return load_training(folder)


@pytest.fixture(scope="module")
def facts(runs: TrainSet) -> TrainFacts:
    return examine(runs)


def policy_of(facts: TrainFacts, name: str) -> PolicyFacts:
    (policy,) = [policy for policy in facts.policies if policy.policy == name]
    return policy


def seconds_of(policy: PolicyFacts, phase: str) -> float:
    return sum(part.seconds.value for part in policy.time.phases if part.phase == phase)


def test_speedups_are_those_of_the_plain_report(folder: Path, facts: TrainFacts) -> None:
    plain = {row.policy: row for row in compare(load_runs(folder)).rows}
    for policy in facts.policies[1:]:
        assert policy.time.step_speedup.value == pytest.approx(plain[policy.policy].speedup.value, rel=1e-12)
        assert policy.time.step_speedup.interval == pytest.approx(
            plain[policy.policy].speedup.interval, rel=1e-12
        )
        assert policy.time.rollout_s.value == pytest.approx(plain[policy.policy].rollout_s)


def test_equal_lengths_make_equal_token_and_rollout_speedups(facts: TrainFacts) -> None:
    for policy in facts.policies[1:]:
        assert policy.lengths.same_as_baseline
        assert policy.time.token_speedup.value == pytest.approx(policy.time.rollout_speedup.value)
        assert policy.lengths.longest_ratio is not None
        assert policy.lengths.longest_ratio.value == 1.0


def test_phases_sum_to_the_step(runs: TrainSet, facts: TrainFacts) -> None:
    for run, policy in zip(runs.policies, facts.policies, strict=True):
        np.testing.assert_allclose(sum(phase_seconds(run).values()), run.step_s(), rtol=1e-12)
        assert sum(part.share.value for part in policy.time.phases) == pytest.approx(1.0)


def test_phases_take_the_time_that_the_workers_booked(facts: TrainFacts) -> None:
    online, none = policy_of(facts, "static:4/online"), policy_of(facts, "none")
    for phase, seconds in (made.PHASES_S | {"weight_sync": made.SYNC_S}).items():
        assert seconds_of(online, phase) == pytest.approx(seconds)
        assert seconds_of(none, phase) == pytest.approx(seconds)
    assert seconds_of(online, "drafter_publish") == pytest.approx(made.PUBLISH_S)
    assert seconds_of(online, "handover") == pytest.approx(made.HANDOVER_S)
    assert {part.phase for part in none.time.phases}.isdisjoint({"handover", "drafter_publish", "other"})


def test_gpu_seconds_of_a_run_are_all_in_its_steps(runs: TrainSet) -> None:
    for run in runs.policies:
        steps = run.run.steps
        booked = gpu_seconds(run, steps["start_s"].to_numpy(), steps["end_s"].to_numpy())
        assert sum(part.sum() for part in booked.values()) == pytest.approx(
            made.WORKERS * run.run.summary.wall_s
        )


def test_use_of_idle_time_is_that_of_the_intervals(runs: TrainSet, facts: TrainFacts) -> None:
    frame = runs.policies[2].run.intervals
    seconds = (frame["end_s"] - frame["start_s"]).groupby(frame["cause"].astype(str)).sum()
    early_s = made.EARLY_S * int((frame["cause"] == "drafter_activation").sum())
    idle = policy_of(facts, "static:4/online").idle
    assert idle.early_logprob_gpu_s == pytest.approx(early_s)
    assert idle.drafter_gpu_s == pytest.approx(seconds["drafter_activation"] + seconds["drafter_training"])
    assert idle.idle_gpu_s == pytest.approx(seconds["tail_idle"])
    used = idle.drafter_gpu_s + early_s
    assert idle.used_share.value == pytest.approx(used / (used + idle.idle_gpu_s))
    wall = made.WORKERS * runs.policies[2].run.summary.wall_s
    assert idle.idle_share.value == pytest.approx((seconds["tail_idle"] + seconds["preempt_wait"]) / wall)
    assert idle.scored_early_share == pytest.approx(6 / made.REQUESTS)
    assert policy_of(facts, "none").idle.used_share.value == 0.0


def test_wait_that_training_added(facts: TrainFacts) -> None:
    wait = policy_of(facts, "static:4/online").wait
    assert wait.handover_median_s == pytest.approx(made.HANDOVER_S)
    assert wait.handover_max_s == pytest.approx(made.HANDOVER_S)
    assert wait.stop_median_s == made.STOP_S
    assert wait.publish_max_s == made.PUBLISH_S
    untrained = policy_of(facts, "none").wait
    assert untrained.handover_max_s == 0.0
    assert untrained.stop_median_s is None
    assert untrained.publish_median_s is None


def test_amdahl_of_the_rollout(runs: TrainSet, facts: TrainFacts) -> None:
    base, policy = runs.policies[0], runs.policies[1]
    share = base.rollout_s().sum() / base.step_s().sum()
    gain = base.rollout_s().sum() / policy.rollout_s().sum()
    found = policy_of(facts, "static:4/frozen").amdahl
    assert found is not None
    assert found.rollout_share.value == pytest.approx(share)
    assert found.predicted.value == pytest.approx(1 / ((1 - share) + share / gain))
    assert found.ceiling.value == pytest.approx(1 / (1 - share))
    # its other phases take as long as the baseline's, and it trains nothing: the law holds exactly
    assert found.measured_over_predicted.value == pytest.approx(1.0)
    online = policy_of(facts, "static:4/online").amdahl
    assert online is not None
    assert online.measured_over_predicted.value < 1.0  # it hands over and publishes
    assert facts.policies[0].amdahl is None


def test_acceptance_by_step_position_and_age(facts: TrainFacts) -> None:
    frozen = policy_of(facts, "static:4/frozen").acceptance
    assert frozen is not None
    rates = [made.PROBE - 0.01 * step for step in range(STEPS)]
    lengths = [1 + sum(rate ** (at + 1) for at in range(made.DEPTH)) for rate in rates]
    assert [row.length for row in frozen.by_step] == pytest.approx(lengths, abs=1e-3)
    assert frozen.length.value == pytest.approx(np.mean(lengths), abs=1e-3)
    first = frozen.by_position[0]
    assert first.accepted.value == pytest.approx(np.mean(rates), abs=1e-3)
    assert first.request_steps == made.WORKERS * made.ENGINE_STEPS * STEPS
    assert [row.age_steps for row in frozen.by_age] == list(range(STEPS))
    assert facts.policies[0].acceptance is None


def test_a_frozen_head_drifts_and_a_trained_one_recovers(facts: TrainFacts) -> None:
    frozen = policy_of(facts, "static:4/frozen").acceptance
    online = policy_of(facts, "static:4/online").acceptance
    assert frozen is not None
    assert online is not None
    assert frozen.slope_per_step.interval is not None
    assert frozen.slope_per_step.interval[1] < 0 < online.slope_per_step.value
    assert frozen.change_same_head.value < 0
    assert np.isnan(frozen.change_new_head.value)  # the same version served all along
    assert online.change_new_head.value > 0
    assert frozen.probe_gain_sampled.value == pytest.approx(0.0)
    assert online.probe_gain_sampled.above(0.0)
    assert online.probe_slope_initial.value == pytest.approx(frozen.probe_slope_initial.value)
    (pair,) = facts.against_frozen
    assert (pair.trained, pair.frozen) == ("static:4/online", "static:4/frozen")
    assert pair.difference.above(0.0)
    assert pair.slope_per_step.above(0.0)
    rollout_s = [policy_of(facts, name).time.rollout_s.value for name in (pair.frozen, pair.trained)]
    assert pair.rollout_speedup.value == pytest.approx(rollout_s[0] / rollout_s[1])


def test_loss_of_the_drafter(facts: TrainFacts) -> None:
    head = policy_of(facts, "static:4/online").head
    assert head is not None
    assert head.first_loss == pytest.approx(2.9)
    assert head.last_loss == pytest.approx(2.9 - 0.1 * (STEPS - 1))
    assert policy_of(facts, "static:4/frozen").head is None


def test_the_same_rewards_differ_by_nothing(facts: TrainFacts) -> None:
    rewards = policy_of(facts, "static:4/online").rewards
    assert rewards.final_difference is not None
    assert rewards.final_difference.interval == (0.0, 0.0)
    assert rewards.final_steps == STEPS // 3
    assert len(rewards.by_step) == STEPS
    assert rewards.final.value > rewards.first.value


def test_a_clean_comparison_has_no_flag(facts: TrainFacts) -> None:
    assert facts.flags == ()


def test_flags(tmp_path: Path) -> None:
    other = PolicyPlan("static:4/online", speed=1.5, drafts=True, trains=True, reward=0.4, length_seed=2)
    path = write_training(tmp_path, (PolicyPlan("none"), other), steps=5)
    write_policy(path / FOLDERS[2], other, steps=5, compiled=3)
    updates = pd.read_parquet(path / FOLDERS[2] / "updates.parquet")
    updates.loc[2, "stop_s"] = 0.25
    updates.to_parquet(path / FOLDERS[2] / "updates.parquet")
    flags = {flag.name: flag for flag in examine(load_training(path)).flags}
    assert set(flags) == {"steps", "lengths", "rewards", "compiled", "stops"}
    assert not any(flag.stops for flag in flags.values())
    assert "only 5 RL steps" in flags["steps"].text
    assert "generated other lengths than none" in flags["lengths"].text
    assert "above that of none" in flags["rewards"].text
    assert "3 timed engine steps" in flags["compiled"].text
    assert "at most 250 ms" in flags["stops"].text


def test_other_prompts_stop_the_conclusion(tmp_path: Path) -> None:
    plans = (PolicyPlan("none"), PolicyPlan("static:4", speed=2.0, drafts=True, prompt_tokens=60))
    (stop,) = [flag for flag in examine(load_training(write_training(tmp_path, plans))).flags if flag.stops]
    assert stop.name == "prompts"


def test_one_run_alone(tmp_path: Path) -> None:
    write_policy(tmp_path, PLANS[2], steps=1)
    (policy,) = examine(load_training(tmp_path)).policies
    assert policy.time.step_speedup.value == 1.0
    assert policy.time.step_s.interval is None
    assert policy.time.step_s.reason == "needs at least 2 steps"
    assert policy.amdahl is None


def test_positions_without_records(tmp_path: Path) -> None:
    assert positions(tmp_path / "records.jsonl").empty


def test_policies_with_other_steps_are_refused(tmp_path: Path) -> None:
    path = write_training(tmp_path, PLANS[:2], steps=3)
    write_policy(path / FOLDERS[1], PLANS[1], steps=2)
    with pytest.raises(InputError, match="2 steps, 0 to 1"):
        load_training(path)


@pytest.mark.parametrize("name", ["rewards", "updates", "heads", "probes"])
def test_a_folder_without_a_table_is_refused(tmp_path: Path, name: str) -> None:
    write_policy(tmp_path, PLANS[0], steps=2)
    (tmp_path / f"{name}.parquet").unlink()
    with pytest.raises(InputError, match=f"{name}.parquet"):
        load_training(tmp_path)


@pytest.mark.parametrize("name", ["rewards", "updates"])
def test_a_table_that_lacks_a_row_is_refused(tmp_path: Path, name: str) -> None:
    write_policy(tmp_path, PLANS[0], steps=2)
    path = tmp_path / f"{name}.parquet"
    pd.read_parquet(path).iloc[:-1].to_parquet(path)
    with pytest.raises(InputError, match=f"{name}.parquet"):
        load_training(tmp_path)


def test_gpu_time_that_does_not_add_up(tmp_path: Path) -> None:
    folder: RunFolder = write_policy(tmp_path, PLANS[0], steps=2)
    folder.write(folder.summary(), folder.responses(), folder.intervals().iloc[:-1], folder.steps())
    with pytest.raises(AccountingError):
        examine(load_training(tmp_path))


def test_a_hand_over_that_takes_too_long_is_flagged_even_if_the_trainer_stopped_at_once(
    tmp_path: Path,
) -> None:
    write_policy(tmp_path, PLANS[2])
    updates = pd.read_parquet(tmp_path / "updates.parquet")
    updates.loc[3, "handover_s"] = 0.4  # a training step was under way when the order came
    updates.to_parquet(tmp_path / "updates.parquet")
    (flag,) = [flag for flag in examine(load_training(tmp_path)).flags if flag.name == "stops"]
    assert "in 1 of 12 steps" in flag.text
    assert "at most 400 ms" in flag.text


def test_training_that_the_gpu_time_does_not_show_is_flagged(tmp_path: Path) -> None:
    folder: RunFolder = write_policy(tmp_path, PLANS[2])
    intervals = folder.intervals()
    hidden = intervals["cause"].isin(["drafter_activation", "drafter_training"])
    intervals["cause"] = intervals["cause"].astype(str).mask(hidden, "tail_idle")
    folder.write(folder.summary(), folder.responses(), intervals, folder.steps())
    facts = examine(load_training(tmp_path))
    (flag,) = [flag for flag in facts.flags if flag.name == "unbooked"]
    assert "36,000 tokens of drafter training" in flag.text


def test_amdahl() -> None:
    share, gain = np.array([0.0, 0.5, 1.0]), np.array([2.0, 2.0, 2.0])
    np.testing.assert_allclose(amdahl(share, gain), [1.0, 1 / 0.75, 2.0])
