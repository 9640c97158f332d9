"""Whether something was compiled inside a timed engine step."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


class CompileWatch:
    """Counts what torch, vLLM and Triton have compiled or captured in this process so far."""

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
