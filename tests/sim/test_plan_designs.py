"""Designs under a budget: what is tried, what is left out and why, and which step times a design gets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.small_world import trace_of
from tlt.sim.search.space import Design, Space, candidates, cost_source
from tltsched.errors import InputError

JOB: dict[str, Any] = {
    "hardware": {"model": "Qwen2.5-7B"},
    "cost": {"source": "vllm-0.32-h100-qwen2.5-7b"},
    "acceptance": {"kind": "geometric", "rate": 0.7},
}
ONE_RUN = "vllm-0.32-h100-qwen2.5-7b-one-run"
TRACE = trace_of([[50, 100, 150, 200]] * 2)


def space(**changes: Any) -> Space:
    plain: dict[str, Any] = {
        "gpus_budget": 8, "gpus": ("H100",), "tp": (1,), "engines": (), "schedules": ("synchronous",),
        "policies": ("none", "static:4"),
    }  # fmt: skip
    return Space(**plain | changes)


def test_engines_are_as_many_as_the_budget_allows() -> None:
    found = space(tp=(1, 4, 3)).designs()
    assert [(each.tp, each.engines) for each in found] == [(1, 8), (1, 8), (4, 2), (4, 2), (3, 2), (3, 2)]
    assert str(found[1]) == "static:4@synchronous on 8 x H100 TP1"


def test_nothing_is_dropped_silently() -> None:
    asked = space(
        gpus=("H100", "L40"), tp=(1, 4), engines=(2, 4), schedules=("synchronous", "bounded_async"),
        only_on_policy=True,
    )  # fmt: skip
    job = JOB | {"hardware": {"model": "Qwen2.5-32B"}}
    found, left_out = candidates(job, asked, TRACE)
    assert {each.design for each in found} | set(left_out) == set(asked.designs())
    assert not {each.design for each in found} & set(left_out)
    reasons = set(left_out.values())
    assert "16 GPUs are more than the budget of 8" in reasons
    assert "not on-policy (no), and --on-policy was asked for" in reasons
    assert any("tokens of KV cache on 1 x L40 for Qwen2.5-32B" in reason for reason in reasons)


def test_a_schedule_that_nobody_can_run_is_no_design() -> None:
    found, left_out = candidates(JOB, space(schedules=("synchronous", "longest_first")), TRACE)
    assert {each.design.schedule for each in found} == {"synchronous"}
    reasons = {reason for design, reason in left_out.items() if design.schedule == "longest_first"}
    assert reasons == {"it places by lengths known in advance: nobody can run it"}
    found, left_out = candidates(JOB | {"cluster": {"dispatch": "longest_first"}}, space(), TRACE)
    assert not found
    assert len(left_out) == 2


def test_step_times_are_of_the_hardware_or_assumed() -> None:
    found, _ = candidates(JOB, space(gpus=("H100", "H200"), tp=(1, 2), engines=(2,)), TRACE)
    provenance = {each.design.hardware: each.provenance for each in found}
    assert provenance == {
        "H100 TP1": "measured", "H100 TP2": "assumed", "H200 TP1": "measured", "H200 TP2": "assumed",
    }  # fmt: skip
    assert {each.config.cost.source for each in found if each.provenance == "assumed"} == {"roofline"}


@pytest.mark.parametrize(
    ("configured", "design", "source"),
    [
        (ONE_RUN, Design("H100", 1, 1, "", ""), ONE_RUN),
        ("paper-qwen32b-tp4", Design("H100", 1, 1, "", ""), "vllm-0.32-h100-qwen2.5-7b"),
        ("roofline", Design("H100", 1, 1, "", ""), "vllm-0.32-h100-qwen2.5-7b"),
        ("vllm-0.32-h100-qwen2.5-7b", Design("H20", 1, 1, "", ""), "roofline"),
    ],
)  # fmt: skip
def test_the_configured_calibration_comes_first(configured: str, design: Design, source: str) -> None:
    assert cost_source(JOB | {"cost": {"source": configured}}, design) == source


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(InputError, match="for --gpu"):
        space(gpus=("H1000",)).designs()
