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
from tltsched.step_times import AnyTimes, ArmTimes, StepTimeTable


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_parses_builds_and_survives_json(name: str) -> None:
    config = parse_policy(name)
    assert config == PRESETS[name]
    assert msgspec.json.decode(msgspec.json.encode(config), type=PolicySpec) == config
    arms = config.build(Random(0), AnyTimes()).arms  # noqa: S311
    times = StepTimeTable(tuple(ArmTimes(arm, (0.01,)) for arm in arms))
    policy = config.build(Random(0), times if config.needs_times else None)  # noqa: S311
    assert policy.arms == arms
    if config.needs_times:
        with pytest.raises(InputError, match="calibration"):
            config.build(Random(0), None)  # noqa: S311
    assert type(config).needs_drafter == any(arm != OFF for arm in policy.arms)


def test_the_released_preset_is_what_the_code_ships() -> None:
    released = PRESETS["tlt_released"]
    assert isinstance(released, ThresholdConfig)
    assert isinstance(released.inner, BegMabConfig)
    assert (released.threshold_requests, released.warmup_cycles, released.latch) == (32, 10, True)
    assert (released.entry, released.inner.variant, released.inner.window) == ("reprefill", "released", 300)
    assert released.inner.strategies == ("8_4_48", "8_4_32", "8_4_16", "8_4_8")
    assert released.inner.thresholds == (1, 2, 5, 21)


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("static:4", StaticConfig(arm="4")),
        (" static:8_4_48 ", StaticConfig(arm="8_4_48")),
        ("goodput:off+1+ 2+4", GoodputConfig(arms=("off", "1", "2", "4"))),
        ("vllm_table:1-4=4+5-20=2+21-64=0", TableConfig(arms_by_batch=((1, "4"), (5, "2"), (21, "off")))),
    ],
)
def test_arms_can_be_given_with_the_name(text: str, config: PolicyConfig) -> None:
    assert parse_policy(text) == config


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("tlt_relased", "did you mean tlt_released?"),
        ("godput", "did you mean goodput?"),
        ("statik", "did you mean static?"),
        ("static", "write static:ARM, for example static:4"),
        ("static:", "write static:ARM, for example static:4"),
        ("goodput:", "write goodput:off+1+2+4"),
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
        "goodput:ARM+ARM+..., goodput_trees, none, sglang_ema, sglang_throughput, static:ARM, tlt, "
        f"tlt_chains, tlt_released, tlt_table, turbospec, vllm_adaptive, vllm_table:LO-HI=K+...; {advice}"
    )


@pytest.mark.parametrize("text", ["static:x", "static:8_4", "goodput:off+", "goodput:1+1", "static:3_1_9"])
def test_an_arm_that_cannot_be_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"for arms?; allowed"):
        parse_policy(text)


def test_every_policy_has_its_own_kind_and_documents_its_fields() -> None:
    kinds = [policy.__struct_config__.tag for policy in POLICIES]
    assert len(set(kinds)) == len(kinds) == len(POLICIES) >= 12
    assert all(policy.__doc__ and policy.__struct_config__.forbid_unknown_fields for policy in POLICIES)
    assert all(policy.__struct_config__.frozen for policy in POLICIES)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "static", "arm": "4", "K": 4}, "unknown field `K`"),
        ({"kind": "threshold", "inner": {"kind": "table", "arms_by_batch": [[2, "4"]]}}, "start at 1"),
        ({"kind": "threshold", "inner": {"kind": "none"}}, r"Invalid value 'none' - at `\$\.inner\.kind`"),
        ({"kind": "magic"}, "Invalid value 'magic'"),
        ({"kind": "goodput", "epoch_cycles": "many"}, r"Expected `int`, got `str` - at `\$\.epoch_cycles`"),
    ],
)
def test_configuration_errors_say_where(document: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(document, PolicySpec)
