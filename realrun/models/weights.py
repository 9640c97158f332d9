"""Random weights of a decoder layer, under the names that transformers and vLLM read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def layer_weights(
    prefix: str, random: Callable[..., Any], ones: Any, hidden: int, attention_input: int,
    widths: tuple[int, int], mlp_hidden: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the weights of one decoder layer; `widths` are those of all query and all key heads together."""
    query, key = widths
    return {
        f"{prefix}self_attn.q_proj.weight": random(query, attention_input),
        f"{prefix}self_attn.k_proj.weight": random(key, attention_input),
        f"{prefix}self_attn.v_proj.weight": random(key, attention_input),
        f"{prefix}self_attn.o_proj.weight": random(hidden, query),
        f"{prefix}mlp.gate_proj.weight": random(mlp_hidden, hidden),
        f"{prefix}mlp.up_proj.weight": random(mlp_hidden, hidden),
        f"{prefix}mlp.down_proj.weight": random(hidden, mlp_hidden),
        f"{prefix}input_layernorm.weight": ones.clone(),
        f"{prefix}post_attention_layernorm.weight": ones.clone(),
    }
