"""Engines over several GPUs: what each reads, keeps and sends, by hand; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.small_world import trace_of
from tlt.sim.config import EngineConfig, resolve
from tlt.sim.kv_cache import kv_tokens
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.traces.catalogue.gpus import GpuSpec, gpu_spec
from tlt.traces.catalogue.models import model_shape
from tltsched.errors import InputError

MOE, LATENT, DENSE = (model_shape(name) for name in ("Qwen3-30B-A3B", "DeepSeek-V3", "Qwen2.5-7B"))
GPU = gpu_spec("H200")


def law(shape: Any = MOE, gpu: GpuSpec = GPU, **parallel: int) -> Coefficients:
    return roofline(shape, gpu, Parallel(**parallel), Assumptions())


def test_a_pipeline_does_not_shorten_a_pass_and_doubles_what_passes() -> None:
    one, two = law(DENSE), law(DENSE, pp=2)
    assert two.floor_s == pytest.approx(one.floor_s + Assumptions().stage_s)
    assert two.slopes_s_per_token[1] == pytest.approx(one.slopes_s_per_token[1] / 2)
    assert two.knots_tokens[1] == pytest.approx(2 * one.knots_tokens[1])
    assert two.kv_s_per_token == pytest.approx(one.kv_s_per_token / 2)


def test_data_parallel_attention_copies_all_but_the_experts() -> None:
    one, four = law(), law(attention_dp=4)
    assert one.experts is not None
    assert four.experts is not None
    assert four.experts.read_s == pytest.approx(one.experts.read_s / 4)
    exchange_s = 2 * MOE.layers * Assumptions().alltoall_s
    assert four.floor_s == pytest.approx(one.floor_s + exchange_s)  # attention is read by each group
    whole, experts = MOE.weight_bytes(), MOE.expert_bytes()
    assert Parallel(attention_dp=4).weight_bytes(MOE) == pytest.approx(4 * (whole - experts) + experts)


def test_a_latent_cache_is_copied_on_every_gpu_of_a_group_and_cut_over_groups() -> None:
    assert Parallel(tp=8).cache_copies(LATENT) == 8
    assert Parallel(tp=8).cache_copies(DENSE) == 2  # four heads of keys and values
    assert Parallel(tp=4).cache_copies(DENSE) == 1
    cut, spread = law(LATENT, tp=8), law(LATENT, attention_dp=8, ep=8)
    assert cut.kv_s_per_token == pytest.approx(8 * spread.kv_s_per_token)


def test_exchanges_grow_with_tokens_by_the_link() -> None:
    # all-reduce of bf16 states over two GPUs: each sends as much as it reduces; two a layer
    sent = 2 * DENSE.layers * DENSE.hidden * 2
    assert Parallel(tp=2).exchange_s_per_token(DENSE, 1e9) == pytest.approx(sent / 1e9)
    assert Parallel().exchange_s_per_token(DENSE, 1e9) == 0.0
    slow, fast = law(DENSE, gpu_spec("L40S"), tp=2), law(DENSE, gpu_spec("L40S"))
    assert slow.slopes_s_per_token[0] > 0 == fast.slopes_s_per_token[0]


def test_room_for_the_cache_by_hand() -> None:
    engine = EngineConfig(graph_bytes=0.0, memory_fraction=1.0)
    room = 2 * GPU.memory_bytes - MOE.weight_bytes()
    assert kv_tokens(engine, MOE, GPU, Parallel(tp=2), (), 100) == pytest.approx(
        room / MOE.kv_bytes_per_token()
    )
    assert kv_tokens(engine, MOE, GPU, Parallel(pp=2), (), 100) == pytest.approx(
        room / MOE.kv_bytes_per_token()
    )
    copied = MOE.weight_bytes() - MOE.expert_bytes()
    assert kv_tokens(engine, MOE, GPU, Parallel(attention_dp=2), (), 100) == pytest.approx(
        (room - copied) / MOE.kv_bytes_per_token()
    )


@pytest.mark.parametrize(
    ("model", "parallel", "said"),
    [
        ("Qwen2.5-7B", {"ep": 2}, "is dense"), ("Qwen2.5-7B", {"attention_dp": 2}, "is dense"),
        ("Qwen3-30B-A3B", {"tp": 2, "ep": 4}, "hardware.tp x hardware.attention_dp = 2"),
        ("Qwen2.5-7B", {"pp": 40}, "28 layers"), ("Qwen3-30B-A3B", {"tp": 3, "ep": 3}, "128 experts"),
    ],
)  # fmt: skip
def test_what_cannot_be_spread_so_is_refused(model: str, parallel: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Parallel(**parallel).check(model_shape(model))


def job(policy: str = "none", **sections: Any) -> Simulation:
    settings: dict[str, Any] = {
        "hardware": {"gpus": 8, "tp": 2, "attention_dp": 2, "ep": 4, "gpu": "H200", "model": "Qwen3-30B-A3B"},
        "cost": {"source": "roofline"}, "acceptance": {"kind": "geometric"},
    }  # fmt: skip
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    return Simulation(resolve(settings, policy), trace_of([[300, 50, 20, 900]] * 2, 100))


def test_a_job_of_spread_engines_runs_and_counts_its_gpus() -> None:
    simulation = job()
    assert simulation.config.workers == 2
    assert simulation.run().log.step_rows
    with pytest.raises(InputError, match="attention_dp = 2"):
        job(hardware={"gpus": 6})


def test_other_gpus_train_only_where_some_do_nothing_else() -> None:
    with pytest.raises(InputError, match="bounded_async"):
        job(hardware={"training_gpu": "H100"})
    schedule = {"cluster": {"schedule": {"kind": "bounded_async", "trainer_share": 0.5}, "phases": []}}
    same, other = job(**schedule), job(hardware={"training_gpu": "H20"}, **schedule)
    assert same.training_gpu.name == "H200"
    assert other.training_gpu.name == "H20"


def test_an_eight_bit_cache_holds_twice_as_much() -> None:
    whole, half = job(), job(engine={"kv_dtype": "fp8"})
    assert half.limits.kv_tokens == pytest.approx(2 * whole.limits.kv_tokens)
    assert half.coefficients.kv_s_per_token == pytest.approx(whole.coefficients.kv_s_per_token / 2)


def test_an_update_that_does_not_fit_is_refused_with_its_figures() -> None:
    # 30.5 billion parameters on one GPU: 4 bytes each are 122 GB of the 127 GB to use, and activations more
    one = {"gpus": 1, "tp": 1, "attention_dp": 1, "ep": 1}
    with pytest.raises(InputError, match=r"122\.1 GB of weights and gradients"):
        job(hardware=one)
    job(hardware=one, phases={"policy_update_s": 30.0})
    memory = job().training_memory
    assert memory is not None
    assert memory.weights_and_gradients == pytest.approx(4 * MOE.parameters() / 8)
    assert memory.optimizer == pytest.approx(12 * MOE.parameters() / 8)
    assert not memory.offloads


def test_only_what_a_token_passes_is_calculated() -> None:
    phases = job().assembly().phases
    tokens = 10_000
    operations = 6 * (MOE.active_parameters() + MOE.vocab * MOE.hidden) * tokens
    seconds = operations / (8 * GPU.bf16_flops * job().config.phases.training_efficiency)
    assert phases.seconds("policy_update", 8, tokens) == pytest.approx(seconds)
