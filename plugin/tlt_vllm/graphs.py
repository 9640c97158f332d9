"""Graphs and compilations of an engine: whether it made any, and a repair that K by engine step needs.

On CUDA a batch misses the graphs of its own query length once several K are in use.
"""

from __future__ import annotations

import importlib
import importlib.util
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


class CompileWatch:
    """Counts what torch, vLLM and Triton have compiled or captured in this process so far.

    The ranks of an engine over several GPUs are processes of their own: what they compile is not seen here.
    """

    def __init__(self) -> None:
        from torch._dynamo.utils import counters
        from vllm.compilation.counter import compilation_counter

        self._dynamo = counters
        self._engine = compilation_counter
        self._triton = 0
        if importlib.util.find_spec("triton") is None:
            return
        knobs = importlib.import_module("triton").knobs
        before = knobs.runtime.jit_post_compile_hook

        def compiled(**what: Any) -> Any:
            self._triton += 1
            return before(**what) if before is not None else None

        knobs.runtime.jit_post_compile_hook = compiled

    def count(self) -> int:
        """Return how many graphs, kernels and CUDA graphs were made; it never falls."""
        engine = self._engine
        return int(
            self._dynamo["stats"]["unique_graphs"]
            + engine.num_backend_compilations
            + engine.num_inductor_compiles
            + engine.num_cudagraph_captured
            + self._triton
        )
