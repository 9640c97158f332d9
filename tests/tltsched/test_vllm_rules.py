"""vLLM's rules: the table by ranges, held against vLLM's own reader, and adaptive verification."""

from __future__ import annotations

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Outcome
from tltsched.policies.table import TableConfig, table_of_ranges
from tltsched.policies.vllm_adaptive import VllmAdaptiveConfig, VllmAdaptivePolicy
from tltsched.step_times import DraftConfigTimes, StepTimeTable

# 10 s an engine step, 1 s for each token to verify, and 0.001 s for each token of context beyond one draft.
TIMES = StepTimeTable(
    tuple(DraftConfigTimes(chain(k), (10.0, 11.0 + k), 0.001 if k > 1 else 0.0) for k in range(4))
)


def draft_configs_of(table: TableConfig, requests: int) -> int:
    return table.build(Random(0), None).choose(Batch(requests, 0)).draft_config.depth  # noqa: S311


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("1-4=4+5-20=2", ((1, "4"), (5, "2"))),
        ("33-64=0 + 1-16=3", ((1, "3"), (33, "off"))),  # any order; 17 to 32 keep the K below
        ("1-1=8", ((1, "8"),)),
    ],
)
def test_ranges_are_a_table_by_lower_edge(text: str, rows: tuple[tuple[int, str], ...]) -> None:
    assert table_of_ranges(text) == TableConfig(draft_configs_by_batch=rows)


@pytest.mark.parametrize(
    "text", ["1-4", "1-4=x", "a=3", "1-4=4,5-8=2", "4-1=3", "1-4=4+4-8=2", "0-4=1", "2-4=1"]
)
def test_ranges_that_vllm_refuses_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        table_of_ranges(text)


def vllm_reader() -> ModuleType:
    """Load the one file of vLLM that reads the table; importing vLLM itself would take seconds."""
    package = find_spec("vllm")
    if package is None or package.origin is None:
        pytest.skip("vLLM is not installed")
    path = Path(package.origin).parent / "v1" / "spec_decode" / "dynamic" / "utils.py"
    spec = spec_from_file_location("vllm_dynamic_utils", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(
    gaps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 8)), min_size=1, max_size=6)
)
@settings(max_examples=50, deadline=None)
def test_every_batch_gets_the_k_that_vllm_would_give_it(gaps: list[tuple[int, int, int]]) -> None:
    schedule: list[tuple[int, int, int]] = []
    low = 1
    for width, gap, k in gaps:
        schedule.append((low, low + width - 1, k))
        low += width + gap
    lookup = vllm_reader().build_dynamic_sd_schedule_lookup(schedule, 120, 8)
    table = table_of_ranges("+".join(f"{low}-{high}={k}" for low, high, k in schedule))
    assert [draft_configs_of(table, requests) for requests in range(1, 121)] == lookup[1:]


def adaptive(**changes: object) -> VllmAdaptivePolicy:
    config = VllmAdaptiveConfig(max_k=3, profile_context_tokens=0, **changes)  # type: ignore[arg-type]
    return config.build(Random(0), TIMES)  # noqa: S311


def learned(policy: VllmAdaptivePolicy, *survival: float) -> VllmAdaptivePolicy:
    accepted = tuple(round(share * 10**9) for share in survival)
    policy.observe(Outcome(chain(3), 10**8, 10**9, 1e6, accepted))
    return policy


def test_a_request_begins_with_full_confidence() -> None:
    assert adaptive().choose(Batch(1, 0)).draft_config == chain(3)


@pytest.mark.parametrize(
    ("survival", "k"),
    [
        # (1 + sum of a) / (11 + K), from 0.0909 without drafts
        ((0.5, 0.25, 0.125), 2),  # 0.125, 0.1346, 0.1339
        ((0.5, 0.25, 0.15), 3),  # 0.125, 0.1346, 0.1357
        ((0.2, 0.05, 0.0), 1),  # 0.1, 0.0962, 0.0893
        ((0.05, 0.0, 0.0), 0),  # 0.0875, 0.0808, 0.075
    ],
)
def test_it_admits_positions_while_they_raise_the_pace(survival: tuple[float, ...], k: int) -> None:
    assert learned(adaptive(), *survival).choose(Batch(1, 0)).draft_config == chain(k)


def test_the_profile_has_its_own_context() -> None:
    for context, draft_config in ((0, chain(3)), (8192, chain(1))):
        config = VllmAdaptiveConfig(max_k=3, profile_context_tokens=context)
        policy = learned(config.build(Random(0), TIMES), 0.9, 0.8, 0.7)  # noqa: S311
        assert [policy.choose(Batch(1, tokens)).draft_config for tokens in (0, 10**6)] == [
            draft_config,
            draft_config,
        ]


def test_decision_intervals_without_drafts_change_nothing() -> None:
    policy = learned(adaptive(), 0.0, 0.0, 0.0)
    assert policy.choose(Batch(1, 0)).draft_config == OFF
    policy.observe(Outcome(OFF, 50, 50, 1.0, ()))
    assert policy.choose(Batch(1, 0)).draft_config == OFF


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_k", 0),
        ("profile_context_tokens", -1),
        ("decision_engine_steps", 0),
        ("memory_request_steps", 0.0),
    ],
)
def test_settings_that_cannot_be_are_named(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"for {field}"):
        VllmAdaptiveConfig(**{field: value})  # type: ignore[arg-type]
