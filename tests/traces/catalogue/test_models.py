"""Models by name and by config.json: parameters as published, memory by hand, odd files refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tlt.traces.catalogue.models import canonical, model_config, model_shape, published
from tlt.traces.catalogue.shape import ModelShape
from tltsched.errors import InputError

UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}
SMALL = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10,
}  # fmt: skip

GROUPS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "config_groups": {"first": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
}


def rounded(text: str) -> tuple[float, float]:
    """Return a number of parameters as authors write it, and half a unit of its last digit."""
    digits, unit = text[:-1], UNITS[text[-1]]
    decimals = len(digits.partition(".")[2])
    return float(digits) * unit, 0.5 * 10**-decimals * unit


def read(tmp_path: Path, **changed: Any) -> ModelShape:
    """Return the shape of SMALL with changed keys, read from a file."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL | changed), encoding="utf-8")
    return model_shape(str(tmp_path))


@pytest.mark.parametrize("name", [name for name in published() if name != "tiny"])
def test_parameters_are_as_published(name: str) -> None:
    stated, half = rounded(published()[name].published)
    assert abs(model_shape(name).parameters() - stated) <= max(0.01 * stated, half)


@pytest.mark.parametrize("name", [name for name, model in published().items() if model.published_active])
def test_active_parameters_are_about_those_published(name: str) -> None:
    # Authors count the embedding in or not, and some leave the head out.
    shape, (stated, half) = model_shape(name), rounded(published()[name].published_active)
    head = shape.vocab * shape.hidden
    nearest = min(abs(shape.active_parameters() + extra - stated) for extra in (-head, 0, head))
    assert nearest <= max(0.04 * stated, half)


def test_each_model_says_where_it_is_from_and_no_two_share_a_name() -> None:
    names = [name for model in published().values() for name in (model.name, *model.also)]
    assert len(names) == len(set(names))
    assert all(model.source.startswith(("published: ", "made up: ")) for model in published().values())


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B"), ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"), ("Qwen/Qwen3-32B-FP8", "Qwen3-32B-FP8"),
        ("Qwen2.5-7B-Instruct-AWQ", "Qwen2.5-7B-AWQ"), ("elsewhere/Qwen3-8B", "elsewhere/Qwen3-8B"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"), ("Qwen3-8B-fp8", "Qwen3-8B-FP8"), ("Qwen3-9B", "Qwen3-9B"),
    ],
)  # fmt: skip
def test_a_name_may_carry_organisation_tuning_and_storage(given: str, name: str) -> None:
    assert canonical(given) == name


@pytest.mark.parametrize("name", ["Qwen3-9B", "Qwen/Qwen3-7B", "Llama-4-Scout"])
def test_an_unknown_name_is_told_how_to_give_its_own(name: str) -> None:
    with pytest.raises(InputError, match=r"path of its config\.json") as caught:
        model_shape(name)
    assert "did you mean" not in str(caught.value)
    assert "SmolLM2" not in str(caught.value)  # of another family


def test_another_way_to_write_a_name_is_proposed() -> None:
    with pytest.raises(InputError, match="did you mean 'Qwen3-8B'"):
        model_shape("qwen3-8b")


def test_a_dense_file_by_hand(tmp_path: Path) -> None:
    shape = read(tmp_path)
    # heads of 8 / 4 = 2: queries and output 2 x 8 x 8, keys and values 2 x 8 x 4; three matrices of 8 x 16
    assert shape.layer_parameters() == 128 + 64 + 384
    assert shape.parameters() == 3 * 576 + 2 * 80
    assert shape.kv_bytes_per_token() == 3 * 2 * 2 * 2 * 2
    assert shape.weight_bytes() == 2 * shape.parameters()


def test_experts_shared_ones_and_dense_first_layers_by_hand(tmp_path: Path) -> None:
    shape = read(
        tmp_path, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=4, n_shared_experts=1,
        first_k_dense_replace=1,
    )  # fmt: skip
    # two layers of eight experts of 3 x 8 x 4, one shared, a router of 8 x 8; one dense layer of 3 x 8 x 16
    assert shape.read_parameters() == 3 * 192 + 384 + 2 * (8 * 96 + 96 + 64) + 80
    assert shape.active_parameters() == 3 * 192 + 384 + 2 * (2 * 96 + 96 + 64) + 80
    assert shape.expert_bytes() == 2 * 8 * 96 * 2


def test_latent_attention_by_hand(tmp_path: Path) -> None:
    shape = read(
        tmp_path, kv_lora_rank=6, q_lora_rank=5, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=4
    )
    queries, keys = 8 * 5 + 5 * 4 * 5, 8 * (6 + 2) + 6 * 4 * (3 + 4)
    assert shape.attention_parameters() == queries + keys + 4 * 4 * 8
    assert shape.kv_bytes_per_token() == 3 * (6 + 2) * 2  # one vector a layer for all heads
    assert shape.attention_flops_per_pair() == 2 * 3 * 4 * (3 + 2 + 4)


