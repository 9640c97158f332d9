"""The linear response of step times against full simulations of each draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.sim.drawn import simulate_draws
from tests.sim.small_world import trace_of
from tlt.sim.advise.differences import differences_error
from tlt.sim.advise.sensitivity import first_steps, probe_of, responses, write_cost_draws
from tlt.sim.comparison import compare
from tlt.sim.config import resolve
from tlt.sim.parallel.executors import SERIAL
from tlt.sim.policy_set import policy_set
from tlt.sim.simulation import Simulation
from tlt.traces.results.cost_draws import COST_DRAWS, CostDraws
from tlt.traces.runs.runfolder import COST_DRAW_COLUMNS, RunFolder, read_struct, run_name

# Of the mean step of a policy, under step times drawn within their error. Decisions that follow from step
# times, and the luck of acceptance, are what a linear response leaves out.
SIMULATED_WITHIN = 0.01
# A spread that is drawn half as large again moves which request is the last one.
DIFFERING_WITHIN = 0.08
CHAINS: dict[str, Any] = {
    "hardware": {"gpus": 8, "tp": 1, "model": "Qwen2.5-7B"},
    "cost": {"source": "roofline"},  # the largest error there is: 20 %
    "workload": {"steps": 4, "prompts_per_step": 32, "samples_per_prompt": 8, "max_response_tokens": 4000},
    "acceptance": {"kind": "geometric", "rate": 0.7},
}
CALIBRATED: dict[str, Any] = {
    "hardware": {"gpus": 16},
    "workload": {"steps": 4, "prompts_per_step": 32, "samples_per_prompt": 8, "max_response_tokens": 8000},
}


ALIKE: dict[str, Any] = {"acceptance": {"request_spread": 0.0}}
CHAINS_ALIKE = CHAINS | {"acceptance": CHAINS["acceptance"] | ALIKE["acceptance"]}


def means(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean step by draw and run."""
    return table.pivot_table(index="draw", columns="run", values="step_s", aggfunc="mean")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "policies", "within"),
    [
        (CALIBRATED | ALIKE, ["none", "static:8_8_32", "tlt"], SIMULATED_WITHIN),
        (CHAINS_ALIKE, ["none", "static:2", "goodput", "none@tail_batching"], 3 * SIMULATED_WITHIN),
        (CALIBRATED, ["none", "static:8_8_32", "tlt"], DIFFERING_WITHIN),
    ],
)
def test_draws_agree_with_simulations(
    settings: dict[str, Any], policies: list[str], within: float, tmp_path: Path
) -> None:
    compared = policy_set(settings, policies)
    compare(compared, tmp_path, lambda *_: None)
    told: list[str] = []
    write_cost_draws(compared, tmp_path, 6, told.append)
    assert told == policies
    linear = pd.read_parquet(tmp_path / "cost_draws.parquet")
    assert list(linear.columns) == list(COST_DRAW_COLUMNS)
    simulated = simulate_draws(compared, 6)
    error = (means(linear) / means(simulated) - 1.0).abs()
    assert float(error.to_numpy().max()) < within
    assert float(error.iloc[0].max()) == pytest.approx(0.0, abs=1e-12)
    # what the answer rests on: the ratio of the policies
    base = run_name(policies[0])
    ratios = [means(table).div(means(table)[base], axis=0) for table in (linear, simulated)]
    assert float((ratios[0] / ratios[1] - 1.0).abs().to_numpy().max()) < within


def test_draw_0_is_the_run_and_the_file_says_what_was_probed(tmp_path: Path) -> None:
    compared = policy_set(CALIBRATED, ["none", "tlt"])
    compare(compared, tmp_path, lambda *_: None)
    write_cost_draws(compared, tmp_path, 2, lambda _: None)
    about = read_struct(tmp_path / COST_DRAWS, CostDraws)
    assert about.probe_steps == 3
    assert 0.0 < about.cost_error < 0.2
    drawn = pd.read_parquet(tmp_path / "cost_draws.parquet")
    for name in ("none", "tlt"):
        steps = RunFolder(tmp_path / name).steps()
        fit = drawn[(drawn["run"] == name) & (drawn["draw"] == 0)]
        assert fit["step_s"].tolist() == (steps["end_s"] - steps["start_s"]).tolist()


def test_a_step_without_drafts_grows_by_its_rollout() -> None:
    config = resolve(CALIBRATED | {"cluster": {"phases": []}}, "none")
    simulation = Simulation(config, trace_of([[200, 400, 800, 1600] * 4] * 2))
    found, _ = responses(simulation, SERIAL)
    assert found[2:].tolist() == [0.0] * 3, "nothing is drafted"
    assert found.sum() == pytest.approx(1.0, abs=0.01), "all of a rollout but its prefill"
    assert np.all(found >= 0.0)


def test_the_first_steps_of_a_trace() -> None:
    trace = trace_of([[1, 2], [3], [4]])
    assert first_steps(trace, 2).rows["response_tokens"].tolist() == [1, 2, 3]
    assert len(first_steps(trace, 9).rows) == 4


def test_what_is_assumed_of_requests_is_drawn_and_what_is_known_is_not() -> None:
    assumed = Simulation(resolve(CHAINS, "static:2"), trace_of([[200, 400]] * 2))
    assert differences_error(assumed).parts() == {"spread", "slope"}
    assert "assumed" in differences_error(assumed).told()
    for acceptance in ({"request_spread": 0.0}, {"request_spread": 0.4}):
        given = CHAINS | {"acceptance": CHAINS["acceptance"] | acceptance}
        assert not differences_error(Simulation(resolve(given, "static:2"), assumed.trace)).parts()
    assert not differences_error(Simulation(resolve(CHAINS, "none"), assumed.trace)).told()


def test_a_larger_spread_makes_a_rollout_longer() -> None:
    simulation = Simulation(resolve(CHAINS, "static:4"), trace_of([[300 + 40 * n for n in range(64)]] * 3))
    found, _ = responses(simulation, SERIAL)
    assert found[3] > 0.05
    assert found[4] > 0.05


@pytest.mark.parametrize(
    ("responses_a_step", "steps"), [(256, 3), (1500, 3), (2048, 2), (4096, 1), (8192, 1)]
)
def test_a_probe_has_steps_until_4_096_responses_are_in_it_and_three_at_most(
    responses_a_step: int, steps: int
) -> None:
    trace = trace_of([[10] * responses_a_step] * 4)
    assert probe_of(trace).rows["step"].nunique() == steps
