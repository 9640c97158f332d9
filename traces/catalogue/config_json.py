"""A Hugging Face config.json as a shape: attention, windows, experts, and how weights and cache are stored.

Keys are those of transformers. What is written but not modelled is refused by its key, never ignored:
a shape that reads too little memory would look fast.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from tlt.traces.catalogue.quantised import stored_as
from tlt.traces.catalogue.shape import Experts, Indexer, Latent, Linear, ModelShape, Window
from tltsched.errors import InputError

# Keys of structures whose memory or operations are not those of any layer in shape.py.
NOT_MODELLED = {
    "compress_ratios": "compressed attention",
    "attention_chunk_size": "chunked attention", "hybrid_override_pattern": "state-space layers",
    "layers_block_type": "state-space layers", "mamba_num_heads": "state-space layers",
    "ssm_cfg": "state-space layers", "block_configs": "unlike layers",
    "num_kv_shared_layers": "a cache shared by layers", "num_global_key_value_heads": "two sizes of heads",
    "altup_num_inputs": "alternating updates", "hc_mult": "hyper-connections",
    "moe_layer_offset": "unlike layers", "linear_attn_config": "another linear attention",
    "swa_num_key_value_heads": "two sizes of heads",
    "is_encoder_decoder": "an encoder", "moe_latent_size": "experts on a smaller stream",
}  # fmt: skip
OTHERS = re.compile(r"sparse_att|lightning|^mamba_(?!ssm_dtype)")  # in any key
LAYER_TYPES = {"full_attention", "sliding_attention", "linear_attention", "chunked_attention"}
# Their MLPs have two matrices, not three.
UNGATED = {
    "phi",
    "gpt_neox",
    "gpt_neox_japanese",
    "starcoder2",
    "nemotron",
    "gptj",
    "codegen",
    "persimmon",
    "opt",
}
# transformers ties them where nothing is written, in these families alone.
TIED_BY_DEFAULT = {"gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2"}
FILE = "config.json"
MOST_LAYERS, MOST_EXPERTS = 10_000, 100_000  # beyond any model: a broken file


def read_shape(path: Path, field: str) -> ModelShape:
    """Read a config.json, or the one in a folder; raises InputError for `field` if it gives no shape."""
    return shape_of(read_config(path, field), str(path), f"given: {path}", field)


def read_config(path: Path, field: str) -> dict[str, Any]:
    """Read a config.json, with what a hf_quant_config.json beside it adds; raises InputError for `field`."""
    file = path / FILE if path.is_dir() else path
    config = _json(file, field)
    beside = file.parent / "hf_quant_config.json"
    if "quantization_config" not in config and beside.is_file():
        config["quantization_config"] = _json(beside, field)
    return config


def _json(file: Path, field: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))  # Python's: such files may hold Infinity
        return msgspec.convert(found, dict[str, Any])
    except (OSError, ValueError, msgspec.ValidationError, RecursionError) as error:
        raise InputError(
            field, f"{file}: {error}", "a Hugging Face config.json, or a folder that holds one",
            "give the path of one, or the name of a model (`tlt sim models`)",
        ) from None  # fmt: skip


class Keys:
    """The keys of one configuration, asked for by type; what is missing or odd is an InputError."""

    def __init__(self, config: dict[str, Any], name: str, field: str) -> None:
        nested = config.get("text_config")
        self.config = {**config, **nested} if isinstance(nested, dict) else config
        self.name, self.field = name, field

    def refuse(self, got: str, allowed: str) -> InputError:
        """Return the error for what this configuration says."""
        fix = "correct it, or take a shape that it is near to and say so"
        return InputError(self.field, f"{got} in the config.json of {self.name}", allowed, fix)

    def count(self, *keys: str, default: int | None = None) -> int:
        """Return the first of `keys` that is set: a whole number, 0 or more, below a billion."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**9:
                raise self.refuse(f"{key} = {value!r}", "a whole number, 0 or more")
            return value
        if default is None:
            raise self.refuse(f"no {' or '.join(keys)}", "a decoder's config.json as transformers writes it")
        return default

    def positive(self, *keys: str, default: int | None = None) -> int:
        """Return the first of `keys` that is set, 1 or more."""
        value = self.count(*keys, default=default)
        if not value:
            raise self.refuse(f"{keys[0]} = 0", "1 or more")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(f"{key} = {value!r}", "true or false")
        return default if value is None else value

    def listed(self, key: str) -> list[Any]:
        """Return a list, empty where there is none."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, list):
            raise self.refuse(f"{key} = {value!r}", "a list")
        return value or []


def shape_of(config: dict[str, Any], name: str, source: str, field: str) -> ModelShape:
    """Return the shape that a configuration describes.

    name: of the model, for messages. source: where the configuration comes from. Raises InputError for
    `field`: a key is missing or out of range, or a structure is not modelled.
    """
    keys = Keys(config, name, field)
    for key, what in _not_modelled(keys.config):
        raise keys.refuse(f"{key} ({what})", "grouped-query, latent, windowed or gated linear attention, "
                              "gated MLPs and experts")  # fmt: skip
    layers, hidden, heads = (
        keys.positive(key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    if layers > MOST_LAYERS:
        raise keys.refuse(f"num_hidden_layers = {layers}", f"at most {MOST_LAYERS:,}")
    experts = _experts(keys, layers)
    active = experts.per_token * experts.hidden + experts.shared_hidden if experts else None
    windowed, linear = _kinds(keys, layers)
    model_type = keys.config.get("model_type", "")
    shape = ModelShape(
        name=name, hidden=hidden, layers=layers, heads=heads,
        kv_heads=keys.positive("num_key_value_heads", default=heads),
        head_size=keys.positive("head_dim", default=max(hidden // heads, 1)),
        mlp_hidden=keys.positive("dense_intermediate_size", "intermediate_size", default=active),
        vocab=keys.positive("vocab_size"),
        tied=keys.flag("tie_word_embeddings", model_type in TIED_BY_DEFAULT),
        source=source, latent=_latent(keys), window=windowed, linear=linear, experts=experts,
        indexer=_indexer(keys, layers),
        output_gate=keys.flag("attn_output_gate", model_type == "qwen3_next"),
    )  # fmt: skip
    return stored_as(shape, keys.config, keys.refuse)


def _not_modelled(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the keys of structures that no layer of a shape has, and what they are."""
    found = [(key, what) for key, what in NOT_MODELLED.items() if config.get(key)]
    if config.get("model_type") in UNGATED:
        found.append((f"model_type {config['model_type']}", "an MLP without a gate"))
    found += [(key, "another attention") for key, value in config.items() if value and OTHERS.search(key)]
    kinds = config.get("attn_type_list")
    if isinstance(kinds, list) and set(map(str, kinds)) - {"1"}:  # 1: softmax attention
        found.append(("attn_type_list", "another linear attention"))
    return found


