from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from tests.sim.observed_world import GIVEN, HARDWARE, PHASES_S, REST_S, TRUE_SCALE, lengths, write_observed
from tlt.sim.config import resolve
from tlt.sim.counterfactual.answer import counterfactual, lengths_to_replay
from tlt.sim.counterfactual.fit_to_log import Times, fit_means, fit_scale
from tlt.sim.counterfactual.log_times import Logged, logged_of, phases_by_step_s
from tlt.sim.counterfactual.observed_run import Observed, observe
from tlt.sim.counterfactual.settings import RESAMPLED_STEPS, policies_of, replay_of
from tlt.sim.model.phases import OTHER
from tlt.sim.simulation import Simulation
from tlt.traces.importers.phases import PhaseTimes
from tlt.traces.importers.reading.items import Options
from tlt.traces.lengths.files import write_trace
from tlt.traces.lengths.run_as_trace import GROUPS_OF_A_STEP
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.counterfactual import (
    OBSERVED_TRACE,
    Counterfactual,
    LoggedTime,
    read_counterfactual,
)
from tlt.traces.runs.runfolder import RunFolder, read_struct
from tltsched.errors import InputError

TRAINED = Path(__file__).parents[2] / "evidence/runs/h200-smollm2-train"
VERL_LOG = Path(__file__).parents[2] / "traces/importers/samples/verl_console.log"


def silent(policy: str, step: int) -> None:
    del policy, step


def answered(
    observed: Observed,
    out: Path,
    settings: dict[str, Any] = GIVEN,
    policies: list[str] | None = None,
    draws: int = 9,
) -> Counterfactual:
    replay = replay_of(observed, settings, out / OBSERVED_TRACE, policies)
    told = counterfactual(replay, out, draws, 2.0, silent)
    assert read_counterfactual(out) == told
    return told


def logged(**seconds: list[float]) -> Logged:
    times = {
        name: LoggedTime(name=name, mean_s=float(np.mean(values)), by_step_s=tuple(values))
        for name, values in seconds.items()
    }
    return Logged(source="measured by a test", times=times)


def test_a_run_of_the_model_is_reproduced_and_its_scale_is_found(tmp_path: Path) -> None:
    trace, phases = write_observed(tmp_path, lengths())
    observed = observe(trace, phases, Options())
    told = answered(observed, tmp_path / "out", policies=["static:2", "none@longest_first"])
    assert told.fit is not None
    assert told.fit.scale.value == pytest.approx(TRUE_SCALE, rel=0.02)
    assert told.fit.fitted_steps == (0, 1, 2)
    assert told.fit.judged_steps == (3, 4, 5)
    assert [error.quantity for error in told.fit.errors] == ["rollout seconds", "step seconds"]
    assert all(abs(error.error.value) < 0.02 for error in told.fit.errors)
    assert all(step.modelled_step_s == pytest.approx(step.step_s, rel=0.02) for step in told.steps)
    assert told.amdahl() is not None
    assert told.lengths.responses == 6 * 8 * 4
    assert "assumed" in told.acceptance_source
    assert any("Acceptance is assumed" in flag for flag in told.flags)


def test_phases_of_the_log_are_kept_by_every_policy(tmp_path: Path) -> None:
    trace, phases = write_observed(tmp_path, lengths(steps=2))
    out = tmp_path / "out"
    answered(observe(trace, phases, Options()), out, policies=["static:2"], draws=0)
    for name in ("none", "static-2"):
        run = RunFolder(out / name)
        after_s = (run.steps()["end_s"] - run.steps()["rollout_end_s"]).to_numpy()
        assert after_s == pytest.approx(sum(PHASES_S.values()) + REST_S)
        assert OTHER in set(run.intervals()["cause"])


def test_draws_keep_the_observed_rollouts_within_the_error_of_the_scale(tmp_path: Path) -> None:
    trace, phases = write_observed(tmp_path, lengths())
    out = tmp_path / "out"
    answered(observe(trace, phases, Options()), out, policies=["static:2"], draws=19)
    pinned = pd.read_parquet(out / "cost_draws.parquet").groupby(["run", "draw"])["step_s"].sum()
    spread = pinned.groupby("run").std() / pinned.groupby("run").mean()
    assert spread["none"] < 0.01
    assert spread["static-2"] > spread["none"]


