"""How a configuration says that weights and cache are stored: its `quantization_config`, by method.

Bits count the scales. A method stores the matrices of all layers; the head, the embedding and routers stay in
bf16, and so does what it names as left out. Weights alone (INT4, MXFP4) are multiplied in bf16.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from tlt.traces.catalogue.shape import BF16, ModelShape, Weights
from tltsched.errors import InputError

Refuse = Callable[[str, str], InputError]
METHODS = "fp8, awq, gptq, mxfp4, compressed-tensors, modelopt (FP8, NVFP4), bitsandbytes"
FP8 = Weights(bits=8.0, products="fp8")
MXFP4 = Weights(bits=4 + 8 / 32)  # one byte of scale for 32 weights
NVFP4 = Weights(bits=4 + 8 / 16, products="fp4")
INT4 = Weights(bits=4 + 16 / 128)  # groups of 128, as AWQ and GPTQ are mostly published
INT8 = Weights(bits=8 + 16 / 128)
BY_SUFFIX = {
    "FP8": FP8, "INT4": INT4, "AWQ": INT4, "GPTQ-Int4": INT4, "GPTQ-Int8": INT8, "NVFP4": NVFP4,
    "MXFP4": MXFP4,
}  # fmt: skip
# Names by which methods leave out the attention, and the dense layers and shared experts.
ATTENTION, DENSE = r"self_attn|[qk]_proj|qkv", r"shared_expert|mlp\S*\(gate\|"


def stored_as(shape: ModelShape, config: dict[str, Any], refuse: Refuse) -> ModelShape:
    """Return the shape with weights and cache as its configuration stores them."""
    given = config.get("quantization_config") or {}
    if not isinstance(given, dict):
        raise refuse(f"quantization_config = {given!r}", "a table")
    given = {**given, **given["quantization"]} if isinstance(given.get("quantization"), dict) else given
    kv_bits = 8.0 if "8" in _cache(given) else 16.0
    shape = msgspec.structs.replace(shape, kv_bits=kv_bits)
    if not given:
        return shape
    weights = _weights(given, refuse)
    left_out = [str(each) for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
                for each in given.get(key) or ()]  # fmt: skip
    attention = BF16 if _leaves(left_out, ATTENTION, shape.layers) else weights
    dense = BF16 if _leaves(left_out, DENSE, shape.layers) else weights
    return msgspec.structs.replace(
        shape, attention_weights=attention, mlp_weights=dense, expert_weights=weights
    )


def _cache(given: dict[str, Any]) -> str:
    scheme = given.get("kv_cache_scheme") or given.get("kv_cache_quant_algo") or ""
    return str(scheme.get("num_bits", "") if isinstance(scheme, dict) else scheme)


def _weights(given: dict[str, Any], refuse: Refuse) -> Weights:
    """Return how a method stores a matrix."""
    method = str(given.get("quant_method") or given.get("quant_algo") or "").lower()
    algorithm = str(given.get("quant_algo") or "").upper()
    if "MIXED" in algorithm:
        raise refuse("layers quantised differently from one another", METHODS)
    if "FP4" in algorithm:
        return NVFP4
    if method.startswith("fp8") or "FP8" in algorithm or method == "fbgemm_fp8":
        return FP8
    if method == "mxfp4":
        return MXFP4
    if method in ("awq", "gptq", "auto-round", "auto_round"):
        return _integers(given.get("bits"), given.get("group_size"), refuse)
    if method == "bitsandbytes":
        return Weights(bits=4.5) if given.get("load_in_4bit") else Weights(bits=8.0)
    groups = given.get("config_groups")
    if method in ("compressed-tensors", "modelopt") and isinstance(groups, dict) and groups:
        stored = {_group(group, refuse) for group in groups.values()}
        if len(stored) > 1:
            raise refuse("layers quantised differently from one another", METHODS)
        return stored.pop()
    raise refuse(f"quantization_config of method {method or 'nothing'!r}", METHODS)


def _group(group: Any, refuse: Refuse) -> Weights:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise refuse("a quantization group without weights", METHODS)
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float" and bits == 8:
        return FP8
    if kind == "float" and bits == 4:
        return NVFP4
    return _integers(bits, weights.get("group_size"), refuse)


def _integers(bits: Any, group: Any, refuse: Refuse) -> Weights:
    """Return integers of so many bits, with a 16-bit scale a group (none, or -1: a scale a row)."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
        raise refuse(f"weights of {bits!r} bits", "1 to 8 bits")
    return Weights(bits=bits + (16 / group if isinstance(group, int) and group > 0 else 0.0))


def _leaves(left_out: list[str], pattern: str, layers: int) -> bool:
    """Return whether what is left out takes in most layers: a pattern, or entries of more than half."""
    found = [each for each in left_out if re.search(pattern, each)]
    numbers = {number for each in found for number in re.findall(r"\.(\d+)\.", each)}
    return any(not re.search(r"\.\d+\.", each) for each in found) or len(numbers) > layers / 2