def _latent(keys: Keys) -> Latent | None:
    if not keys.config.get("kv_lora_rank"):
        return None
    return Latent(
        query_rank=keys.count("q_lora_rank", default=0),
        kv_rank=keys.positive("kv_lora_rank"),
        nope=keys.count("qk_nope_head_dim"),
        rope=keys.count("qk_rope_head_dim"),
        value=keys.positive("v_head_dim"),
    )


def _indexer(keys: Keys, layers: int) -> Indexer | None:
    """Return what chooses the tokens of sparse attention; layers that share another's choice have none."""
    if not keys.config.get("index_topk"):
        return None
    types = keys.listed("indexer_types")
    if types and (len(types) != layers or not set(map(str, types)) <= {"full", "shared"}):
        raise keys.refuse(f"indexer_types of {len(types)} entries", f"{layers} of full, shared")
    return Indexer(
        layers=types.count("full") if types else layers,
        heads=keys.positive("index_n_heads"),
        size=keys.positive("index_head_dim"),
        tokens=keys.positive("index_topk"),
    )


def _kinds(keys: Keys, layers: int) -> tuple[Window | None, Linear | None]:
    """Return the layers with a window and those of linear attention."""
    types = keys.listed("layer_types") or _types_by_interval(keys, layers)
    if len(types) not in (0, layers) or not {str(kind) for kind in types} <= LAYER_TYPES:
        raise keys.refuse(f"layer_types of {len(types)} entries", f"{layers} of {', '.join(LAYER_TYPES)}")
    tokens = keys.count("sliding_window", default=0)
    if not types and tokens and keys.flag("use_sliding_window", default=True):
        whole = keys.count("max_window_layers", default=0) if keys.flag("use_sliding_window") else 0
        return Window(layers=max(layers - whole, 0), tokens=tokens), None
    windows, linears = types.count("sliding_attention"), types.count("linear_attention")
    if windows and not tokens:
        raise keys.refuse("sliding_attention without sliding_window", "the tokens of the window")
    window = Window(layers=windows, tokens=tokens) if windows else None
    if not linears:
        return window, None
    return window, Linear(
        layers=linears,
        key_heads=keys.positive("linear_num_key_heads"),
        key_size=keys.positive("linear_key_head_dim"),
        value_heads=keys.positive("linear_num_value_heads"),
        value_size=keys.positive("linear_value_head_dim"),
        kernel=keys.positive("linear_conv_kernel_dim"),
    )


