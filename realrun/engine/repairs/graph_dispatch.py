"""CUDA: a batch misses the graphs of its own query length once several K are in use."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Let a batch find the nearest graph of its own query length; must run before an engine is built.

    The engine looks only at the graphs of the next captured token count. With several K in use that count may
    have been captured for another query length alone, and the batch then runs without a full graph although
    a slightly larger one would fit it.
    """
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    original = CudaGraphManager._init_candidates
    if getattr(original, "repaired", False):
        return

    def init_candidates(manager: Any) -> None:
        original(manager)
        widen_candidates(manager._candidates)

    init_candidates.repaired = True  # type: ignore[attr-defined]
    CudaGraphManager._init_candidates = init_candidates


def widen_candidates(candidates: dict[tuple[int, int], list[Any]]) -> None:
    """Add to the candidates of each token count the nearest larger uniform graph of every query length.

    `candidates` maps (tokens, adapters) to graph descriptions, best first. The added ones come before those
    that serve any query length, for a graph of one length holds attention too.
    """
    nearest: dict[int, dict[int, Any]] = {}  # adapters -> query length -> description
    for tokens, adapters in sorted(candidates, reverse=True):
        graphs = candidates[tokens, adapters]
        lengths = nearest.setdefault(adapters, {})
        lengths.update({graph.uniform_token_count: graph for graph in graphs if graph.uniform_token_count})
        others = [graph for graph in graphs if not graph.uniform_token_count]
        candidates[tokens, adapters] = [lengths[length] for length in sorted(lengths)] + others
