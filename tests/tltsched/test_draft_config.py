"""Draft configurations as they are written: text, vLLM's key, SGLang's keys."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies import PolicySpec, parse_policy
from tltsched.policies.beg_mab import BegMabConfig
from tltsched.policies.fastgrpo import FastGrpoConfig
from tltsched.policies.goodput import GoodputConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig
from tltsched.written.draft_config import SGLANG_KEYS, VLLM_KEY, canonical, parse_draft_config

VLLM = {VLLM_KEY: 4}
SGLANG = dict(zip(SGLANG_KEYS, (8, 4, 48), strict=True))
TREE = DraftConfig(8, 4, 48)


def sglang(*numbers: int) -> dict[str, int]:
    return dict(zip(SGLANG_KEYS, numbers, strict=True))


@pytest.mark.parametrize(
    ("written", "draft_config", "text"),
    [
        ("off", OFF, "off"),
        ("0", OFF, "off"),
        (4, chain(4), "4"),
        (" 4 ", chain(4), "4"),
        ("4_1_5", chain(4), "4"),
        ("8_4_48", TREE, "8_4_48"),
        (VLLM, chain(4), "4"),
        ({VLLM_KEY: 0}, OFF, "off"),
        ("num_speculative_tokens=4", chain(4), "4"),
        (SGLANG, TREE, "8_4_48"),
        (sglang(3, 1, 4), chain(3), "3"),
        (
            "speculative_num_steps=8;speculative_eagle_topk=4; speculative_num_draft_tokens = 48",
            TREE,
            "8_4_48",
        ),
    ],
)
def test_all_forms_mean_the_same(written: str | dict[str, int], draft_config: DraftConfig, text: str) -> None:
    assert parse_draft_config(written) == draft_config
    assert canonical(written) == text


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("x", ["got 'x' for draft_config", "an engine's own keys"]),
        ("8_4", ["got '8_4'", "depth_topk_verify"]),
        (-1, ["got -1"]),
        ("", ["got ''"]),
        ("4_1_9", ["got '4'", "depth + 1 = 5"]),
        ("0_4_9", ["got '0_4_9'", "write off"]),
        ({}, ["draft_config keys", "num_speculative_tokens (vLLM)", "together (SGLang)"]),
        ({"num_speculative_token": 4}, ["did you mean 'num_speculative_tokens'?"]),
        ({"speculative_topk": 4}, ["did you mean 'speculative_eagle_topk'?"]),
        (VLLM | SGLANG, ["give the keys of one engine"]),
        ({"speculative_num_steps": 3}, ["got 'speculative_num_steps'", "together (SGLang)"]),
        (sglang(3, 1, 5), ["depth + 1 = 4"]),
        (sglang(2, 2, 8), ["got 8 for speculative_num_draft_tokens", "at most 1 + the 6 that are drafted"]),
        (sglang(2, 2, 1), ["at least 2 tokens to verify", "count the root"]),
        (sglang(0, 1, 1), ["got 0 for speculative_num_steps", "write off to draft nothing"]),
        (sglang(2, 0, 3), ["topk >= 1"]),
        ({VLLM_KEY: -4}, ["got -4 for num_speculative_tokens"]),
        ("num_speculative_tokens=four", ["KEY=NUMBER", "give num_speculative_tokens a number"]),
        ("num_speculative_tokens=4;", ["give a key a number"]),
        ("speculative_num_steps=8;num_speculative_tokens=4", ["give the keys of one engine"]),
    ],
)
def test_what_is_none_says_why(written: str | dict[str, int], parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_draft_config(written)
    assert [part for part in parts if part not in str(caught.value)] == []


@given(st.integers(1, 12), st.integers(2, 8), st.integers(2, 64))
def test_a_tree_says_the_same_in_every_form(steps: int, topk: int, tokens: int) -> None:
    tokens = min(tokens, 1 + topk + (steps - 1) * topk**2)
    table = sglang(steps, topk, tokens)
    draft_config = parse_draft_config(table)
    assert (draft_config.depth, draft_config.topk, draft_config.verify_tokens) == (steps, topk, tokens)
    text = ";".join(f"{key}={number}" for key, number in table.items())
    assert parse_draft_config(text) == parse_draft_config(str(draft_config)) == draft_config


@given(st.integers(1, 64))
def test_the_engines_mean_the_same_chain(k: int) -> None:
    assert parse_draft_config({VLLM_KEY: k}) == parse_draft_config(sglang(k, 1, k + 1)) == chain(k)
    assert parse_draft_config(f"{VLLM_KEY}={k}") == parse_draft_config(str(k)) == parse_draft_config(k)


@pytest.mark.parametrize(
    ("document", "config"),
    [
        ({"kind": "static", "draft_config": VLLM}, StaticConfig(draft_config="4")),
        ({"kind": "static", "draft_config": 4}, StaticConfig(draft_config="4")),
        ({"kind": "static", "draft_config": SGLANG}, StaticConfig(draft_config="8_4_48")),
        (
            {"kind": "table", "draft_configs_by_batch": [[1, VLLM], [9, "off"]]},
            TableConfig(draft_configs_by_batch=((1, "4"), (9, "off"))),
        ),
        (
            {"kind": "goodput", "draft_configs": ["off", SGLANG], "tree_prior": {"8_4_48": 5.0}},
            GoodputConfig(draft_configs=("off", "8_4_48"), tree_prior={"8_4_48": 5.0}),
        ),
        ({"kind": "fastgrpo", "draft_configs": [SGLANG]}, FastGrpoConfig(draft_configs=("8_4_48",))),
        (
            {"kind": "beg_mab", "strategies": [SGLANG], "thresholds": [1]},
            BegMabConfig(strategies=("8_4_48",), thresholds=(1,)),
        ),
    ],
)
def test_a_configuration_may_have_an_engines_keys(document: dict[str, object], config: PolicySpec) -> None:
    read = msgspec.convert(document, PolicySpec)
    assert read == config
    assert msgspec.json.decode(msgspec.json.encode(read), type=PolicySpec) == config


def test_so_may_the_name_of_a_policy() -> None:
    assert parse_policy("static:num_speculative_tokens=4") == StaticConfig(draft_config="4")
    tree = ";".join(f"{key}={number}" for key, number in SGLANG.items())
    assert parse_policy(f"goodput:off+{tree}") == GoodputConfig(draft_configs=("off", "8_4_48"))


def test_two_forms_of_one_draft_configuration_are_one_too_many() -> None:
    with pytest.raises(InputError, match="each once"):
        GoodputConfig(draft_configs=("off", "4", VLLM))