def _types_by_interval(keys: Keys, layers: int) -> list[str]:
    """Return the kinds of layers where every n-th is of full attention: linear, or with a window."""
    every = keys.count("full_attention_interval", default=0)
    other = "linear_attention"
    if not every and keys.config.get("sliding_window"):
        alternate = 2 if keys.config.get("model_type") == "gemma2" else 0
        every, other = keys.count("sliding_window_pattern", default=alternate), "sliding_attention"
    return ["full_attention" if every and (layer + 1) % every == 0 else other for layer in range(layers)] if (
        every) else []  # fmt: skip


def _experts(keys: Keys, layers: int) -> Experts | None:
    count = keys.count("n_routed_experts", "num_experts", "num_local_experts", default=0)
    if count <= 1:
        return None
    per_token = keys.positive("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk")
    if count > MOST_EXPERTS:
        raise keys.refuse(f"{count} experts a layer", f"at most {MOST_EXPERTS:,}")
    if per_token > count:
        raise keys.refuse(f"{per_token} experts a token", f"at most the {count} that there are")
    hidden = keys.positive("moe_intermediate_size", "intermediate_size")
    shared = keys.count(
        "shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim", default=0
    )
    return Experts(
        layers=_expert_layers(keys, layers), count=count, per_token=per_token, hidden=hidden,
        shared_hidden=shared or keys.count("n_shared_experts", "num_shared_experts", default=0) * hidden,
    )  # fmt: skip


def _expert_layers(keys: Keys, layers: int) -> int:
    """Return how many layers have experts: all but the dense first ones, or every n-th, or as listed."""
    frequency = keys.config.get("moe_layer_freq")
    if isinstance(frequency, list):
        if len(frequency) != layers:
            raise keys.refuse(f"moe_layer_freq of {len(frequency)} entries", f"one a layer, {layers}")
        return sum(1 for each in frequency if each)
    first = keys.count("first_k_dense_replace", default=0)
    every = keys.positive("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step", default=1)
    dense = {layer for layer in keys.listed("mlp_only_layers") if isinstance(layer, int)}
    chosen = (layer for layer in range(first, layers) if layer not in dense)
    if keys.config.get("decoder_sparse_step"):
        return sum(1 for layer in chosen if (layer + 1) % every == 0)
    return sum(1 for layer in chosen if (layer - (every - 1)) % every == 0)
