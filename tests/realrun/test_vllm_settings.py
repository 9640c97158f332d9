"""What vLLM is told, the facts read from its scheduler, and the repairs, as far as they need no vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.realrun.small_models import need
from tlt.plugin import graphs
from tlt.plugin.drafting import k_table
from tlt.realrun.config import DrafterConfig, EngineConfig, ModelConfig, RealConfig, WorkersConfig
from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.repairs import cpu_sampling
from tlt.realrun.engine.stepped_hooks import SteppedHooks
from tlt.realrun.engine.vllm_settings import (
    chunk_tokens,
    engine_arguments,
    graph_batches,
    graph_sizes,
    speculation,
    survival,
)
from tlt.realrun.workers.process import gpus_of
from tltsched.errors import InputError

GPU = RealConfig(
    model=ModelConfig(folder="m", random_weights=True),
    drafter=DrafterConfig(folder="head", ks=(0, 1, 2, 4, 8), synthetic_survival=(0.8,) * 4 + (0.5,) * 6),
    engine=EngineConfig(device="cuda", max_running=256, max_context_tokens=8192),
)


def _with(config: RealConfig, section: str, **fields: Any) -> RealConfig:
    changed = msgspec.structs.replace(getattr(config, section), **fields)
    return msgspec.structs.replace(config, **{section: changed})


def test_every_k_stands_in_the_table_and_every_batch_has_one() -> None:
    table = k_table((4, 0, 2, 0), 16)
    assert table == [(1, 1, 0), (2, 2, 2), (3, 16, 4)]
    assert k_table((8,), 1) == [(1, 1, 8)]
    for ks, running in (((0,), 8), ((), 8), ((-1, 2), 8), ((0, 1, 2), 2)):
        with pytest.raises(InputError, match=r"drafter\.ks"):
            k_table(ks, running)


def test_graphs_cover_the_largest_batch_at_every_k() -> None:
    sizes = graph_sizes(GPU, speculating=True)
    assert {256, 512, 768, 1280, 2304} <= set(sizes)
    assert sizes[-1] == 2304
    assert graph_sizes(GPU, speculating=False)[-1] == 256
    assert chunk_tokens(GPU) == 8192
    assert chunk_tokens(_with(GPU, "engine", max_running=1024)) == 9 * 1024


def test_batches_whose_graphs_are_asked_for_are_captured_with_every_k_and_the_largest_one() -> None:
    few = _with(_with(GPU, "engine", graph_batches=(4, 1, 300)), "drafter", ks=(0, 1))
    assert graph_batches(few) == (1, 4, 256)
    assert graph_sizes(few, speculating=True) == [1, 2, 4, 8, 256, 512]
    assert graph_sizes(few, speculating=False) == [1, 4, 256]


def test_weights_are_quantised_while_they_are_loaded_if_asked() -> None:
    assert "quantization" not in engine_arguments(GPU, speculating=True)
    fp8 = _with(GPU, "model", quantization="fp8_per_tensor")
    assert engine_arguments(fp8, speculating=False)["quantization"] == "fp8_per_tensor"
    assert "quantization" not in engine_arguments(fp8, speculating=True)["speculative_config"]


def test_arguments_of_a_gpu_engine() -> None:
    arguments = engine_arguments(GPU, speculating=True)
    assert arguments["load_format"] == "dummy"
    assert arguments["max_model_len"] == 8192 + 9
    assert arguments["async_scheduling"] is True
    assert "kv_cache_memory_bytes" not in arguments
    drafts = arguments["speculative_config"]
    assert drafts["num_speculative_tokens"] == 8
    assert len(drafts["synthetic_acceptance_rates"]) == 8
    assert drafts["draft_load_config"]["load_format"] == "auto"
    assert "draft_sample_method" not in drafts  # synthetic acceptance does not look at probabilities
    plain = engine_arguments(GPU, speculating=False)
    assert "speculative_config" not in plain
    assert plain["max_model_len"] == arguments["max_model_len"]


def test_a_stock_engine_chooses_its_graphs_itself() -> None:
    arguments = engine_arguments(_with(GPU, "engine", graphs="stock"), speculating=True)
    assert "cudagraph_capture_sizes" not in arguments
    assert "compilation_config" not in arguments
    assert engine_arguments(GPU, speculating=True)["compilation_config"] == {
        "cudagraph_mode": "FULL_DECODE_ONLY"
    }
    assert arguments["enable_prefix_caching"] is False
    caching = _with(GPU, "engine", prefix_caching=True, kv_tokens=1000)
    assert engine_arguments(caching, speculating=False)["enable_prefix_caching"] is True
    assert engine_arguments(caching, speculating=False)["num_gpu_blocks_override"] == 63  # of 16 tokens
    assert "num_gpu_blocks_override" not in arguments


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_worker_has_its_gpus_side_by_side(tp: int) -> None:
    config = msgspec.structs.replace(GPU, workers=WorkersConfig(tp=tp))
    assert engine_arguments(config, speculating=False)["tensor_parallel_size"] == tp
    gpus = ["0", "1", "2", "3"]
    taken = [gpus_of(gpus, worker, tp) for worker in range(4 // tp)]
    assert [name for part in taken for name in part] == gpus
    assert gpus_of(gpus, 4 // tp, tp) == taken[0], "too few for all: they share"
    with pytest.raises(InputError, match=r"got 8 for workers\.tp; allowed: at most the 4 GPUs"):
        gpus_of(gpus, 0, 8)


def test_drafters() -> None:
    own = _with(GPU, "drafter", synthetic_survival=())
    assert speculation(own)["draft_sample_method"] == "probabilistic"
    assert "draft_sample_method" not in speculation(_with(own, "engine", temperature=0.0))
    assert speculation(_with(GPU, "drafter", kind="ngram"))["method"] == "ngram_gpu"
    mtp = speculation(_with(GPU, "drafter", kind="mtp", folder=""))
    assert (mtp["method"], mtp["num_speculative_tokens"]) == ("mtp", 8), "its weights are the target's own"
    assert "model" not in mtp
    on_cpu = _with(GPU, "engine", device="cpu")
    assert speculation(_with(on_cpu, "drafter", kind="ngram"))["method"] == "ngram"
    with pytest.raises(InputError, match=r"got 'suffix' for drafter\.kind"):
        speculation(_with(GPU, "drafter", kind="suffix"))
    with pytest.raises(InputError, match=r"drafter\.folder"):
        speculation(_with(GPU, "drafter", folder=""))
    with pytest.raises(InputError, match=r"got True for drafter\.random_weights"):
        speculation(_with(GPU, "drafter", random_weights=True))
    with pytest.raises(InputError, match=r"model\.folder"):
        engine_arguments(_with(GPU, "model", folder=""), speculating=False)


def test_drafts_from_a_group_are_refused_over_ranks_on_cpu() -> None:
    two, ngram = WorkersConfig(tp=2), DrafterConfig(kind="ngram")
    assert RealConfig(workers=WorkersConfig(tp=1), drafter=ngram).drafter.kind == "ngram"
    assert RealConfig(workers=two, drafter=ngram, engine=EngineConfig(device="cuda")).workers.tp == 2
    with pytest.raises(
        InputError, match=r"got 2 for workers\.tp; allowed: 1 with drafter\.kind = ngram on cpu"
    ):
        RealConfig(workers=two, drafter=ngram)


@pytest.mark.parametrize("rates", [(0.5,), (0.5, 0.6), (1.1, 0.5), (0.5, -0.1)])
def test_survival_must_be_one_falling_rate_a_position(rates: tuple[float, ...]) -> None:
    assert survival((0.9, 0.9, 0.1), 2) == [0.9, 0.9]
    with pytest.raises(InputError, match=r"drafter\.synthetic_survival"):
        survival(rates, 2)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_compat, "installed_version", lambda: "0.99.0")
    with pytest.raises(InputError, match=r"got '0\.99\.0' for vllm; allowed: 0\.32\.0"):
        vllm_compat.require_version()
    monkeypatch.setattr(vllm_compat, "installed_version", lambda: "")
    with pytest.raises(InputError, match="got 'no vllm' for vllm"):
        vllm_compat.require_version()


def test_a_batch_finds_the_nearest_graph_of_its_own_query_length() -> None:
    def graph(tokens: int, length: int | None) -> SimpleNamespace:
        return SimpleNamespace(num_tokens=tokens, uniform_token_count=length)

    two, three, mixed, wide = graph(4, 2), graph(6, 3), graph(4, None), graph(8, None)
    candidates: dict[tuple[int, int], list[Any]] = {}
    for tokens in range(1, 5):
        candidates[tokens, 0] = [two, mixed]
    for tokens in (5, 6):
        candidates[tokens, 0] = [three, wide]
    candidates[7, 0] = candidates[8, 0] = [wide]
    graphs.widen_candidates(candidates)
    assert candidates[3, 0] == [two, three, mixed]  # a batch of one with three tokens no longer misses out
    assert candidates[5, 0] == [three, wide]
    assert candidates[7, 0] == [wide]


def test_the_cpu_kernels() -> None:
    need("torch")
    import torch

    output = torch.empty(5)
    cpu_sampling.expand(output, torch.tensor([0.0, 0.5, 2.0]), torch.tensor([2, 3, 5]), 0, 1)
    assert output.tolist() == [1.0, 1.0, 0.5, 2.0, 2.0]

    tokens = torch.full((3, 3), -1, dtype=torch.int32)
    ends, drafts = torch.tensor([2, 2, 4]), torch.tensor([10, 11, 12, 13])
    otherwise, bonus = torch.tensor([20, 21, 22, 23]), torch.tensor([[30], [31], [32]])
    uniform, rates = torch.tensor([0.1, 0.9, 0.1, 0.2]), torch.tensor([0.5, 0.5])
    cpu_sampling.accept_at_rates(tokens, ends, drafts, otherwise, bonus, None, uniform, rates)
    assert tokens.tolist() == [[10, 21, -1], [31, -1, -1], [12, 13, 32]]
    tokens.fill_(-1)
    cpu_sampling.accept_at_rates(tokens, ends, drafts, otherwise, bonus, [False, True, False], uniform, rates)
    assert tokens.tolist() == [[-1] * 3, [31, -1, -1], [-1] * 3]


class Base:
    """Stands for vLLM's scheduler: only what the hooks call."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.seen_k: list[int] = []

    def _update_after_schedule(self, plan: Any) -> None:
        self.seen_k.append(plan.num_spec_tokens_to_schedule)

    def update_from_output(self, plan: Any, output: Any) -> str:  # noqa: ARG002
        return "applied"


