"""How many tokens the KV cache of one rollout worker holds."""

from __future__ import annotations

from tlt.sim.config import EngineConfig
from tlt.sim.steptimes.parallel import Parallel
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
    parallel: Parallel,
    draft_configs: tuple[DraftConfig, ...],
    longest_tokens: int,
) -> float:
    """Return the capacity of an engine in tokens after weights, drafter and CUDA graphs.

    What a request holds whatever its context (windows, states) is spread over `longest_tokens`, so that the
    capacity is exact for requests of that length and too large for shorter ones.
    Raises InputError if the weights, or one request of `longest_tokens`, do not fit.
    """
    drafting = [draft_config for draft_config in draft_configs if draft_config.depth]
    graph_bytes = engine.graph_bytes
    if graph_bytes is None:
        graph_bytes = (GRAPH_BYTES_PLAIN, GRAPH_BYTES_ONE_DRAFT_CONFIG)[bool(drafting)]
        graph_bytes = GRAPH_BYTES_MANY_DRAFT_CONFIGS if len(drafting) > 1 else graph_bytes
    drafter = (shape.layer_parameters() + 3 * shape.hidden**2) * BF16_BYTES if drafting else 0
    usable = parallel.gpus * (gpu.memory_bytes * engine.memory_fraction - graph_bytes)
    weights = parallel.weight_bytes(shape) + drafter * parallel.attention_dp
    each = shape.kv_bytes_per_token() * (1 + (1 / shape.cache_layers() if drafting else 0))
    per_token = (each + shape.kv_bytes_per_request() / longest_tokens) * parallel.cache_copies(shape)
    tokens = (usable - weights) / per_token
    if tokens / parallel.attention_dp < longest_tokens:  # a request lies on the GPUs of one group
        fix = (
            "raise hardware.tp (or hardware.pp, or for experts hardware.attention_dp), or take another GPU "
            "or quantised weights"
        )
        raise InputError(
            "hardware", f"{max(tokens, 0):,.0f} tokens of KV cache on {parallel.count()} x {gpu.name} for "
            f"{shape.name} ({weights / 1e9:,.1f} GB of weights, {usable / 1e9:,.1f} GB to use)",
            f"at least {longest_tokens * parallel.attention_dp:,} (prompt and cap of one response"
            f"{', on each group' if parallel.attention_dp > 1 else ''})",
            fix if tokens <= 0 else f"lower workload.max_response_tokens, or {fix}",
        )  # fmt: skip
    return tokens
