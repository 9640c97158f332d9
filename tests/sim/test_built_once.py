"""A command resolves each policy once and builds its simulation once, whatever it asks of it afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tests.sim.observed_world import CALIBRATION, lengths, write_observed
from tests.sim.small_world import trace_of
from tlt.commands import main
from tlt.sim import config as configuration
from tlt.sim.policy_set import policy_set
from tlt.sim.simulation import Simulation
from tltsched.event_log import Recorder

SMALL = (
    "--set", "hardware.gpus=4", "--set", "hardware.tp=1", "--set", "hardware.model=Qwen2.5-7B",
    "--set", f"cost.source={CALIBRATION}", "--set", "acceptance.kind=geometric",
    "--set", "workload.steps=2", "--set", "workload.prompts_per_step=4",
    "--set", "workload.samples_per_prompt=2", "--set", "workload.max_response_tokens=300",
    "--set", "run.records=false",
)  # fmt: skip


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often a configuration is resolved and a simulation built, by policy and schedule."""
    counts: Counter[str] = Counter()

    def counted(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            counts[name] += 1
            return inner(*values, **named)

        return call

    monkeypatch.setattr(configuration, "convert", counted("resolved", configuration.convert))
    monkeypatch.setattr(Simulation, "__init__", counted("built", Simulation.__init__))
    return counts


def enter(*words: object) -> None:
    result = CliRunner().invoke(main.cli, [str(word) for word in words])
    assert result.exception is None, result.output


def test_a_comparison_builds_each_policy_once(built: Counter[str], tmp_path: Path) -> None:
    enter("sim", "compare", *SMALL, "--out", tmp_path, "--no-report", "--draws", 3)
    assert built == {"resolved": 5, "built": 5}


@pytest.mark.slow
def test_a_recommendation_builds_each_policy_once(built: Counter[str], tmp_path: Path) -> None:
    enter("sim", "recommend", *SMALL, "--out", tmp_path, "--draws", 1)
    assert built == {"resolved": 5, "built": 5}


def test_a_counterfactual_builds_each_policy_once(built: Counter[str], tmp_path: Path) -> None:
    trace, phases = write_observed(tmp_path, lengths(steps=2))
    built.clear()
    given = ("--set", "hardware.gpu=H100", "--set", "hardware.model=Qwen2.5-7B", "--gpus", 2, "--tp", 1)
    policies = ("--policies", "static:2,none@longest_first")
    out = tmp_path / "out"
    enter("sim", "counterfactual", trace, "--phases", phases, *given, *policies, "--out", out, "--no-report")
    assert built == {"resolved": 3, "built": 3}


@pytest.mark.slow
def test_a_search_builds_each_design_once(built: Counter[str], tmp_path: Path) -> None:
    budget = ("--gpus-budget", 2, "--schedules", "synchronous,bounded_async", "--policies", "none,static:2")
    enter("sim", "recommend", *SMALL, *budget, "--jobs", 1, "--out", tmp_path)
    assert built == {"resolved": 1 + 4, "built": 4}, "the settings without a design, then every design"


def test_what_is_derived_is_what_would_be_built() -> None:
    settings = {
        "hardware": {"gpus": 2, "tp": 1, "model": "Qwen2.5-7B"},
        "acceptance": {"kind": "geometric", "request_spread": 0.0},
        "cost": {"source": CALIBRATION}, "workload": {"steps": 2, "max_response_tokens": 300},
    }  # fmt: skip
    whole = trace_of([[40, 80, 160, 320], [30, 60]])
    for name in ("static:2", "tlt_chains@bounded_async"):
        simulation = policy_set(settings, [name]).baseline.on(whole)
        slow = simulation.coefficients.scaled(1.2, 1.0, 1.5)
        part = trace_of([[40, 80, 160, 320]])
        pairs = (
            (simulation.with_coefficients(slow), Simulation(simulation.config, whole, slow)),
            (simulation.on(part), Simulation(simulation.config, part)),
            (simulation.scaled(1.5), Simulation(simulation.scaled(1.5).config, whole)),
            (simulation, simulation),  # run twice
        )
        for derived, built in pairs:
            assert records(derived) == records(built)
        assert simulation.scaled(1.5).config.cost.scale == 1.5


def test_some_steps_keep_the_acceptance_of_the_whole_workload() -> None:
    settings = {"hardware": {"gpus": 2, "tp": 1, "model": "Qwen2.5-7B"}, "workload": {"steps": 2}}
    whole = policy_set(settings, ["static:8_8_32"]).baseline
    assert whole.on(trace_of([[40, 80]])).acceptance is whole.acceptance
    assert whole.scaled(1.5).acceptance is whole.acceptance
    acceptance = msgspec.structs.replace(whole.config.acceptance, request_spread=0.1)
    other = whole.changed(msgspec.structs.replace(whole.config, acceptance=acceptance))
    assert other.acceptance.population.request_spread == 0.1


def records(simulation: Simulation) -> bytes:
    lines: list[bytes] = []
    simulation.run(Recorder(lines.append))
    return b"".join(lines)