class Hooked(SteppedHooks, Base):
    """As tlt.realrun.engine.vllm_engine mixes it."""


def test_hooks_tell_prefill_from_decode_and_count_by_position() -> None:
    scheduler = Hooked()
    scheduler.requests = {
        name: SimpleNamespace(
            request_id=name,
            num_prompt_tokens=8,
            num_computed_tokens=computed,
            num_tokens=tokens,
            num_output_tokens=tokens - 8,
        )
        for name, computed, tokens in (("new", 0, 8), ("old", 20, 21), ("again", 0, 30), ("plain", 15, 16))
    }
    plan = SimpleNamespace(
        preempted_req_ids={"again"},
        num_scheduled_tokens={"new": 8, "old": 4, "again": 30, "plain": 1},
        total_num_scheduled_tokens=43,
        scheduled_spec_decode_tokens={"old": [1, 2, 3]},
        num_spec_tokens_to_schedule=0,
    )
    scheduler.next_k = 3
    scheduler._update_after_schedule(plan)
    assert scheduler.seen_k == [3]
    output = SimpleNamespace(
        sampled_token_ids=[[5], [1, 2, 9], [7], [8]],
        req_id_to_index={"new": 0, "old": 1, "again": 2, "plain": 3},
    )
    assert scheduler.update_from_output(plan, output) == "applied"
    (engine_step,) = scheduler.engine_steps
    assert (engine_step.batch, engine_step.prompt_tokens, engine_step.drafted_tokens) == (4, 38, 3)
    assert engine_step.context_tokens == 20 + 15
    assert engine_step.accepted_by_position == (1, 1, 0)
    assert engine_step.preempted == 1
    assert engine_step.drafts == [("old", 13, 3, 2)]  # after 13 tokens of the response, 2 of 3 were accepted
