"""A setting that has no effect is an error that says why, and a whole resolved configuration is none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tlt.sim.config import Config, resolve
from tlt.sim.policy_set import resolve_policies
from tlt.sim.unused import RULES, refuse_unused
from tltsched.errors import InputError

REPLAY = {"replay_steps": True}
SESSIONS = {"sessions": "recorded.parquet"}
CASES: list[tuple[dict[str, Any], str]] = [
    ({"workload": REPLAY | {"prompts_per_step": 512}}, "workload.prompts_per_step"),
    ({"workload": REPLAY | {"samples_per_prompt": 16}}, "workload.samples_per_prompt"),
    ({"workload": REPLAY | {"group_correlation": 0.5}}, "workload.group_correlation"),
    ({"workload": REPLAY | {"length_drift_per_step": 0.1}}, "workload.length_drift_per_step"),
    ({"workload": {"sessions": "office-work", "prompts_per_step": 3}}, "workload.prompts_per_step"),
    ({"workload": {"sessions": "office-work", "samples_per_prompt": 3}}, "workload.samples_per_prompt"),
    ({"acceptance": {"rate": 0.9}}, "acceptance.rate"),
    ({"acceptance": {"kind": "geometric", "survival_by_position": [0.5]}}, "acceptance.survival_by_position"),
    ({"cost": {"source": "vllm-0.32-h100-qwen2.5-7b", "roofline": {"draft_vocab": 1}}}, "cost.roofline"),
    ({"cost": {"known": {"batch": 8}}}, "cost.known.batch"),
    ({"cost": {"known": {"draft": "2"}}}, "cost.known.draft"),
    ({"cost": {"known": {"context_tokens": 9.0}}}, "cost.known.context_tokens"),
    ({"drafter": {"history": {"hit_rate": 0.9}}}, "drafter.history"),
    ({"tools": {"timeout_s": 9.0}}, "tools"),
    ({"engine": {"tool_wait_kv": "drop"}}, "engine.tool_wait_kv"),
    ({"cluster": {"routing": "round_robin"}}, "cluster.routing"),
    ({"cluster": {"tools_at_once": 3}}, "cluster.tools_at_once"),
    *(
        ({"workload": SESSIONS | {name: value}}, f"workload.{name}")
        for name, value in (
            ("lengths", "r1-all"),
            ("replay_steps", True),
            ("max_response_tokens", 99),
            ("prompt_tokens", 9),
            ("group_correlation", 0.5),
            ("length_drift_per_step", 0.1),
        )
    ),
    ({"phases": {"sync_pause_s": 5.0}}, "phases.sync_pause_s"),
    ({"phases": {"lend_s": 1.0}}, "phases.lend_s"),
    ({"phases": {"sync_transport": "nccl", "weight_sync_s": 1.0}}, "phases.sync_transport"),
    ({"phases": {"sync_bytes_per_s": 1e9, "weight_sync_s": 1.0}}, "phases.sync_bytes_per_s"),
]


@pytest.mark.parametrize(("settings", "path"), CASES)
def test_a_setting_without_effect_is_an_error(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError) as raised:
        resolve_policies(settings, ["none"])
    assert raised.value.field == path
    assert "nothing here: " in str(raised.value)


def test_what_one_of_several_policies_uses_is_no_error() -> None:
    settings: dict[str, Any] = {"phases": {"sync_pause_s": 5.0, "lend_s": 1.0}}
    resolve_policies(settings, ["none", "none@bounded_async(lend=true)"])


def test_every_rule_has_a_case() -> None:
    assert {path for path, *_ in RULES} == {path for _, path in CASES}


@pytest.mark.parametrize("policy", ["none", "goodput", "tlt"])
def test_a_resolved_configuration_uses_all_that_it_has(policy: str) -> None:
    whole = msgspec.to_builtins(resolve({}, policy))
    refuse_unused(whole, msgspec.convert(whole, Config))
