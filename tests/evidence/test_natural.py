"""Natural responses recorded on one H200: what acceptance and decisions are off, its host apart."""

from __future__ import annotations

import numpy as np
import pytest

from evidence import natural_claims
from evidence.natural_claims import as_recorded, engine_steps_over, predicted
from evidence.recording import RUNS
from tlt.analysis.crosscheck.decisions import replay_decisions
from tlt.sim.steptimes.calibration import load
from tlt.sim.validate.replay_measured import MeasuredPolicy
from tlt.traces.sources import open_runs

RUN = RUNS / "h200-smollm2-natural"
FITTED, JUDGED = np.array([0]), np.array([1])


@pytest.fixture(scope="module")
def policies() -> list[MeasuredPolicy]:
    return [MeasuredPolicy(path) for path in open_runs(RUN / "replay").folders]


def test_the_host_was_uneven(policies: list[MeasuredPolicy]) -> None:
    over = engine_steps_over(policies, load(str(RUN / "calibration.json")))
    fastest = over["median engine step over calibrated, fastest rollout"]
    assert over["median engine step over calibrated, slowest rollout"] > 1.5 * fastest


def test_engine_steps_as_recorded_take_twice_as_long_at_twice_the_times(
    policies: list[MeasuredPolicy],
) -> None:
    calibration = load(str(RUN / "calibration.json"))
    once = as_recorded(policies[0], calibration, JUDGED)
    assert as_recorded(policies[0], calibration.times(2.0), JUDGED) == pytest.approx(2 * once + 1, abs=2e-3)


@pytest.mark.slow
def test_acceptance_by_kind_of_prompt_meets_the_rollout_that_nothing_was_fitted_on(
    policies: list[MeasuredPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(natural_claims, "SEEDS", 2)
    calibration = load(str(RUN / "calibration.json"))
    policy = next(each for each in policies if each.summary.policy == "static:4")
    rows = predicted(policy, policies, calibration, "kind of prompt", FITTED, JUDGED)
    beyond = (1 + np.mean([row["judged"] for row in rows])) / (1 + as_recorded(policy, calibration, JUDGED))
    assert beyond == pytest.approx(1.0, abs=0.05)


def test_its_decisions_replay(policies: list[MeasuredPolicy]) -> None:
    assert [replay_decisions(policy.path).difference for policy in policies] == [None] * 6
