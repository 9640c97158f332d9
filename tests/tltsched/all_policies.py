"""Every preset, some settings that presets do not reach, and step times of all their draft configurations."""

from __future__ import annotations

from random import Random

from tltsched.policies import PRESETS, PolicySpec
from tltsched.policies.beg_mab import BegMabConfig
from tltsched.policies.disable_by_batch import DisableByBatchConfig
from tltsched.policies.fastgrpo import FastGrpoConfig
from tltsched.policies.sglang_ema import EmaSlot, SglangEmaConfig
from tltsched.policies.sglang_throughput import SglangThroughputConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig, table_of_ranges
from tltsched.policies.threshold import ThresholdConfig
from tltsched.policies.turbospec import TurboSpecConfig
from tltsched.policies.vllm_adaptive import VllmAdaptiveConfig
from tltsched.step_times import AnyTimes, DraftConfigTimes, StepTimeTable

CONTESTED = BegMabConfig(
    variant="released", strategies=("8_4_16", "4_4_16", "2_2_4"), thresholds=(1, 6), decision_engine_steps=4
)
POLICIES: tuple[PolicySpec, ...] = (
    *PRESETS.values(),
    StaticConfig(draft_config="4"),
    CONTESTED,
    ThresholdConfig(
        inner=CONTESTED, threshold_requests=6, warmup_engine_steps=5, latch=True, resume_cost="reprefill"
    ),
    TableConfig(
        draft_configs_by_batch=((1, "4"), (3, "off"), (8, "2")),
        when_off="drafter_dropped",
        resume_cost="draft_prefill",
    ),
    table_of_ranges("1-2=3+3-9=0+20-30=1"),
    SglangEmaConfig(
        slots=(EmaSlot(batch=1, ks=(0, 2, 5)), EmaSlot(batch=3, ks=(0, 1))),
        graph_batches=(2, 4, 6),
        warmup_batches=0,
        update_interval=1,
        when_off="drafter_dropped",
        resume_cost="draft_prefill",
    ),
    SglangThroughputConfig(
        candidates=((1, (1, 3, 5, 7)), (4, (1, 3)), (9, (2,))), window=2, update_interval=3, switch_margin=0.0
    ),
    SglangThroughputConfig(graph_batches=()),
    VllmAdaptiveConfig(max_k=3, decision_engine_steps=1),
    TurboSpecConfig(max_k=3, decision_engine_steps=1, memory_request_steps=10.0),
    FastGrpoConfig(draft_configs=("8_8_16", "4", "2_2_4"), capacity_tokens=64),
    DisableByBatchConfig(k=2, limit_requests=3),
)
TIMES = StepTimeTable(
    tuple(
        DraftConfigTimes(draft_config, (0.01, 0.01 + 0.001 * draft_config.verify_tokens), 1e-8)
        for draft_config in dict.fromkeys(
            draft_config
            for policy in POLICIES
            for draft_config in policy.build(Random(0), AnyTimes()).draft_configs  # noqa: S311
        )
    )
)
