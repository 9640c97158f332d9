"""Logs in published layouts with figures of our own: what a rollout is made of, and what follows.

A log is written here line by line; what it should give is worked out from what its lines state.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tlt.analysis.comparison.compare import compare as table_of
from tlt.analysis.comparison.ranking import judge
from tlt.analysis.load import load_runs
from tlt.analysis.report import present
from tlt.sim.counterfactual.answer import counterfactual
from tlt.sim.counterfactual.observed_run import observe
from tlt.sim.counterfactual.settings import replay_of
from tlt.traces.importers.reading.items import Options
from tlt.traces.results.answer import Answer, PolicyAnswer
from tlt.traces.results.counterfactual import OBSERVED_TRACE, Counterfactual, read_counterfactual
from tltsched.errors import InputError

SETTINGS: dict[str, Any] = {
    "run": {"records": False, "acceptance": False},
    "hardware": {"gpus": 8, "tp": 1, "gpu": "H100", "model": "Qwen2.5-7B"},
    "cost": {"source": "vllm-0.32-h100-qwen2.5-7b"},
    "acceptance": {
        "kind": "per_position",
        "request_spread": 0.0,
        "length_correlation": 0.0,
        "group_correlation": 0.0,
    },
}
Stated = dict[str, float]
LENGTHS: Stated = {
    "response_length/mean": 1500, "response_length/max": 8192, "response_length/min": 60,
    "response_length/clip_ratio": 0.03, "prompt_length/mean": 100, "perf/total_num_tokens": 819_200,
}  # fmt: skip
LOGPROB_S, UPDATE_S, REST_S = 8.0, 40.0, 2.0
TRAINED_S = LOGPROB_S + UPDATE_S


def plain(step: int) -> Stated:
    """512 responses in 60 to 64 s, a step of 50 s more."""
    gen = 60.0 + step % 5
    return {**LENGTHS, "timing_s/gen": gen, "timing_s/old_log_prob": LOGPROB_S,
            "timing_s/update_actor": UPDATE_S, "timing_s/step": gen + TRAINED_S + REST_S}  # fmt: skip


def written(path: Path, steps: int, stated: Callable[[int], Stated]) -> Path:
    lines = (
        f"(TaskRunner pid=3) step:{step} - "
        + " - ".join(f"{name}:{value}" for name, value in stated(step).items())
        for step in range(1, steps + 1)
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def answered(
    log: Path, policies: list[str], settings: dict[str, Any] = SETTINGS, draws: int = 0
) -> tuple[Counterfactual, Answer | None]:
    out = log.with_suffix("")
    replay = replay_of(observe(log, None, Options()), settings, out / OBSERVED_TRACE, policies)
    case = counterfactual(replay, out, draws, None, lambda *_: None)
    runs = load_runs(out)
    return case, None if case.needed else judge(table_of(runs), runs, case.price_usd_per_gpu_hour)


def policy(answer: Answer | None, name: str) -> PolicyAnswer:
    assert answer is not None
    return next(each for each in answer.policies if each.policy == name)


def gain(log: Path, settings: dict[str, Any] = SETTINGS, draws: int = 0) -> tuple[float, float, float]:
    """Return the gain of goodput and its interval."""
    found = policy(answered(log, ["none", "goodput"], settings, draws)[1], "goodput").speedup
    assert found.interval is not None
    return (*found.interval, found.value)


def test_a_number_of_responses_that_milliseconds_a_token_state(tmp_path: Path) -> None:
    """6.1 s over 0.635 ms are 9,606 tokens, of 200 in the mean: 48 responses, on one GPU."""

    def stated(step: int) -> Stated:
        gen = round(6.0 + 0.1 * step, 3)
        return {"response_length/mean": 200, "response_length/max": 512, "response_length/min": 20,
                "response_length/clip_ratio": 0.125, "prompt_length/mean": 100, "timing_s/gen": gen,
                "timing_s/ref": 0.7, "timing_s/update_actor": 2.0, "timing_s/step": gen + 3.0,
                "timing_per_token_ms/gen": round(gen / 9.6, 3)}  # fmt: skip

    one = SETTINGS | {"hardware": SETTINGS["hardware"] | {"gpus": 1}}
    case, answer = answered(written(tmp_path / "run.log", 6, stated), ["none", "goodput"], one)
    assert case.lengths.responses == 6 * 48
    # with the 256 that used to be assumed the gain was 1.28x
    assert policy(answer, "goodput").speedup.value == pytest.approx(1.63, abs=0.02)


def test_a_trainers_wait_is_refused(tmp_path: Path) -> None:
    """20 s of gen in a step of 276: the trainer's wait, says fully_async/*, and no rollout."""

    def stated(step: int) -> Stated:
        return {**LENGTHS, "fully_async/count/current_param_version": step,
                "fully_async/trainer/idle_ratio": 0.07, "timing_s/gen": 20.0 + step / 5,
                "timing_s/update_actor": 251.0, "timing_s/param_sync": 2.0,
                "timing_s/step": 276.0}  # fmt: skip

    log = written(tmp_path / "run.log", 6, stated)
    with pytest.raises(InputError, match=r"fully_async/.* is logged only then") as refused:
        observe(log, None, Options())
    assert "lengths alone" in str(refused.value)


