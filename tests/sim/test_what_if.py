"""The grid of what-if: the fit is 1, less acceptance takes longer, and the same simulation is in it."""

from __future__ import annotations

from typing import Any

import pytest

from tlt.sim.advise.what_if import EXPONENTS, what_if, with_exponent, with_gpus
from tlt.sim.config import resolve
from tlt.sim.policy_set import policy_set
from tlt.sim.simulation import Simulation

JOB: dict[str, Any] = {
    "hardware": {"gpus": 4, "tp": 1, "model": "Qwen2.5-7B"},
    "workload": {"steps": 2, "prompts_per_step": 8, "samples_per_prompt": 4, "max_response_tokens": 1500},
    "phases": {"policy_update_s": 6.0, "by_step_s": {"logprob": (2.0, 4.0)}},
}


def test_multiples_are_of_the_fit_and_fall_with_acceptance() -> None:
    policies = policy_set(JOB, ["none", "static:4", "none@bounded_async"])
    found = what_if(policies, lambda _: None)
    assert found.exponents == EXPONENTS
    assert found.gpus == (2, 4, 8)
    assert found.first_accepted[EXPONENTS.index(1.0)] == pytest.approx(0.8)
    none, drafting, asynchronous = found.policies
    assert none.by_acceptance == (1.0,) * len(EXPONENTS)
    times = [each for each in drafting.by_acceptance if each is not None]
    assert times == sorted(times)
    assert drafting.by_acceptance[EXPONENTS.index(1.0)] == drafting.by_gpus[1] == 1.0
    for each in (none, drafting):
        half, same, twice = each.by_gpus
        assert half is not None
        assert twice is not None
        assert half > same > twice
    assert asynchronous.by_gpus[1] == 1.0


def test_other_gpus_are_the_simulation_of_that_cluster() -> None:
    policies = policy_set(JOB, ["none"])
    whole = policies.baseline
    derived = whole.changed(with_gpus(whole.config, 8)).run().log.step_rows
    fresh = Simulation(with_gpus(whole.config, 8), whole.trace).run().log.step_rows
    assert derived == fresh


def test_given_seconds_of_training_need_as_many_operations_elsewhere() -> None:
    moved = with_gpus(resolve(JOB, "none"), 8)
    assert moved.phases.policy_update_s == 3.0
    assert moved.phases.by_step_s["logprob"] == (1.0, 2.0)
    assert moved.hardware.gpus == 8


def test_an_exponent_is_taken_of_every_survival() -> None:
    moved = with_exponent(resolve(JOB, "goodput"), 2.0)
    assert moved.acceptance.survival_by_position[0] == pytest.approx(0.64)
    assert with_exponent(resolve({}, "tlt"), 2.0).drafter.initial_exponent == 2.0
