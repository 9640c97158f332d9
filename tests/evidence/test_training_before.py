"""What a training is predicted from: the pace and the phases of committed runs, and the calibrated engine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from evidence import training_runs
from evidence.training_before import (
    FOUR,
    TWO,
    Before,
    Pace,
    Question,
    UpdateLaw,
    answer,
    config_of,
    exponent_of,
    learned,
    pace_of,
    runs_in,
    update_law,
)
from evidence.training_claims import seconds
from evidence.training_runs import CALIBRATION, CPU, CUDA, calibrate, calibration_of, settings_of
from tlt.sim.steptimes.calibration import load
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.runfolder import RunFolder, read_struct
from tltsched.draft_config import chain

PACE = Pace(submit_s=0.001, first=3.0, decode=1.5)
LAW = UpdateLaw(fixed_s=0.1, s_per_token=1e-5)


def question(workers: int, pace: Pace = PACE) -> Question:
    """Ask for the policy without drafts, which is predicted in a second."""
    return Question(
        policy="none", moves=False, workers=workers, calibration=CALIBRATION, pace=pace, update=LAW, basis=TWO
    )


def test_the_pace_accounts_for_the_time_of_rollouts() -> None:
    """Requests, first engine steps and decode at their pace are what every worker took."""
    pace, law = pace_of(FOUR.policies, CALIBRATION), load(str(CALIBRATION)).coefficients
    assert 0.001 < pace.submit_s < 0.0015
    assert 1.1 < pace.decode < 1.2
    path = FOUR.policies / "none"
    rows = read_engine_steps(path)
    assert rows is not None
    ends_s = (rows["t_s"] + rows["seconds"]).groupby([rows["step"], rows["worker"]]).max()
    begun_s = RunFolder(path).steps().set_index("step")["start_s"]
    took_s = (ends_s - begun_s.reindex(ends_s.index.get_level_values(0)).to_numpy()).sum()
    batch = rows["batch"].to_numpy(np.float64)
    decode_s = law.fixed_s(chain(0), "not_configured", batch) + law.kv_s_per_token * rows["context_tokens"]
    modelled_s = pace.submit_s * len(RunFolder(path).responses()) + pace.decode * decode_s.sum()
    modelled_s += pace.first * law.prefill_chunk_s * len(ends_s)
    assert modelled_s == pytest.approx(took_s, rel=0.02)


def test_a_queue_of_prompts_is_no_part_of_the_pace_of_decode() -> None:
    """On two H200 half of the requests joined a batch: engine steps around took up to five times as long."""
    two, four = (pace_of(each.policies, CALIBRATION) for each in (TWO, FOUR))
    assert two.decode < 1.0 < four.decode
    assert two.submit_s == pytest.approx(four.submit_s, rel=0.2)
    assert two.first == pytest.approx(four.first, rel=0.2)


def test_an_update_of_fewer_tokens_is_not_so_much_shorter() -> None:
    assert LAW.seconds(80_000, workers=4, minibatches=2) == pytest.approx(0.2 + 0.2)
    assert TWO.moving is not None
    law = update_law([*runs_in(TWO.policies), *runs_in(TWO.moving)], TWO.workers)
    four, two = (law.seconds(70_000, workers, 2) for workers in (4, 2))
    assert two / 2 < four < two
    assert two == pytest.approx(0.49, abs=0.03)  # median over the five policies


def test_more_workers_roll_out_and_update_faster() -> None:
    two, four = (answer(question(workers)) for workers in (2, 4))
    assert four.rollout_s < two.rollout_s
    assert four.step_s - four.rollout_s < two.step_s - two.rollout_s
    assert two.steps == CUDA.settings["steps"]
    assert two.rollout_range_s is not None
    assert two.rollout_range_s[0] < two.rollout_s < two.rollout_range_s[1]


def test_what_comes_before_the_first_batch_is_in_every_rollout() -> None:
    """64 requests of a worker at 2 ms, and a first engine step that takes thrice its time."""
    calibration = load(str(CALIBRATION))
    responses = RunFolder(TWO.policies / "none").responses()
    first_s = calibration.coefficients.chunk_s(64 * responses["prompt_tokens"].mean(), 0.0)
    slow, quick = (
        answer(question(4, Pace(submit_s=submit_s, first=first, decode=1.0)))
        for submit_s, first in ((0.002, 3.0), (0.0, 1.0))
    )
    more_s = 0.002 * 64 + 2.0 * first_s
    assert slow.rollout_s - quick.rollout_s == pytest.approx(more_s, abs=1e-3)
    assert slow.step_s - quick.step_s == pytest.approx(more_s, abs=1e-3)


def test_the_committed_prediction_is_still_read() -> None:
    before = read_struct(TWO.policies.parent / "predicted.json", Before)
    assert (len(before.policies), before.workers, before.pace) == (5, 2, None)
    assert before.policies[0].rollout_s > seconds(TWO.policies / "none")["rollout"].mean()


def test_the_engine_of_the_training_is_what_is_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every setting of the engine is passed on; the model alone is one of its own."""
    calls: list[tuple[str, ...]] = []

    def tlt(out: Path, limit_s: float, *arguments: str) -> bool:
        assert out == tmp_path
        assert limit_s > 0
        calls.append(arguments)
        return True

    monkeypatch.setattr(training_runs, "tlt", tlt)
    assert calibrate(CUDA, "cuda", tmp_path)
    made, timed = calls
    assert made[:3] == ("real", "model", "SmolLM2-135M")
    assert timed[:2] == ("real", "calibrate")
    told = dict(each.split("=", 1) for each in timed if "=" in each)
    engine = config_of({}).engine
    assert told["engine.max_running"] == str(engine.max_running)
    assert told["engine.graphs"] == f'"{engine.graphs}"'
    assert told["engine.memory_fraction"] == str(engine.memory_fraction)
    assert told["drafter.ks"] == "[0, 2, 3, 4, 6]"
    assert told["model.folder"] == f'"{tmp_path / "shape" / "model"}"'
    assert settings_of(CUDA, "cuda", tmp_path)["model.folder"] == str(tmp_path / "model")


def test_policies_go_by_what_was_calibrated(tmp_path: Path) -> None:
    assert calibration_of(tmp_path) == CALIBRATION
    (tmp_path / "calibration.json").touch()
    assert calibration_of(tmp_path) == tmp_path / "calibration.json"
    assert calibrate(CPU, "cpu", tmp_path)  # it is there


def test_another_head_accepts_what_it_was_measured_to() -> None:
    """The power of survival that a measured acceptance length asks for, at K = 4 with the bonus token."""
    frozen = TWO.policies / "static-4-frozen"
    survival = np.array(learned(frozen, "").fit.survival_by_position[:4])
    assert exponent_of(frozen, None) == 1.0
    for accepted in (2.0, 3.0, 4.0):
        power = exponent_of(frozen, accepted)
        assert 1 + (survival**power).sum() == pytest.approx(accepted)
    assert exponent_of(frozen, 4.0) < 1 < exponent_of(frozen, 2.0)


def test_the_lengths_of_a_run_can_be_asked_for() -> None:
    own = answer(msgspec.structs.replace(question(2), lengths_of=TWO.policies / "none"))
    several = answer(question(2))
    assert own.rollout_range_s is None
    assert several.rollout_range_s is not None
    assert several.rollout_range_s[0] <= own.rollout_s <= several.rollout_range_s[1]
