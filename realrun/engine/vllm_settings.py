"""What vLLM is told: the arguments of an engine, as plain values that are checked before vLLM is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Any

from tlt.plugin.drafting import GRAPH_BATCHES, batches_up_to, graph_tokens, k_table
from tlt.realrun.config import RealConfig
from tltsched.errors import InputError

CHUNK_TOKENS = {"cpu": 2048, "cuda": 8192}  # most tokens that one engine step computes
BLOCK_TOKENS = {"cpu": 32, "cuda": 16}  # of a KV cache of given size
GIGABYTE = 2**30


def engine_arguments(config: RealConfig, speculating: bool) -> dict[str, Any]:
    """Return the arguments of vLLM's EngineArgs, the scheduler class left out; raises InputError."""
    engine = config.engine
    if not config.model.folder:
        raise InputError("model.folder", "", "a prepared model folder", "write one with `tlt real model`")
    arguments: dict[str, Any] = {
        "model": config.model.folder,
        "skip_tokenizer_init": True,
        "dtype": config.model.dtype,
        "load_format": "dummy" if config.model.random_weights else "auto",
        # Room for the drafts of the last engine step, so that no batch is cut at the end of its longest
        # request.
        "max_model_len": engine.max_context_tokens + max(config.drafter.ks) + 1,
        "max_num_seqs": engine.max_running,
        "max_num_batched_tokens": chunk_tokens(config),
        "enforce_eager": engine.eager,
        "enable_prefix_caching": engine.prefix_caching,
        "tensor_parallel_size": config.workers.tp,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": config.seed,
    }
    if engine.device == "cuda":
        arguments["gpu_memory_utilization"] = engine.memory_fraction
        arguments["async_scheduling"] = True
        if not engine.eager and engine.graphs == "every_k":
            arguments["cudagraph_capture_sizes"] = graph_sizes(config, speculating)
            # An engine that starts in a process clears the piecewise graphs of all others in it; full graphs
            # stay. So engine steps with prefill run without graphs, and pure decode has full ones.
            arguments["compilation_config"] = {"cudagraph_mode": "FULL_DECODE_ONLY"}
    else:
        arguments["kv_cache_memory_bytes"] = int(engine.kv_gigabytes * GIGABYTE)
    if engine.kv_tokens:
        arguments["block_size"] = BLOCK_TOKENS[engine.device]
        arguments["num_gpu_blocks_override"] = ceil(engine.kv_tokens / BLOCK_TOKENS[engine.device])
    if config.model.quantization != "none":
        arguments["quantization"] = config.model.quantization
    if speculating:
        arguments["speculative_config"] = speculation(config)
    return arguments


def chunk_tokens(config: RealConfig) -> int:
    """Return the most tokens of one engine step: a whole batch with its drafts, or a chunk of prefill."""
    drafts = config.engine.max_running * (max(config.drafter.ks) + 1)
    return max(CHUNK_TOKENS[config.engine.device], drafts)


def graph_sizes(config: RealConfig, speculating: bool) -> list[int]:
    """Return the token counts to capture graphs of."""
    return graph_tokens(graph_batches(config), (0, *config.drafter.ks) if speculating else (0,))


def graph_batches(config: RealConfig) -> tuple[int, ...]:
    """Return the batches whose graphs are captured: those asked for, and the largest one."""
    return batches_up_to(config.engine.max_running, config.engine.graph_batches or GRAPH_BATCHES)


def speculation(config: RealConfig) -> dict[str, Any]:
    """Return vLLM's speculative_config; raises InputError for a drafter that cannot be had."""
    drafter, cuda = config.drafter, config.engine.device == "cuda"
    settings: dict[str, Any] = {
        "method": drafter.kind,
        "num_speculative_tokens": max(drafter.ks),
        "num_speculative_tokens_per_batch_size": k_table(drafter.ks, config.engine.max_running),
    }
    if drafter.kind in ("eagle3", "draft_model"):
        settings |= _draft_weights(config)
    elif drafter.kind == "ngram":
        settings["method"] = "ngram_gpu" if cuda else "ngram"
        settings |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    elif cuda and drafter.kind == "suffix":
        allowed = "eagle3, mtp, ngram, draft_model on cuda"
        raise InputError("drafter.kind", drafter.kind, allowed, "or run on cpu")
    if drafter.synthetic_survival:
        settings["rejection_sample_method"] = "synthetic"
        settings["synthetic_acceptance_rates"] = survival(drafter.synthetic_survival, max(drafter.ks))
    return settings


def survival(rates: Sequence[float], largest: int) -> list[float]:
    """Return the share of requests whose draft is accepted at each position up to `largest`."""
    given = list(rates[:largest])
    falling = all(later <= earlier for earlier, later in pairwise(given))
    if len(given) < largest or not falling or not all(0 <= rate <= 1 for rate in given):
        allowed = f"{largest} or more rates of 0 to 1 that do not rise, one a position"
        raise InputError("drafter.synthetic_survival", tuple(rates), allowed, "correct the list")
    return given


def _draft_weights(config: RealConfig) -> dict[str, Any]:
    drafter = config.drafter
    if not drafter.folder:
        fix = "write one with `tlt real model`"
        raise InputError("drafter.folder", "", "a folder with drafter weights", fix)
    if drafter.kind == "eagle3" and drafter.random_weights:
        # vLLM gives a head that was filled with dummy weights the output layer of its target.
        fix = "a head of random weights from `tlt real model` is loaded like any other"
        raise InputError("drafter.random_weights", True, "false with eagle3", fix)
    settings: dict[str, Any] = {
        "model": drafter.folder,
        "draft_load_config": {
            "load_format": "dummy" if drafter.random_weights else "auto",
            "use_tqdm_on_load": False,
        },
    }
    if config.engine.temperature > 0 and not drafter.synthetic_survival:
        settings["draft_sample_method"] = "probabilistic"  # sampled text accepts more of a sampled draft
    return settings
