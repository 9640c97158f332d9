"""Names every place of vLLM that this project touches, so that another version fails here and says where."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Literal

import pytest

from tests.realrun.small_models import need_vllm
from tlt.plugin import graphs
from tlt.plugin.drafting import k_table
from tlt.plugin.graphs import CompileWatch
from tlt.realrun.config import DrafterConfig, EngineConfig, Graphs, RealConfig
from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.vllm_settings import graph_sizes

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

# module -> names in it that realrun.engine.vllm_* use
NAMES: dict[str, Sequence[str]] = {
    "vllm": ["EngineArgs", "SamplingParams"],
    "vllm.sampling_params": ["RequestOutputKind"],
    "vllm.v1.engine.llm_engine": ["LLMEngine"],
    "vllm.v1.core.sched.scheduler": ["Scheduler"],
    "vllm.v1.core.sched.async_scheduler": ["AsyncScheduler"],
    "vllm.v1.worker.workspace": ["_manager"],
    "vllm.config": ["WeightTransferConfig"],
    "vllm.distributed.weight_transfer.base": [
        "WeightTransferEngine", "WeightTransferInitInfo", "WeightTransferUpdateInfo",
    ],
    "vllm.model_executor.model_loader.reload": ["initialize_layerwise_reload", "finalize_layerwise_reload"],
    "vllm.model_executor.layers.vocab_parallel_embedding": ["ParallelLMHead", "VocabParallelEmbedding"],
    "vllm.compilation.counter": ["compilation_counter"],
    "vllm.triton_utils.dispatcher": ["register_kernels", "_registry", "sys"],
    "vllm.utils.cpu_triton_utils": [
        "_expand_kernel_impl",
        "_rejection_greedy_sample_kernel_impl",
        "_rejection_random_sample_kernel_impl",
    ],
}  # fmt: skip
# "module:class" -> attributes of it
ATTRIBUTES: dict[str, Sequence[str]] = {
    "vllm.v1.core.sched.scheduler:Scheduler": [
        "_update_after_schedule", "update_from_output", "schedule", "has_requests",
    ],
    "vllm.v1.engine.llm_engine:LLMEngine": [
        "from_engine_args", "add_request", "abort_request", "step", "collective_rpc", "reset_prefix_cache",
        "set_weight_version",
    ],
    "vllm.v1.worker.gpu_worker:Worker": [
        "init_weight_transfer_engine", "start_weight_update", "start_draft_weight_update", "update_weights",
        "finish_weight_update",
    ],
    "vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory": ["register_engine", "_registry"],
    "vllm.v1.spec_decode.ngram_proposer:NgramProposer": ["propose"],
    "vllm.v1.engine.core:EngineCore": ["step", "step_with_batch_queue"],
    "vllm.v1.engine.core_client:InprocClient": ["shutdown", "get_output"],
    "vllm.v1.core.sched.output:SchedulerOutput": ["__dataclass_fields__"],
    "vllm.config:ModelConfig": ["get_vocab_size", "try_get_generation_config"],
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager": ["_init_candidates"],
    "vllm.v1.request:Request": ["num_tokens", "num_output_tokens"],
}  # fmt: skip
# "module:class" -> fields, or names that its constructor assigns
FIELDS: dict[str, Sequence[str]] = {
    "vllm.v1.core.sched.output:SchedulerOutput": [
        "num_spec_tokens_to_schedule", "num_scheduled_tokens", "total_num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
    ],
    "vllm.v1.outputs:ModelRunnerOutput": ["sampled_token_ids", "req_id_to_index"],
    "vllm.v1.request:Request": ["num_computed_tokens", "num_prompt_tokens", "request_id"],
    "vllm.v1.core.sched.scheduler:Scheduler": ["running", "requests", "max_num_scheduled_tokens"],
    "vllm.v1.engine.core:EngineCore": ["batch_queue", "scheduler", "model_executor"],
    "vllm.v1.spec_decode.ngram_proposer:NgramProposer": ["max_model_len"],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": ["input_batch"],
    "vllm.v1.worker.gpu_input_batch:InputBatch": ["req_ids"],
    "vllm.config:CacheConfig": ["num_gpu_blocks", "block_size", "kv_cache_memory_bytes"],
    "vllm.config:CompilationConfig": ["max_cudagraph_capture_size"],
    "vllm.compilation.counter:CompilationCounter": [
        "num_backend_compilations", "num_inductor_compiles", "num_cudagraph_captured",
    ],
    "vllm.v1.worker.gpu.cudagraph_utils:BatchExecutionDescriptor": ["uniform_token_count"],
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager": ["_candidates"],
    "vllm:EngineArgs": [
        "model", "skip_tokenizer_init", "dtype", "load_format", "max_model_len", "max_num_seqs",
        "max_num_batched_tokens", "enforce_eager", "enable_prefix_caching", "disable_log_stats",
        "use_tqdm_on_load", "seed", "scheduler_cls", "gpu_memory_utilization", "async_scheduling",
        "cudagraph_capture_sizes", "kv_cache_memory_bytes", "speculative_config", "weight_transfer_config",
    ],
    "vllm.config:SpeculativeConfig": [
        "method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size",
        "draft_load_config", "draft_sample_method", "rejection_sample_method",
        "synthetic_acceptance_rates", "prompt_lookup_min", "prompt_lookup_max",
    ],
    "vllm:SamplingParams": [
        "max_tokens", "ignore_eos", "temperature", "detokenize", "output_kind", "stop_token_ids", "seed",
    ],
}  # fmt: skip


def _load(path: str) -> type:
    module, _, name = path.partition(":")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, type)
    return found


def _has_field(owner: type, name: str) -> bool:
    if name in inspect.get_annotations(owner) or hasattr(owner, name):
        return True
    return any(
        name in inspect.get_annotations(base) or f"self.{name}" in inspect.getsource(base.__init__)
        for base in owner.__mro__[:-1]
    )


def test_every_name_that_is_used_is_there() -> None:
    need_vllm()
    vllm_compat.prepare(EngineConfig())
    missing = [
        f"{module}.{name}"
        for module, names in NAMES.items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]
    missing += [
        f"{path}.{name}"
        for path, names in ATTRIBUTES.items()
        for name in names
        if not hasattr(_load(path), name)
    ]
    missing += [
        f"{path}.{name}"
        for path, names in FIELDS.items()
        for name in names
        if not _has_field(_load(path), name)
    ]
    assert missing == []


def test_k_is_written_before_room_for_drafts_is_reserved() -> None:
    """The asynchronous scheduler reads K inside _update_after_schedule, which ours wraps."""
    need_vllm()
    vllm_compat.prepare(EngineConfig())
    scheduler = _load("vllm.v1.core.sched.async_scheduler:AsyncScheduler")
    assert "num_spec_tokens_to_schedule" in inspect.getsource(scheduler._update_after_schedule)  # type: ignore[attr-defined]
    parent = _load("vllm.v1.core.sched.scheduler:Scheduler")
    assert "_update_after_schedule" in inspect.getsource(parent.schedule)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("device", "sizes", "calls"), [("cuda", "stock", 1), ("cuda", "every_k", 1), ("cpu", "stock", 0)]
)
def test_graphs_are_repaired_with_stock_sizes_too(
    device: Literal["cpu", "cuda"], sizes: Graphs, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine of several K on stock sizes would miss the graph of a third of its batches."""
    need_vllm()
    called: list[None] = []
    monkeypatch.setattr(graphs, "repair", lambda: called.append(None))
    for name in (*vllm_compat.EVERYWHERE, *vllm_compat.ON_CUDA, *vllm_compat.ON_CPU):
        monkeypatch.setenv(name, os.environ.get(name, "0"))  # so that the test leaves them as they were
    vllm_compat.prepare(EngineConfig(device=device, graphs=sizes))
    assert len(called) == calls