@pytest.mark.slow
def test_three_generations_are_no_slow_one(tmp_path: Path) -> None:
    """Three times the seconds of the control, and train/num_gen_batches says why: the same factor, more gain.

    The control's rollouts take R of R + 50 s. Cut to R / r by goodput, three take 3 R / r of 3 R + 50.
    """
    control = written(tmp_path / "control.log", 6, plain)

    def stated(step: int) -> Stated:
        once = plain(step)
        more = 2 * once["timing_s/gen"]
        return {**once, "train/num_gen_batches": 3, "timing_s/gen": 3 * once["timing_s/gen"],
                "timing_s/step": once["timing_s/step"] + more}  # fmt: skip

    one, once = answered(control, ["none", "goodput"])
    three, thrice = answered(written(tmp_path / "three.log", 6, stated), ["none", "goodput"])
    assert one.fit is not None
    assert three.fit is not None
    assert three.fit.generations == 3
    assert three.fit.scale.value == pytest.approx(one.fit.scale.value, rel=1e-6)
    rollout_s = policy(once, "goodput").step_s - LOGPROB_S - UPDATE_S - REST_S
    expected_s = 3 * rollout_s + LOGPROB_S + UPDATE_S + REST_S
    assert policy(thrice, "goodput").step_s == pytest.approx(expected_s, rel=1e-6)
    # without the key there is a misfit of more than 3, and nothing is ranked
    silent = written(
        tmp_path / "silent.log", 6,
        lambda step: {name: value for name, value in stated(step).items() if name != "train/num_gen_batches"},
    )  # fmt: skip
    case, answer = answered(silent, ["none", "goodput"])
    assert answer is None
    assert any("filtered out" in each for each in case.needed)


def tools(step: int) -> Stated:
    """190 s of tools at the most, 63 s of generating at the most, of a rollout of 262 s."""
    more = 4.0 * (step % 4)
    return {**LENGTHS, "response_length/mean": 1900, "response_length/max": 5500, "response_length/min": 150,
            "response_length/clip_ratio": 0.0, "prompt_length/mean": 1200, "perf/total_num_tokens": 793_600,
            "num_turns/mean": 9.5, "timing_s/agent_loop/generate_sequences/mean": 31.5 + more / 4,
            "timing_s/agent_loop/generate_sequences/max": 63.0 + more / 2,
            "timing_s/agent_loop/tool_calls/mean": 71.0, "timing_s/agent_loop/tool_calls/max": 190.0,
            "timing_s/gen": 262.0 + more, "timing_s/old_log_prob": 6.0, "timing_s/update_actor": 25.0,
            "timing_s/update_weights": 3.0, "timing_s/step": 297.0 + more}  # fmt: skip


def test_tools_are_not_decoded(tmp_path: Path) -> None:
    log = written(tmp_path / "run.log", 8, tools)
    low, high, value = gain(log)
    # of about 303 s no more than 66 are generated of the last response
    assert value <= 303 / (303 - 66)
    assert 1.0 <= low < value < high < 1.2
    case = read_counterfactual(log.with_suffix(""))
    assert case.amdahl() is not None
    assert case.amdahl()[1] == pytest.approx(303 / (303 - 66), rel=0.02)  # type: ignore[index]
    with pytest.raises(InputError, match="wait for tools"):
        answered(log, ["none", "none@tail_batching"])
    assert any("left out" in flag for flag in case.flags)