def test_windows_and_linear_layers_do_not_grow_with_the_context(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    shape = read(tmp_path, layer_types=types, sliding_window=7)
    assert shape.kv_bytes_per_token() == 1 * 8 * 2
    assert shape.kv_bytes_per_request() == 2 * 7 * 8 * 2
    shape = read(
        tmp_path, full_attention_interval=3, linear_num_key_heads=1, linear_key_head_dim=2,
        linear_num_value_heads=2, linear_value_head_dim=3, linear_conv_kernel_dim=4,
    )  # fmt: skip
    assert shape.kv_bytes_per_token() == 1 * 8 * 2
    assert shape.kv_bytes_per_request() == 2 * 2 * 2 * 3 * 4  # two layers, two heads of 2 x 3 in float32


def test_sparse_attention_holds_all_tokens_and_reads_those_it_chooses(tmp_path: Path) -> None:
    shape = read(
        tmp_path, kv_lora_rank=6, q_lora_rank=5, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=4,
        index_topk=9, index_n_heads=2, index_head_dim=128, indexer_types=["full", "shared", "full"],
    )  # fmt: skip
    keys = 2 * (128 + 4)  # of two layers, 8 bits and a scale of 4 bytes
    assert shape.kv_bytes_per_token() == 3 * (6 + 2) * 2 + keys
    assert shape.read_bytes_per_token() == keys
    assert shape.read_bytes_per_request() == 3 * 9 * (6 + 2) * 2
    plain = read(
        tmp_path, kv_lora_rank=6, q_lora_rank=5, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=4
    )
    assert shape.parameters() - plain.parameters() == 2 * (5 * 2 * 128 + 8 * 128 + 8 * 2)


@pytest.mark.parametrize(
    ("changed", "layers"),
    [
        ({}, 0), ({"sliding_window": 7}, 3), ({"sliding_window": 7, "use_sliding_window": False}, 0),
        ({"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 2}, 1),
        ({"sliding_window": 7, "sliding_window_pattern": 3}, 2),
        ({"sliding_window": 7, "model_type": "gemma2"}, 2),
    ],
)  # fmt: skip
def test_layers_with_a_window(changed: dict[str, Any], layers: int, tmp_path: Path) -> None:
    window = read(tmp_path, **changed).window
    assert (window.layers if window else 0) == layers


@pytest.mark.parametrize(
    ("given", "bits"),
    [
        ({"quant_method": "fp8"}, (8, 8, 8)),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, (4.25, 4.25, 4.25)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, (8, 8, 8)),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, (16, 4.25, 4.25)),
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, (4.5, 4.5, 4.5)),
        (GROUPS | {"ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]}, (16, 16, 4.5)),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}, (8, 8, 8)),
        ({"quant_method": "fp8", "modules_to_not_convert": [
            f"model.layers.{n}.post_attention_layernorm" for n in range(3)]}, (8, 8, 8)),
        ({"quant_method": "fp8", "modules_to_not_convert": [
            f"model.layers.{n}.self_attn.q_proj" for n in range(3)]}, (16, 8, 8)),
    ],
)  # fmt: skip
def test_stored_weights(given: dict[str, Any], bits: tuple[float, ...], tmp_path: Path) -> None:
    shape = read(tmp_path, quantization_config=given)
    found = (shape.attention_weights, shape.mlp_weights, shape.expert_weights)
    assert tuple(each.bits for each in found) == bits
    assert shape.kv_bits == (8 if "kv_cache_quant_algo" in given else 16)


def test_a_name_that_ends_in_fp8_is_stored_in_half() -> None:
    whole, stored = model_shape("Qwen2.5-7B"), model_shape("Qwen2.5-7B-FP8")
    ends = 2 * 2 * whole.vocab * whole.hidden  # head and embedding stay in bf16
    assert stored.weight_bytes() - ends == (whole.weight_bytes() - ends) / 2
    assert model_config("Qwen2.5-7B-FP8", "model")["quantization_config"]["quant_method"] == "fp8"
    with pytest.raises(InputError, match="-FP8"):
        model_config("Qwen2.5-7B-AWQ", "model")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"index_topk": 2048}, "no index_n_heads"), ({"compress_ratios": [4]}, "compressed attention"),
         ({"attn_type_list": [0, 1, 1]}, "attn_type_list"),
        ({"sparse_attention_config": {"a": 1}}, "sparse_attention_config"),
        ({"quantization_config": {"quant_algo": "MIXED_PRECISION"}}, "differently"),
        ({"quantization_config": GROUPS | {"config_groups": GROUPS["config_groups"] | {
            "b": {"weights": {"num_bits": 8, "type": "float"}}}}}, "differently"),
        ({"model_type": "phi"}, "without a gate"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"hidden_size": -1}, "a whole number"), ({"vocab_size": "big"}, "a whole number"),
        ({"num_hidden_layers": 10**8}, "at most 10,000"),
        ({"num_experts": 10**8, "num_experts_per_tok": 2}, "at most 100,000"),
        ({"num_hidden_layers": 0}, "1 or more"), ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"quantization_config": {"quant_method": "exotic"}}, "exotic"),
        ({"num_experts": 4, "num_experts_per_tok": 9}, "9 experts a token"),
        ({"quantization_config": {"quant_method": "awq", "bits": 99}}, "1 to 8 bits"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_or_broken_is_refused_by_its_key(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, **changed)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": 1}', b"\xff\xfe", b"[" * 5000])
def test_a_file_that_is_no_configuration_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"hardware\.model"):
        model_shape(str(tmp_path))


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a folder that holds a config\.json"):
        model_shape(str(tmp_path))
