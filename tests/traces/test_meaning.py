"""What keys of metrics mean: phases by framework, waiting within rollouts, rollouts beside training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tlt.traces.doctor.base import Limits
from tlt.traces.doctor.diagnosis import examine
from tlt.traces.doctor.subject import read_subject
from tlt.traces.importers.meaning import FRAMEWORKS, framework_of
from tlt.traces.importers.meaning.key import PHASE_NAMES
from tlt.traces.importers.meaning.rollout_seconds import Fixed, fixed_seconds
from tlt.traces.importers.phase_sentences import sentences
from tlt.traces.importers.phases import PhaseTimes, read_phases
from tlt.traces.importers.reading.items import Options

VERL = FRAMEWORKS["verl"]
LOOP = "timing_s/agent_loop"


def times_of(folder: Path, *steps: dict[str, float]) -> PhaseTimes:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
    return read_phases(path)


@pytest.mark.parametrize(
    ("framework", "step"),
    [
        ("slime", {"perf/rollout_time": 9, "perf/log_probs_time": 2, "perf/actor_train_time": 5,
                   "perf/update_weights_time": 1, "perf/step_time": 20, "perf/train_wait_time": 12}),
        ("SkyRL", {"timing/generate": 9, "timing/fwd_logprobs_values_reward": 2,
                   "timing/train_critic_and_policy": 5,
                   "timing/sync_weights_to_inference_engines": 1, "timing/step": 20}),
        ("OpenRLHF", {"timing/generation": 9, "timing/make_experience": 2, "timing/ppo_train": 5,
                      "timing/broadcast": 1, "timing/step_total": 20}),
        ("ROLL", {"time/step_generate": 9, "time/old_log_probs": 2, "time/step_train": 5,
                  "time/step_model_update": 1, "time/step_total": 20}),
        ("NeMo-RL", {"timing/train/generation": 9, "timing/train/policy_and_reference_logprobs": 2,
                     "timing/train/policy_training": 5, "timing/train/weight_sync": 1,
                     "timing/train/total_step_time": 20}),
    ],
)  # fmt: skip
def test_phases_of_every_synchronous_framework(
    framework: str, step: dict[str, float], tmp_path: Path
) -> None:
    times = times_of(tmp_path, {"step": 3, **step})
    assert times.framework == framework
    told = {name: time.mean_s for name, time in times.phases.items()}
    assert told == {"step": 20, "gen": 9, "logprob": 2, "policy_update": 5, "weight_sync": 1}
    assert not times.rollouts.side_by_side


@pytest.mark.parametrize(
    ("framework", "step"),
    [
        ("verl", {"timing_s/gen": 20.0, "timing_s/step": 276.0, "fully_async/trainer/idle_ratio": 0.07}),
        ("verl", {"timing_s/gen": 20.0, "timing_s/step": 276.0, "timing_s/param_sync": 2.0}),
        ("verl", {"timing_s/gen": 90.0, "timing_s/step": 100.0, "timing_s/wait_prev_gen": 5.0}),
        ("NeMo-RL", {"timing/train/exposed_generation": 5.0, "timing/train/total_step_time": 60.0}),
        ("SkyRL", {"timing/step": 200.0, "timing/wait_for_generation_buffer": 187.0}),
        ("slime", {"perf/rollout_time": 100.0, "perf/train_wait_time": 30.0, "perf/step_time": 110.0}),
        ("verl", {"timing_s/gen": 90.0, "timing_s/update_actor": 60.0, "timing_s/step": 100.0}),
        ("AReaL", {"timeperf/rollout": 4.0, "timeperf/train_step": 50.0}),
        ("prime-rl", {"time/step": 9.0, "time/generate_completions": 5.0}),
        ("ROLL", {"time/step_total": 9.0, "time/step_generate": 5.0, "time/get_batch_cost_train": 1.0}),
        ("TRL", {"step_time": 9.0, "sampling/queue_wait_time_s": 5.0}),
    ],
)
def test_a_trainers_wait_is_no_rollout(framework: str, step: dict[str, float], tmp_path: Path) -> None:
    times = times_of(tmp_path, {"step": 1, **step})
    assert times.framework == framework
    assert times.rollouts.side_by_side
    assert "gen" not in times.phases
    assert "none is a part of a step" in " ".join(sentences(times))


def test_lines_of_two_processes_are_one_step(tmp_path: Path) -> None:
    rollout = {"perf/rollout_time": 201.0}
    training = {"perf/actor_train_time": 60.0, "perf/step_time": 281.0, "perf/train_wait_time": 206.0}
    times = times_of(
        tmp_path,
        {"step": 1, **rollout},
        {"step": 2, **rollout},
        {"step": 1, **training},
        {"step": 2, **training},
    )
    assert (times.lines, times.steps) == (2, [1, 2])
    assert {time.observations for time in times.phases.values()} == {2}
    again = times_of(tmp_path, {"step": 1, **rollout}, {"step": 1, **rollout})
    assert again.lines == 2  # a run that began anew


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, Fixed(0, 0, 100)),
        # another that waits may end last once all are decoded faster, if any waits
        ({f"{LOOP}/slowest/generate_sequences": 70}, Fixed(30, 30, 70)),
        ({f"{LOOP}/slowest/generate_sequences": 70, f"{LOOP}/generate_sequences/max": 80,
          f"{LOOP}/generate_sequences/min": 5, f"{LOOP}/tool_calls/max": 60}, Fixed(30, 60, 80)),
        # the longest was generated for 90 s, and no response waited
        ({f"{LOOP}/generate_sequences/max": 90, f"{LOOP}/generate_sequences/min": 4,
          f"{LOOP}/tool_calls/max": 0}, Fixed(10, 10, 90)),
        # one that waited for 60 s may have ended last, generated for 90 - 60 s or more
        ({f"{LOOP}/generate_sequences/max": 90, f"{LOOP}/generate_sequences/min": 4,
          f"{LOOP}/tool_calls/max": 60}, Fixed(10, 70, 90)),
        # or for no less than the shortest
        ({f"{LOOP}/generate_sequences/max": 90, f"{LOOP}/generate_sequences/min": 4,
          f"{LOOP}/tool_calls/max": 99}, Fixed(10, 96, 90)),
        ({f"{LOOP}/generate_sequences/max": 90, f"{LOOP}/tool_calls/max": 20, f"{LOOP}/compute_score/max": 5},
         Fixed(10, 35, 90)),
        ({f"{LOOP}/generate_sequences/max": 90, "num_turns/mean": 6.0}, Fixed(10, 100, 90)),
        ({"num_turns/mean": 6.0}, Fixed(0, 100, 100)),
        ({"num_turns/mean": 2.0}, Fixed(0, 0, 100)),
        ({"episode/length/mean": 1.0}, Fixed(0, 0, 100)),
        ({"episode/length/mean": 1.7}, Fixed(0, 100, 100)),
        ({"traj/llm_time_max": 90, "traj/llm_time_min": 20, "traj/env_time_max": 30, "traj/steps_mean": 17},
         Fixed(10, 40, 90)),
        ({"timing_s/reshard": 3.0}, Fixed(3, 3, 97)),
        ({f"{LOOP}/generate_sequences/max": 900}, Fixed(0, 0, 100)),  # of another clock: never below 0
        ({f"{LOOP}/slowest/generate_sequences": 25, "train/num_gen_batches": 2}, Fixed(50, 50, 50)),
        # under a name that nobody knows: beside the rollout, or within it
        ({"timing_s/step": 150, "timing_s/update_actor": 5, "timing_s/mine": 40}, Fixed(0, 40, 100)),
        ({"timing_s/step": 150, "timing_s/testing": 40}, Fixed(0, 0, 100)),
    ],
)  # fmt: skip
def test_seconds_that_no_draft_shortens(stated: dict[str, float], expected: Fixed) -> None:
    found = fixed_seconds(VERL, {"timing_s/gen": 100.0, **stated}, 100.0)
    assert found == pytest.approx(expected)


def test_what_is_known_of_a_rollout_is_said(tmp_path: Path) -> None:
    step = {"timing_s/gen": 100.0, "timing_s/step": 150.0, "timing_s/testing": 30.0, "num_turns/mean": 5.0,
            f"{LOOP}/slowest/generate_sequences": 20.0, "train/num_gen_batches": 2}  # fmt: skip
    times = times_of(tmp_path, {"step": 1, **step}, {"step": 2, **step})
    assert times.rollouts.fixed_least.values_s == [60.0, 60.0]  # 100 - 2 * 20
    assert times.rollouts.generations == [2.0, 2.0]
    told = " ".join(sentences(times))
    assert "2 generations" in told
    assert "60 s are waiting for tools" in told
    assert "may hold what tools said" in told
    assert "timing_s/testing 30 s" in told


def test_every_framework_has_a_step_and_no_name_twice() -> None:
    for framework in FRAMEWORKS.values():
        assert framework.of("step")
        names = [name for key in framework.keys for name in key.names]
        assert len(names) == len(set(names))
        for key in framework.keys:
            for name in key.names:
                assert framework.key_of(name) is key
                if key.meaning in PHASE_NAMES:
                    assert framework_of({name: 1.0}) is framework


def test_the_doctor_finds_waiting_and_says_what_rollouts_without_it_could_gain(tmp_path: Path) -> None:
    lengths = {"response_length/mean": 300, "response_length/max": 900, "perf/total_num_tokens": 40_000,
               "prompt_length/mean": 100}  # fmt: skip
    step = {**lengths, "timing_s/gen": 100.0, "timing_s/step": 150.0, "timing_s/update_actor": 40.0,
            f"{LOOP}/generate_sequences/max": 30.0, f"{LOOP}/generate_sequences/min": 10.0,
            f"{LOOP}/tool_calls/max": 80.0}  # fmt: skip
    times_of(tmp_path, {"step": 1, **step}, {"step": 2, **step})
    found = examine(read_subject(tmp_path / "metrics.jsonl", Options()), Limits())
    told = {one.check: one for one in found.findings}
    assert "70 to 90 s are waiting" in told["waiting"].found
    # 30 of 150 s are generated at the most, so a step of 120 s is left
    assert "at best, with rollouts that take no time, a step is 1.25 times as fast" in told["amdahl"].found


def test_one_odd_wait_is_no_asynchronous_run(tmp_path: Path) -> None:
    step = {"perf/rollout_time": 100.0, "perf/step_time": 160.0, "perf/actor_train_time": 50.0}
    waited = [
        {"step": number, **step, "perf/train_wait_time": 20.0 if number == 1 else 108.0}
        for number in (1, 2, 3)
    ]
    assert not times_of(tmp_path, *waited).rollouts.side_by_side
    dropped = {**step, "perf/train_wait_time": 108.0, "rollout/dynamic_filter/drop_zero_std_0.0": 12}
    times = times_of(tmp_path, {"step": 1, **dropped}, {"step": 2, **dropped})
    assert "generated and dropped (rollout/dynamic_filter/drop_zero_std_0.0)" in " ".join(sentences(times))


def test_names_that_say_milliseconds_are_seconds(tmp_path: Path) -> None:
    step = {"timing_ms/gen": 62_000.0, "timing_ms/update_actor": 40_000.0, "timing_ms/step": 111_000.0}
    times = times_of(tmp_path, {"step": 1, **step}, {"step": 2, **step})
    assert {name: time.mean_s for name, time in times.phases.items()} == {
        "step": 111.0, "gen": 62.0, "policy_update": 40.0,
    }  # fmt: skip
    ours = times_of(tmp_path, {"step": 1, "perf/rollout_time_ms": 5_000.0, "perf/step_time": 9.0})
    assert ours.phases["gen"].mean_s == 5.0


def test_a_file_of_before_is_known_by_its_framework() -> None:
    before = PhaseTimes(source="x", framework="prime-rl", steps=[1], lines=1)
    assert "side by side" in before.side_by_side()
    assert PhaseTimes(source="x", framework="verl").side_by_side() == ""
