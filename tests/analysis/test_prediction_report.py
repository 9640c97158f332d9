"""The section on how the simulator predicts the second half of a training run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.analysis.training_runs import write_training
from tlt.analysis.crosscheck.predicted_training import (
    draw_prediction,
    drift_rows,
    error_rows,
    find_prediction,
    median_rows,
    prediction_values,
)
from tlt.analysis.drawing.html import page
from tlt.analysis.load import Run, load_runs
from tlt.traces.results.predicted_training import (
    DriftFit,
    DriftPoint,
    Figure,
    Median,
    PredictedPolicy,
    PredictedTraining,
    PredictionError,
    StepPrediction,
    TrainingFit,
    Verdict,
)
from tlt.traces.runs.runfolder import write_json
from tltsched.errors import InputError

STEPS = 12


def _figure(value: float) -> Figure:
    return Figure(value=value, interval=(value - 0.01, value + 0.01))


def _drift(verdict: Verdict, recovery: Figure | None) -> DriftFit:
    points = [
        DriftPoint(step=step, head="serving", source="rollout", exponent=1.0 + 0.05 * step, length=3.0)
        for step in range(STEPS // 2)
    ]
    return DriftFit(
        steps=tuple(range(STEPS // 2)), measured_on="the rollouts", per_update=_figure(0.05), verdict=verdict,
        initial_exponent=_figure(1.2), recovery_tokens=recovery, recovery_resolved=True,
        residual=0.01, points=tuple(points),
    )  # fmt: skip


def _policy(name: str, drift: DriftFit | None) -> PredictedPolicy:
    length = 3.0 if drift else None
    return PredictedPolicy(
        run=name, policy=name, engine_factor=1.0,
        fit=TrainingFit(
            steps=tuple(range(STEPS // 2)), survival_by_position=(0.8, 0.6) if drift else (), drift=drift,
            no_drift_because="" if drift else "nothing was drafted",
            medians=(Median(name="policy_update", unit="s/token", value=2e-5, low=1e-5, high=3e-5, steps=6),),
        ),
        steps=tuple(
            StepPrediction(
                step=step, judged=step >= STEPS // 2, measured_rollout_s=5.0, simulated_rollout_s=5.1,
                measured_step_s=8.0, simulated_step_s=8.2, measured_length=length, simulated_length=length,
            )
            for step in range(STEPS)
        ),
        errors=(
            PredictionError(quantity="rollout seconds", measured=5.0, simulated=5.1, error=_figure(0.02)),
            PredictionError(quantity="step seconds", measured=8.0, simulated=8.2, error=_figure(0.025)),
        ),
        same_placement=True,
    )  # fmt: skip


POLICIES = (
    _policy("none", None),
    _policy("static:4/frozen", _drift("falls", None)),
    _policy("static:4/online", _drift("none visible", Figure(value=2e6, interval=None))),
)
PREDICTED = PredictedTraining(
    calibration="measured: <engine>", step_time_error=0.021, policies=POLICIES, warnings=("a warning",)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a measured training comparison of the same policies."""
    return write_training(tmp_path_factory.mktemp("training") / "run")


@pytest.fixture(scope="module")
def runs(folder: Path) -> tuple[Run, ...]:
    """Return its runs."""
    return load_runs(folder).runs


def test_it_is_found_beside_the_training_folder(folder: Path) -> None:
    assert find_prediction(folder) is None
    place = folder.with_name("run.simulated")
    place.mkdir()
    write_json(place / "predicted_training.json", PREDICTED)
    assert find_prediction(folder) == PREDICTED
    (place / "predicted_training.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"predicted_training\.json"):
        find_prediction(folder)


def test_the_section_holds_the_answer_and_escapes_all_text(runs: tuple[Run, ...]) -> None:
    values = prediction_values(PREDICTED, draw_prediction(PREDICTED, runs))
    html = page("crosscheck/predicted_training.html", predicted=values)
    assert "static:4/frozen: fitted on 6 steps, the prediction of steps 6 to 11 is off by +2.0%" in html
    assert "Note: a warning." in html
    assert "&lt;engine&gt;" in html
    assert "<engine>" not in html
    assert html.count("<svg ") == 1


def test_a_row_a_policy_and_figure() -> None:
    assert len(error_rows(PREDICTED)) == 6
    assert error_rows(PREDICTED)[1] == ("none", "RL step (s)", "8.000", "8.200", "+2.5% [+1.5%, +3.5%]")
    none, frozen, online = drift_rows(PREDICTED)
    assert none[-1] == "nothing was drafted"
    assert frozen[1:4] == ("acceptance falls", "+0.0500 [+0.0400, +0.0600]", "-")
    assert (online[1], online[4]) == ("none visible", "2,000,000")
    assert median_rows(PREDICTED)[0] == ("none", "policy update", "s/token", "2e-05", "1e-05 to 3e-05", "6")


@pytest.mark.parametrize("policies", [POLICIES, POLICIES[:1]])
def test_a_picture_states_the_finding(runs: tuple[Run, ...], policies: tuple[PredictedPolicy, ...]) -> None:
    picture = draw_prediction(msgspec.structs.replace(PREDICTED, policies=policies), runs[: len(policies)])
    assert picture.png.startswith(b"\x89PNG")
    assert picture.title.startswith("Fitted on 6 steps, the simulator predicts the time of the next 6 within")
    assert ("the worst is" in picture.title) == (len(policies) > 1)