def test_without_times_nothing_is_checked_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(lengths(steps=2), path)
    told = answered(observe(path, None, Options()), tmp_path / "out", policies=["static:2"])
    assert told.fit is None
    assert told.amdahl() is None
    assert told.steps[0].rollout_s is None
    assert any("nothing can be checked" in flag for flag in told.flags)
    assert any("phases after the rollout are modelled" in each for each in told.assumptions)


def test_one_step_gets_others_of_its_prompts(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(lengths(steps=1), path)
    observed = observe(path, None, Options())
    made = lengths_to_replay(observed, 0)
    sizes = made.rows.groupby(["step", "prompt_id"]).size()
    assert made.rows["step"].nunique() == RESAMPLED_STEPS
    assert set(sizes) == {4}
    first = made.rows[made.rows["step"] == 0]
    assert first["response_tokens"].tolist() == observed.trace.rows["response_tokens"].tolist()
    told = answered(observed, tmp_path / "out", policies=["none@tail_batching"])
    assert len(told.steps) == 1
    assert any("drawn from its prompts" in flag for flag in told.flags)


def test_default_policies_suit_the_acceptance(tmp_path: Path) -> None:
    chains = resolve(GIVEN | {"acceptance": {"kind": "per_position"}}, "none")
    assert policies_of(None, chains, "none")[:4] == ["none", "static:4", "tlt_chains", "goodput"]
    trees = resolve(GIVEN | {"acceptance": {"kind": "published_tree"}}, "none")
    assert "static:10_8_16" in policies_of(None, trees, "none")
    assert policies_of(["static:4", "none"], chains, "none") == ["none", "static:4"]
    assert policies_of(None, chains, "static:2")[:2] == ["static:2", "none"]


def test_groups_of_unequal_size_keep_the_order_of_samples(tmp_path: Path) -> None:
    whole = lengths(steps=2)
    observed = Observed(
        Trace(whole.rows.iloc[1:].reset_index(drop=True), whole.origin), None, "x", "x", {}, "none"
    )
    with pytest.raises(InputError, match="schedules that keep the order"):
        answered(observed, tmp_path / "named", policies=["none@tail_batching"])
    told = answered(observed, tmp_path / "out", draws=0)
    assert any("are left out" in flag for flag in told.flags)
    assert not (tmp_path / "out" / "none-tail_batching").exists()


def test_hardware_must_be_stated(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(lengths(steps=1), path)
    observed = observe(path, None, Options())
    for missing in HARDWARE:
        left = {name: value for name, value in HARDWARE.items() if name != missing}
        with pytest.raises(InputError, match=f"give {missing}"):
            answered(observed, tmp_path / "out", {"hardware": left})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("policies", [["statik:4"], ["none@tail"], ["static:4", "static:10_8_16"]])
def test_wrong_policies_are_refused(policies: list[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(lengths(steps=1), path)
    with pytest.raises(InputError):
        answered(observe(path, None, Options()), tmp_path / "out", policies=policies)
    assert not (tmp_path / "out").exists()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / "odd.txt"
    odd.write_text("nothing", encoding="utf-8")
    with pytest.raises(InputError, match="nothing that is known"):
        observe(odd, None, Options())
    phases = tmp_path / "phases.json"
    phases.write_text('{"source": 3}', encoding="utf-8")
    with pytest.raises(InputError, match=r"phases\.json"):
        observe(VERL_LOG, phases, Options())


def test_a_log_is_imported_with_its_phases() -> None:
    observed = observe(VERL_LOG, None, Options())
    assert observed.step_numbers() == [1, 2]
    assert observed.logged is not None
    gen = observed.logged.by_step_s("gen")
    assert gen is not None
    assert gen.tolist() == [36.5, 32.5]
    assert observed.first(1).step_numbers() == [1]
    with pytest.raises(InputError, match=r"workload\.steps"):
        observed.first(3)


def test_times_of_other_steps_leave_their_mean() -> None:
    observed = observe(VERL_LOG, None, Options())
    times = PhaseTimes(source="x", framework="verl", steps=[5, 6], lines=2)
    assert observed.logged is not None
    times.phases = {}
    found = logged_of(times, [1, 2])
    assert found.times == {}
    times = msgspec.convert(
        {"source": "x", "framework": "verl", "steps": [5, 6], "lines": 2,
         "phases": {"gen": {"names": ["g"], "observations": 2, "mean_s": 3.0, "values_s": [2.0, 4.0]}}},
        PhaseTimes,
    )  # fmt: skip
    found = logged_of(times, [1, 2])
    assert found.by_step_s("gen") is None
    assert found.times["gen"].mean_s == 3.0
    assert "do not match one to one" in found.notes[0]


def test_phases_that_run_side_by_side_are_shrunk_to_the_step() -> None:
    found, notes = phases_by_step_s(logged(step=[10.0, 10.0], gen=[6.0, 6.0], policy_update=[8.0, 8.0]), 2)
    assert found["policy_update"] == pytest.approx((4.0, 4.0))
    assert "side by side" in notes[0]


def test_logged_phases_must_reach_over_all_steps() -> None:
    config = resolve(GIVEN | {"phases": {"by_step_s": {"reward": [1.0]}}}, "none")
    with pytest.raises(InputError, match=r"phases\.by_step_s\.reward"):
        Simulation(config, lengths(steps=2))
    with pytest.raises(InputError, match="rewards"):
        resolve(GIVEN | {"phases": {"by_step_s": {"rewards": [1.0]}}}, "none")


def test_phases_without_step_and_rollout_leave_the_rest_to_the_model() -> None:
    found, notes = phases_by_step_s(logged(reward=[1.0, 2.0]), 2)
    assert found == {"reward": (1.0, 2.0)}
    assert "modelled: logprob" in notes[0]


def test_the_scale_is_judged_by_steps_that_it_was_not_fitted_to() -> None:
    modelled = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    factors = np.array([2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0])
    rng = np.random.default_rng(0)
    times = Times(modelled * factors, None, modelled, modelled + 1.0)
    scale, fit = fit_scale(times, list(range(8)))
    assert fit.fitted_scale is not None
    assert fit.fitted_scale.value == pytest.approx(2.0)
    assert fit.errors[0].error.value == pytest.approx(2 / 3 - 1)
    assert 2.0 < scale.value < 3.0
    assert fit.scale.interval is not None
    assert len(scale.draw(5, 0.1, rng)) == 5
    one, alone = fit_scale(Times(np.array([3.0]), None, np.array([2.0]), np.array([4.0])), [7])
    assert (one.value, alone.errors, alone.judged_steps, alone.scale.interval) == (1.5, (), (), None)
    mean, means = fit_means(9.0, np.array([2.0, 4.0]))
    assert (mean.value, means.fitted_steps, means.errors) == (3.0, (), ())


@pytest.mark.slow
def test_a_measured_training_run_is_reproduced(tmp_path: Path) -> None:
    settings = {"cost": {"source": str(TRAINED / "calibration.json")}, "run": {"records": False},
                "acceptance": {"kind": "per_position", "measured": "elsewhere"}}  # fmt: skip
    observed = observe(TRAINED / "natural", None, Options())
    assert observed.policy == "none"
    assert "static-4-online" in observed.notes[0]
    assert observed.settings["hardware"] == {"gpus": 4, "tp": 1, "gpu": "H200", "model": "SmolLM2-135M"}
    told = answered(observed, tmp_path / "out", settings, ["goodput:off+2+3+4+6"])
    assert told.fit is not None
    assert len(told.fit.errors) == 2
    assert told.acceptance_source == "measured: elsewhere"
    total = sum(step.modelled_rollout_s for step in told.steps) / sum(
        step.rollout_s or 0 for step in told.steps
    )
    assert total == pytest.approx(1.0, rel=1e-6)  # the factor of all steps makes it so


def test_a_simulated_run_states_all_its_settings(tmp_path: Path) -> None:
    write_observed(tmp_path, lengths(steps=2))
    observed = observe(tmp_path / "truth", None, Options())
    assert observed.settings["cost"]["scale"] == TRUE_SCALE
    assert observed.settings["hardware"]["gpus"] == HARDWARE["gpus"]
    told = answered(observed, tmp_path / "out", {}, ["static:2"])
    assert told.fit is not None
    assert told.fit.scale.value == pytest.approx(1.0, rel=1e-6)
    groups = observed.trace.rows["prompt_id"] // GROUPS_OF_A_STEP
    assert groups.tolist() == observed.trace.rows["step"].tolist()
    written = read_struct(tmp_path / "out" / "none" / "resolved_config.json", dict)
    assert written["cost"]["scale"] == pytest.approx(TRUE_SCALE)