@pytest.mark.slow
def test_tools_that_nobody_logged_are_a_misfit_that_is_not_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stated(step: int) -> Stated:
        return {
            name: value
            for name, value in tools(step).items()
            if "agent_loop" not in name and "turns" not in name
        }

    log = written(tmp_path / "run.log", 8, stated)
    case, answer = answered(log, ["none", "goodput"])
    assert answer is None
    assert case.fit is not None
    assert case.fit.scale.value > 2
    out = log.with_suffix("")
    assert not (out / "goodput").exists()
    from rich.console import Console

    present(out, Console())
    told = capsys.readouterr().out
    assert "Nothing is ranked" in told
    assert "tools" in told
    assert "fastest" not in told
    assert not (out / "answer.json").exists()
    # with the turns alone the log says that there is waiting, and not how much: from none to all that fits
    turns = written(tmp_path / "turns.log", 8, lambda step: stated(step) | {"num_turns/mean": 9.5})
    low, high, _ = gain(turns)
    assert low < 1.08
    assert high < 303 / (303 - 2 * 40)  # the model's 37 s may be 74


@pytest.mark.slow
def test_training_on_a_share_of_the_cluster_needs_longer(tmp_path: Path) -> None:
    """62 s of rollout, 48 s of training on 8 GPUs: a quarter of them needs 192 s, and 48 at the least."""
    log = written(tmp_path / "run.log", 8, plain)
    shares = (0.25, 0.5, 0.75, 0.875)
    names = ["none", *(f"none@bounded_async:{share}" for share in shares)]
    _, answer = answered(log, names)
    found = {share: policy(answer, f"none@bounded_async:{share}").speedup for share in shares}
    step_s = policy(answer, "none").step_s
    quarter = found[0.25]
    assert quarter.value == pytest.approx(step_s / (TRAINED_S / 0.25 + REST_S), rel=0.02)
    assert quarter.interval is not None
    assert quarter.interval[1] == pytest.approx(2.19, abs=0.1)  # seconds that do not grow at all
    # the search over shares has an interior optimum, near where rollouts and training take equally long
    best = max(found, key=lambda share: found[share].value)
    assert best == 0.75
    assert 1.5 < found[best].value < 1.8


def test_gpus_that_a_log_states_are_taken_or_held_against_those_given(tmp_path: Path) -> None:
    """819,200 tokens in a step of 111 s at 922.5 a second and GPU are 8 GPUs."""
    log = written(
        tmp_path / "run.log", 3,
        lambda step: plain(step) | {"perf/throughput": 819_200 / 8 / plain(step)["timing_s/step"]},
    )  # fmt: skip
    hardware = {name: value for name, value in SETTINGS["hardware"].items() if name != "gpus"}
    observed = observe(log, None, Options())
    replay = replay_of(observed, SETTINGS | {"hardware": hardware}, tmp_path / "x.parquet", ["none"])
    assert next(iter(replay.configs.values())).hardware.gpus == 8
    with pytest.raises(InputError, match="about 8"):
        replay_of(
            observed, SETTINGS | {"hardware": hardware | {"gpus": 16}}, tmp_path / "x.parquet", ["none"]
        )


def test_a_step_that_its_parts_do_not_explain_is_not_ranked(tmp_path: Path) -> None:
    """A step in milliseconds beside parts in seconds: 99.9 % of it would be kept by every policy."""
    log = written(tmp_path / "run.log", 3, lambda step: plain(step) | {"timing_s/step": 111_000.0})
    case, answer = answered(log, ["none", "goodput"])
    assert answer is None
    assert "another unit" in case.needed[0]
    known = {"timing_s/testing": 300.0, "timing_s/step": plain(1)["timing_s/step"] + 300.0}
    case, answer = answered(written(tmp_path / "known.log", 1, lambda step: plain(step) | known), ["none"])
    assert not case.needed


