"""How many tokens the KV cache of one rollout worker holds."""

from __future__ import annotations

from tlt.sim.config import EngineConfig
from tlt.traces.catalogue.gpus import GpuSpec
from tlt.traces.catalogue.shape import BF16_BYTES, ModelShape
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError

# Published (TLT, table 5): graph pool of one strategy, and of several with bucketed capture.
GRAPH_BYTES_ONE_DRAFT_CONFIG = 7.81e9
GRAPH_BYTES_MANY_DRAFT_CONFIGS = 10.69e9
GRAPH_BYTES_PLAIN = 2e9  # assumed


def kv_tokens(
    engine: EngineConfig,
    shape: ModelShape,
    gpu: GpuSpec,
    tp: int,
    draft_configs: tuple[DraftConfig, ...],
    longest_tokens: int,
) -> float:
    """Return the capacity in tokens after weights, drafter and CUDA graphs.

    Raises InputError if the weights, or one request of `longest_tokens`, do not fit.
    """
    drafting = [draft_config for draft_config in draft_configs if draft_config.depth]
    graph_bytes = engine.graph_bytes
    if graph_bytes is None:
        graph_bytes = (GRAPH_BYTES_PLAIN, GRAPH_BYTES_ONE_DRAFT_CONFIG)[bool(drafting)]
        graph_bytes = GRAPH_BYTES_MANY_DRAFT_CONFIGS if len(drafting) > 1 else graph_bytes
    weights = shape.parameters() * BF16_BYTES
    drafter = (shape.layer_parameters() + 3 * shape.hidden**2) * BF16_BYTES if drafting else 0
    left_bytes = tp * (gpu.memory_bytes * engine.memory_fraction - graph_bytes) - weights - drafter
    per_token = shape.kv_bytes_per_token() * (1 + (1 / shape.layers if drafting else 0))
    tokens = left_bytes / per_token
    if tokens < longest_tokens:
        raise InputError(
            "hardware", f"{max(tokens, 0):,.0f} tokens of KV cache on {tp} x {gpu.name} for {shape.name}",
            f"at least {longest_tokens:,} (prompt and cap of one response)",
            "raise hardware.tp, lower workload.max_response_tokens, or take another GPU",
        )  # fmt: skip
    return tokens