@pytest.mark.parametrize("repaired", [False, True])
def test_every_batch_finds_a_full_graph_at_every_k(repaired: bool) -> None:
    """Without the repair about a third of them do not; the day that they do, it can go."""
    need_vllm()
    vllm_compat.prepare(EngineConfig())
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    ks, largest = (0, 1, 2, 4, 8), 256
    sizes = graph_sizes(
        RealConfig(drafter=DrafterConfig(ks=ks), engine=EngineConfig(max_running=largest)), speculating=True
    )
    drafts = SimpleNamespace(
        uses_dynamic_speculative_decoding=lambda: True,
        num_speculative_tokens_per_batch_size=k_table(ks, largest),
    )
    manager = SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=sizes[-1]
        ),
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, max_num_reqs=largest, decode_query_len=max(ks) + 1,
        varlen_decode=False, lora_capture_cases=[0], _candidates={}, _capture_descs={}, _graphs_captured=True,
        _maybe_ubatch_twin=lambda graph: None,  # noqa: ARG005
        _resolve_effective_loras=lambda adapters: adapters,
        vllm_config=SimpleNamespace(
            speculative_config=drafts, num_speculative_tokens=max(ks),
            cache_config=SimpleNamespace(use_kda_recoverssm=False),
        ),
    )  # fmt: skip
    CudaGraphManager._init_candidates(manager)
    if repaired:
        graphs.widen_candidates(manager._candidates)
    modes = [
        CudaGraphManager.dispatch(manager, batch, batch * (k + 1), k + 1, 0).cg_mode
        for k in ks
        for batch in range(1, largest + 1)
    ]
    assert all(mode == CUDAGraphMode.FULL for mode in modes) == repaired


def test_a_compilation_is_noticed() -> None:
    need_vllm()
    vllm_compat.prepare(EngineConfig())
    import torch

    watch = CompileWatch()
    add = torch.compile(lambda x: x + 1, backend="eager")
    before = watch.count()
    add(torch.ones(2))
    compiled = watch.count()
    assert compiled > before
    add(torch.ones(2))
    assert watch.count() == compiled


KERNELS_AFTER_NUMBA = """
import numba  # brings llvmlite along
from tlt.realrun.engine import vllm_compat
vllm_compat.repair("cpu")
from vllm.platforms import current_platform
from vllm.triton_utils import dispatcher
current_platform.register_triton_kernel_overrides()
print(len(dispatcher._registry) > 0)
"""


def test_kernels_are_registered_where_numba_was_loaded_before() -> None:
    """As in a process that simulated first, or that drafts from prompts."""
    need_vllm()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KERNELS_AFTER_NUMBA],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == "True"
