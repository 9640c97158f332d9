"""What is fitted to a measured training run: acceptance, drift with its interval, and times."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.measured_world import write_calibration
from tests.sim.training_world import (
    DRIFTING,
    LOGPROB_S_PER_TOKEN,
    REWARD_S_PER_RESPONSE,
    STILL,
    SURVIVAL,
    SYNC_S,
    UPDATE_S_PER_TOKEN,
    write_training_run,
)
from tlt.sim.model.drafter import Drafter, DrafterConfig
from tlt.sim.validate.measured_acceptance import Differences
from tlt.sim.validate.training.acceptance_exponents import common_law, exponent_of
from tlt.sim.validate.training.drift import FittedLaw, fit_drift
from tlt.sim.validate.training.fit import NO_RECOVERY_TOKENS, FittedPhases, drafter_config, fit_training
from tlt.sim.validate.training.run import TrainingRun
from tlt.traces.results.predicted_training import TrainingFit
from tlt.traces.runs.acceptance_counts import NOTHING, PositionCounts
from tltsched.errors import InputError

pytestmark = pytest.mark.slow

STEPS = 24


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingRun]:
    """Return measured runs by what their drafter does."""
    root = tmp_path_factory.mktemp("runs")
    calibration = write_calibration(root / "calibration.json")
    fresh = msgspec.structs.replace(DRIFTING, initial_exponent=1.0)
    easier = msgspec.structs.replace(STILL, drift_per_update=-0.02)
    slow = msgspec.structs.replace(DRIFTING, drift_per_update=0.0, recovery_tokens=1e6)
    idle = msgspec.structs.replace(DRIFTING, recovery_tokens=1e18)
    made = {
        "online": write_training_run(root / "online", calibration, steps=STEPS, noise=0.02),
        "exact": write_training_run(root / "exact", calibration, steps=STEPS),
        "frozen": write_training_run(root / "frozen", calibration, trains=False, drafter=fresh, steps=STEPS),
        "still": write_training_run(root / "still", calibration, trains=False, drafter=STILL, steps=STEPS),
        "easier": write_training_run(root / "easier", calibration, trains=False, drafter=easier, steps=STEPS),
        "slow": write_training_run(root / "slow", calibration, drafter=slow, steps=STEPS),
        "idle": write_training_run(root / "idle", calibration, drafter=idle, steps=STEPS, noise=0.02),
        "none": write_training_run(root / "none", calibration, policy="none", trains=False),
    }
    return {name: TrainingRun(path) for name, path in made.items()}


def _law(run: TrainingRun) -> FittedLaw:
    law = fit_drift(run, np.arange(len(run.steps)), {})
    assert isinstance(law, FittedLaw)
    return law


def _fit(run: TrainingRun) -> TrainingFit:
    return fit_training(run, np.arange(len(run.steps) // 2), Differences())


def _holds(figure: object, truth: float) -> bool:
    low, high = figure.interval  # type: ignore[attr-defined]
    return bool(low <= truth <= high)


@given(st.floats(0.2, 5.0), st.lists(st.floats(0.2, 0.95), min_size=1, max_size=6))
def test_an_exponent_is_recovered_from_counts(exponent: float, rates: list[float]) -> None:
    survival = np.cumprod(rates)
    counts = PositionCounts(1000.0 * survival**exponent, np.full(len(rates), 1000.0))
    assert exponent_of(survival, counts) == pytest.approx(exponent, rel=1e-6)


def test_one_law_is_recovered_from_steps_with_different_exponents_and_depths() -> None:
    survival = np.array([0.9, 0.6, 0.3])
    exponents = np.exp([-0.5, -0.1, 0.2, 0.4])  # geometric mean 1
    counts = [
        PositionCounts(1000.0 * survival[:depth] ** x, np.full(depth, 1000.0))
        for depth, x in zip((3, 2, 3, 1), exponents, strict=True)
    ]
    law = common_law(counts)
    assert law == pytest.approx(survival, rel=1e-3)
    assert [exponent_of(law, each) for each in counts] == pytest.approx(exponents.tolist(), rel=1e-3)


def test_no_exponent_where_all_or_nothing_was_accepted() -> None:
    engine_steps = np.full(2, 10.0)
    for accepted in (np.zeros(2), engine_steps):
        assert np.isnan(exponent_of(np.array([0.8, 0.5]), PositionCounts(accepted, engine_steps)))


def test_counts_of_chains_of_different_lengths_add_up() -> None:
    short = PositionCounts(np.array([6.0]), np.array([10.0]))
    long = PositionCounts(np.array([9.0, 5.0]), np.array([10.0, 10.0]))
    assert (short + long + NOTHING).survival().tolist() == [0.75, 0.5]


def test_drift_and_recovery_of_a_trained_head_are_recovered(runs: dict[str, TrainingRun]) -> None:
    fit = _law(runs["exact"]).drift
    assert fit.verdict == "falls"
    assert fit.per_update.value == pytest.approx(DRIFTING.drift_per_update, rel=0.01)
    assert fit.initial_exponent.value == pytest.approx(DRIFTING.initial_exponent, rel=0.01)
    assert fit.recovery_tokens is not None
    assert fit.recovery_tokens.value == pytest.approx(DRIFTING.recovery_tokens, rel=0.02)


def test_intervals_hold_the_truth_where_probes_are_noisy(runs: dict[str, TrainingRun]) -> None:
    fit = _law(runs["online"]).drift
    assert fit.verdict == "falls"
    assert fit.recovery_tokens is not None
    assert _holds(fit.per_update, DRIFTING.drift_per_update)
    assert _holds(fit.initial_exponent, DRIFTING.initial_exponent)
    assert _holds(fit.recovery_tokens, DRIFTING.recovery_tokens)
    assert {(point.head, point.source) for point in fit.points} == {
        ("serving", "rollout"), ("serving", "probe"), ("initial", "probe")
    }  # fmt: skip


def test_training_that_helped_to_the_last_step_gives_a_lower_bound(runs: dict[str, TrainingRun]) -> None:
    run, fit = runs["slow"], _law(runs["slow"]).drift
    assert fit.recovery_tokens is not None
    assert not fit.recovery_resolved
    assert fit.recovery_tokens.value == pytest.approx(run.trained_tokens().sum(), rel=0.1)
    assert _law(runs["exact"]).drift.recovery_resolved


def test_training_that_is_not_seen_to_help_brings_nothing_back(runs: dict[str, TrainingRun]) -> None:
    fit = _law(runs["idle"]).drift
    assert fit.recovery_tokens is None
    assert fit.initial_exponent.value == 1.0
    assert drafter_config(runs["idle"], _fit(runs["idle"])).recovery_tokens == NO_RECOVERY_TOKENS


def test_acceptance_is_that_of_a_head_that_is_trained_in_full(runs: dict[str, TrainingRun]) -> None:
    for name in ("exact", "frozen", "still"):
        assert _law(runs[name]).survival == pytest.approx(SURVIVAL, abs=0.02), name


def test_drift_of_a_head_that_served_throughout_is_read_from_rollouts(runs: dict[str, TrainingRun]) -> None:
    fit = _law(runs["frozen"]).drift
    assert fit.verdict == "falls"
    assert fit.measured_on.startswith("the rollouts")
    assert _holds(fit.per_update, DRIFTING.drift_per_update)
    assert fit.recovery_tokens is None
    assert fit.initial_exponent.value == 1.0


def test_no_drift_is_told_and_none_is_simulated(runs: dict[str, TrainingRun]) -> None:
    fit = _law(runs["still"]).drift
    assert fit.verdict == "none visible"
    assert _holds(fit.per_update, 0.0)
    assert fit.simulated_per_update() == 0.0


def test_a_policy_that_gets_easier_to_predict_is_told(runs: dict[str, TrainingRun]) -> None:
    fit = _law(runs["easier"]).drift
    assert fit.verdict == "rises"
    assert fit.simulated_per_update() < 0.0


def test_an_policy_that_drafts_nothing_has_no_drift(runs: dict[str, TrainingRun]) -> None:
    fit = _fit(runs["none"])
    assert fit.drift is None
    assert fit.no_drift_because == "nothing was drafted"
    assert fit.survival_by_position == ()
    assert not drafter_config(runs["none"], fit).exists


def test_times_are_those_of_the_run(runs: dict[str, TrainingRun]) -> None:
    fit = _fit(runs["online"])
    config = drafter_config(runs["online"], fit)
    assert config.activation_s == pytest.approx(DRIFTING.activation_s)
    assert config.stop_s == pytest.approx(DRIFTING.stop_s)
    assert config.publish_s == pytest.approx(DRIFTING.publish_s)
    assert config.training_tokens_per_s == pytest.approx(DRIFTING.training_tokens_per_s, rel=0.01)
    phases = FittedPhases(fit)
    assert phases.seconds("reward", 10, 1000) == pytest.approx(10 * REWARD_S_PER_RESPONSE)
    assert phases.seconds("logprob", 10, 1000) == pytest.approx(1000 * LOGPROB_S_PER_TOKEN)
    assert phases.seconds("policy_update", 10, 1000) == pytest.approx(1000 * UPDATE_S_PER_TOKEN)
    assert phases.seconds("weight_sync", 10, 1000) == pytest.approx(SYNC_S)


def test_what_never_happened_takes_no_time(runs: dict[str, TrainingRun]) -> None:
    config = drafter_config(runs["frozen"], _fit(runs["frozen"]))
    assert (config.activation_s, config.stop_s, config.publish_s) == (0.0, 0.0, 0.0)


def test_only_the_fitted_steps_count(runs: dict[str, TrainingRun], tmp_path: Path) -> None:
    run, before = runs["online"], _fit(runs["online"])
    half = len(run.steps) // 2
    changed = TrainingRun(run.policy.path)
    changed.counts[half:] = [NOTHING] * (len(run.steps) - half)
    changed.times[half:] = [changed.times[0]] * (len(run.steps) - half)
    changed.probes = changed.probes[changed.probes["step"] < half]
    changed.heads = changed.heads[changed.heads["step"] < half]
    changed.updates = changed.updates[changed.updates["step"] < half]
    assert _fit(changed) == before


def test_a_folder_without_training_tables_is_refused(runs: dict[str, TrainingRun], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rewards\.parquet"):
        TrainingRun(tmp_path)


def test_a_run_of_few_steps_is_refused(tmp_path: Path) -> None:
    calibration = write_calibration(tmp_path / "calibration.json")
    path = write_training_run(tmp_path / "short", calibration, steps=3)
    with pytest.raises(InputError, match="4 or more"):
        TrainingRun(path)


def test_a_drafter_below_one_gains_nothing_from_training() -> None:
    drafter = Drafter(DrafterConfig(drift_per_update=-0.2))
    drafter.begin_step()
    drafter.policy_updated()
    drafter.begin_step()
    drafter.publish(1, 10**9)
    assert drafter.exponent == pytest.approx(0.8)
    for _ in range(10):
        drafter.policy_updated()
    assert drafter.exponent > 0.0