def slime(folder: Path, rollout_s: float, **more: float) -> Path:
    """Write what slime's rollout manager and its training actor print of three steps."""
    lines = []
    for step in range(1, 4):
        took_s = rollout_s + step
        rollout: dict[str, float] = {
            "rollout/response_len/mean": 1000.0, "rollout/response_len/median": 800.0,
            "rollout/response_len/max": 8000, "rollout/response_len/min": 40,
            "rollout/truncated_ratio": 0.0, "perf/rollout_time": took_s, **more,
        }  # fmt: skip
        training = {
            "perf/actor_train_time": 30.0, "perf/log_probs_time": 5.0, "perf/update_weights_time": 2.0,
            "perf/train_wait_time": took_s + 3.0, "perf/step_time": took_s + 40.0,
        }  # fmt: skip
        lines.append(f"(RolloutManager pid=11) [2026-01-0{step} 10:00:00] x.py:9 - perf {step}: {rollout}")
        lines.append(f"(TrainRayActor pid=12) [2026-01-0{step} 10:04:00] y.py:9 - perf {step}: {training}")
    path = folder / "slime.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


SMALL_MODEL = SETTINGS | {
    "hardware": SETTINGS["hardware"] | {"model": "Qwen2.5-1.5B"},
    "cost": {"source": "roofline"},
}


@pytest.mark.slow
def test_a_step_of_ten_minutes_is_not_explained_by_its_lengths(tmp_path: Path) -> None:
    """128 x 32 responses of 1,000 tokens of a small model on 8 GPUs, 600 s a step: it is not the tail."""
    log = slime(tmp_path, 560.0)
    observed = observe(log, None, Options(responses=128 * 32))
    replay = replay_of(observed, SMALL_MODEL, tmp_path / "out" / OBSERVED_TRACE, ["none"])
    case = counterfactual(replay, tmp_path / "out", 0, None, lambda *_: None)
    assert case.fit is not None
    assert case.fit.scale.value > 5
    assert any("instead of a roofline" in each for each in case.needed)
    assert case.lengths.responses == 3 * 128 * 32


def test_gpus_that_roll_out_follow_from_slimes_rate(tmp_path: Path) -> None:
    """256 responses of 1,000 tokens in about 32 s at 2,000 tokens a second and GPU are 4 GPUs, not 8."""
    log = slime(tmp_path, 30.0, **{"perf/tokens_per_gpu_per_sec": 2000.0})
    observed = observe(log, None, Options(responses=256))
    stated = observed.stated_gpus()
    assert stated is not None
    assert stated[0] == pytest.approx(4, rel=0.05)
    with pytest.raises(InputError, match=r"--gpus.*about 4"):
        replay_of(observed, SMALL_MODEL, tmp_path / "x.parquet", ["none"])


def trl(folder: Path, step_s: float) -> Path:
    """Write what TRL prints: a dict a step, with one time of all of it."""
    lines = []
    for step in range(1, 5):
        stated = {"loss": 0.01, "num_tokens": 204_800.0 * step, "completions/mean_length": 700.0,
                  "completions/min_length": 30.0, "completions/max_length": 4096.0,
                  "completions/clipped_ratio": 0.02, "step_time": step_s + step / 10}  # fmt: skip
        lines += [f"  1%|          | {step}/900 [00:20<5:00:00, 20.00s/it]", str(stated)]
    path = folder / "trl.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_step_that_is_timed_as_a_whole_bounds_its_rollout(tmp_path: Path) -> None:
    """TRL times steps alone. The rollout is half of what the model says at least, and the step at most."""
    observed = observe(trl(tmp_path, 60.0), None, Options(responses=256))
    replay = replay_of(observed, SETTINGS, tmp_path / "out" / OBSERVED_TRACE, ["none", "goodput"])
    case = counterfactual(replay, tmp_path / "out", 0, None, lambda *_: None)
    runs = load_runs(tmp_path / "out")
    answer = judge(table_of(runs), runs, case.price_usd_per_gpu_hour)
    assert policy(answer, "none").step_s == pytest.approx(60.25, rel=0.001)
    low, high = policy(answer, "goodput").speedup.interval or (0.0, 0.0)
    assert 1.0 < low < 1.2 < high
    assert any("not their rollouts" in flag for flag in case.flags)
    with pytest.raises(InputError, match="not their rollouts"):
        replay_of(observed, SETTINGS, tmp_path / "x.parquet", ["none", "none@bounded_async"])
    short = observe(trl(tmp_path, 5.0), None, Options(responses=256))  # several steps may share a generation
    replay = replay_of(short, SETTINGS, tmp_path / "short" / OBSERVED_TRACE, ["none"])
    assert counterfactual(replay, tmp_path / "short", 0, None, lambda *_: None).needed
