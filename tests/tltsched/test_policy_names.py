"""Policies by the names that users type, and as configuration."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from tltsched.draft_config import OFF
from tltsched.errors import InputError
from tltsched.policies import POLICIES, PRESETS, PolicySpec, parse_policy
from tltsched.policies.base import PolicyConfig
from tltsched.policies.beg_mab import BegMabConfig
from tltsched.policies.goodput import GoodputConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig
from tltsched.policies.threshold import ThresholdConfig
from tltsched.step_times import AnyTimes, DraftConfigTimes, StepTimeTable


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_parses_builds_and_survives_json(name: str) -> None:
    config = parse_policy(name)
    assert config == PRESETS[name]
    assert msgspec.json.decode(msgspec.json.encode(config), type=PolicySpec) == config
    draft_configs = config.build(Random(0), AnyTimes()).draft_configs  # noqa: S311
    times = StepTimeTable(tuple(DraftConfigTimes(draft_config, (0.01,)) for draft_config in draft_configs))
    policy = config.build(Random(0), times if config.needs_times else None)  # noqa: S311
    assert policy.draft_configs == draft_configs
    if config.needs_times:
        with pytest.raises(InputError, match="calibration"):
            config.build(Random(0), None)  # noqa: S311
    assert type(config).needs_drafter == any(draft_config != OFF for draft_config in policy.draft_configs)


def test_the_released_preset_is_what_the_code_ships() -> None:
    released = PRESETS["tlt_released"]
    assert isinstance(released, ThresholdConfig)
    assert isinstance(released.inner, BegMabConfig)
    assert (released.threshold_requests, released.warmup_engine_steps, released.latch) == (32, 10, True)
    assert (released.resume_cost, released.inner.variant, released.inner.window) == (
        "reprefill",
        "released",
        300,
    )
    assert released.inner.strategies == ("8_4_48", "8_4_32", "8_4_16", "8_4_8")
    assert released.inner.thresholds == (1, 2, 5, 21)


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("static:4", StaticConfig(draft_config="4")),
        (" static:8_4_48 ", StaticConfig(draft_config="8_4_48")),
        ("goodput:off+1+ 2+4", GoodputConfig(draft_configs=("off", "1", "2", "4"))),
        (
            "table:1=8_4_48+3=num_speculative_tokens=2+9=off",
            TableConfig(draft_configs_by_batch=((1, "8_4_48"), (3, "2"), (9, "off"))),
        ),
        (
            "vllm_table:1-4=4+5-20=2+21-64=0",
            TableConfig(draft_configs_by_batch=((1, "4"), (5, "2"), (21, "off"))),
        ),
    ],
)
def test_draft_configs_can_be_given_with_the_name(text: str, config: PolicyConfig) -> None:
    assert parse_policy(text) == config


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("tlt_relased", "did you mean tlt_released?"),
        ("godput", "did you mean goodput?"),
        ("statik", "did you mean static?"),
        ("static", "write static:DRAFT_CONFIG, for example static:4"),
        ("static:", "write static:DRAFT_CONFIG, for example static:4"),
        ("goodput:", "write goodput:off+1+2+4"),
        ("table:", "write for example table:1=8_4_48+9=off"),
        ("vllm_table", "write for example vllm_table:1-4=4+5-20=2"),
        ("sglang-ema", "did you mean sglang_ema?"),
        ("turbo_spec", "did you mean turbospec?"),
        ("none:4", "did you mean none?"),
        ("xyzzy", "choose one of these"),
        ("", "choose one of these"),
    ],
)
def test_an_unknown_name_lists_the_known_ones_and_the_nearest(text: str, advice: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_policy(text)
    assert str(caught.value) == (
        f"got {text!r} for policy; allowed: disable_by_batch, fastgrpo, fastgrpo_chains, goodput, "
        "goodput:DRAFT_CONFIG+DRAFT_CONFIG+..., goodput_mean, goodput_mean:DRAFT_CONFIG+DRAFT_CONFIG+..., "
        "goodput_trees, none, sglang_ema, sglang_throughput, "
        "static:DRAFT_CONFIG, table:LO=DRAFT_CONFIG+..., tlt, "
        f"tlt_chains, tlt_released, tlt_table, turbospec, vllm_adaptive, vllm_table:LO-HI=K+...; {advice}"
    )


@pytest.mark.parametrize(
    "text", ["static:x", "static:8_4", "goodput:off+", "goodput:1+1", "static:3_1_9", "table:1=8_4"]
)
def test_a_draft_config_that_cannot_be_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"for draft_configs?; allowed"):
        parse_policy(text)


def test_every_policy_has_its_own_kind_and_documents_its_fields() -> None:
    kinds = [policy.__struct_config__.tag for policy in POLICIES]
    assert len(set(kinds)) == len(kinds) == len(POLICIES) >= 12
    assert all(policy.__doc__ and policy.__struct_config__.forbid_unknown_fields for policy in POLICIES)
    assert all(policy.__struct_config__.frozen for policy in POLICIES)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "static", "draft_config": "4", "K": 4}, "unknown field `K`"),
        (
            {"kind": "threshold", "inner": {"kind": "table", "draft_configs_by_batch": [[2, "4"]]}},
            "start at 1",
        ),
        ({"kind": "threshold", "inner": {"kind": "none"}}, r"Invalid value 'none' - at `\$\.inner\.kind`"),
        ({"kind": "magic"}, "Invalid value 'magic'"),
        (
            {"kind": "goodput", "decision_engine_steps": "many"},
            r"Expected `int`, got `str` - at `\$\.decision_engine_steps`",
        ),
    ],
)
def test_configuration_errors_say_where(document: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(document, PolicySpec)
