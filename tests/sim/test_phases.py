"""Seconds of the phases after the rollout, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tlt.sim.model.phases import PhaseConfig, PhaseTimes, given_on_trainers, phases_of
from tlt.sim.model.transports import TRANSPORTS, TransportName, sync_s
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tltsched.errors import InputError

SHAPE, GPU = model_shape("Qwen2.5-7B"), gpu_spec("H100")
PARAMETERS = SHAPE.parameters()
FLOPS = 4 * GPU.bf16_flops  # of four GPUs
TOKENS = 1_000_000


def seconds(phase: str, responses: int = 100, tokens: int = TOKENS, **fields: Any) -> float:
    return PhaseTimes(PhaseConfig(**fields), SHAPE, GPU, 4).seconds(phase, responses, tokens)


def test_rewards_are_waited_for_and_scored_one_by_one() -> None:
    assert seconds("reward", reward_s=3.0, reward_s_per_response=0.02) == pytest.approx(3.0 + 100 * 0.02)
    assert seconds("reward") == 5.0


def test_log_probabilities_are_forward_passes() -> None:
    """Two operations a parameter and token in each pass, at the forward share of the peak."""
    one = seconds("logprob", logprob_passes=1, forward_efficiency=0.5)
    assert one == pytest.approx(2 * PARAMETERS * TOKENS / (FLOPS * 0.5))
    assert seconds("logprob", logprob_passes=3, forward_efficiency=0.5) == pytest.approx(3 * one)
    assert seconds("logprob", logprob_passes=0) == 0.0
    assert seconds("logprob", logprob_s=7.0, logprob_passes=3) == 7.0


def test_the_update_is_forward_and_backward() -> None:
    """Six operations a parameter and token, at the training share of the peak."""
    found = seconds("policy_update", training_efficiency=0.25)
    assert found == pytest.approx(6 * PARAMETERS * TOKENS / (FLOPS * 0.25))
    assert seconds("policy_update", tokens=2 * TOKENS, training_efficiency=0.25) == pytest.approx(2 * found)
    assert seconds("policy_update", policy_update_s=11.0) == 11.0


def test_weights_move_once_in_two_bytes_each() -> None:
    assert seconds("weight_sync", sync_bytes_per_s=10e9) == pytest.approx(2 * PARAMETERS / 10e9)
    assert seconds("weight_sync", weight_sync_s=0.5, sync_bytes_per_s=1.0) == 0.5


def test_what_no_log_has_takes_no_time() -> None:
    assert seconds("other") == 0.0


def test_a_share_of_the_gpus_trains_for_longer() -> None:
    """Two of eight: a quarter of the operations a second, and given seconds four times."""
    config = PhaseConfig(logprob_s=2.0)
    whole, some = (phases_of(config, SHAPE, GPU, 8, training) for training in (8, 2))
    assert some.seconds("policy_update", 1, TOKENS) == pytest.approx(
        4 * whole.seconds("policy_update", 1, TOKENS)
    )
    assert (whole.seconds("logprob", 1, 1), some.seconds("logprob", 1, 1)) == (2.0, 8.0)
    assert some.seconds("weight_sync", 1, 1) == whole.seconds("weight_sync", 1, 1)
    assert some.seconds("reward", 1, 1) == whole.seconds("reward", 1, 1)


def test_logged_seconds_come_in_the_order_of_steps() -> None:
    config = PhaseConfig(by_step_s={"reward": (1.0, 4.0), "other": (0.5, 0.25)})
    phases = phases_of(config, SHAPE, GPU, 4, 4)
    assert [phases.seconds("reward", 1, 1) for _ in range(2)] == [1.0, 4.0]
    assert [phases.seconds("other", 1, 1) for _ in range(2)] == [0.5, 0.25]
    assert phases.seconds("weight_sync", 1, 1) == pytest.approx(2 * PARAMETERS / 25e9)  # modelled


@pytest.mark.parametrize(
    ("transport", "parameters", "published_s"),
    [
        ("nccl", 30.53e9, 4.38), ("nccl", 235.09e9, 23.70), ("nccl_per_tensor", 30.53e9, 15.76),
        ("nccl_per_tensor", 235.09e9, 58.57), ("ipc", 30.53e9, 7.0),
    ],
)  # fmt: skip
def test_a_sync_takes_what_was_published_of_its_transport(
    transport: TransportName, parameters: float, published_s: float
) -> None:
    assert sync_s(transport, 2.0 * parameters) == pytest.approx(published_s, rel=0.01)
    faster = sync_s(transport, 2.0 * parameters, 1e12)
    assert TRANSPORTS[transport].latency_s < faster < published_s


def test_each_transport_says_where_its_figures_are_from() -> None:
    assert {each.source.partition(":")[0] for each in TRANSPORTS.values()} == {"assumed", "published"}


def test_what_is_assumed_where_nothing_is_given() -> None:
    config = PhaseConfig()
    assert (config.reward_s, config.reward_s_per_response, config.logprob_passes) == (5.0, 0.0, 2)
    assert (config.training_efficiency, config.forward_efficiency) == (0.35, 0.45)
    assert (config.training_bytes_per_parameter, config.optimizer_bytes_per_parameter) == (4.0, 12.0)
    assert (config.sync_bytes_per_s, config.sync_transport) == (None, "assumed")
    assert (config.sync_pause_s, config.lend_s, config.trainer_scaling, config.by_step_s) == (
        0.0,
        0.0,
        1.0,
        {},
    )
    assert (config.logprob_s, config.policy_update_s, config.weight_sync_s) == (None, None, None)


def test_operations_of_a_step_are_those_that_are_published() -> None:
    """6 N D (Kaplan et al., 2020): 7.62e9 parameters and 1e6 tokens are 4.57e16 operations."""
    peak_flops = 4 * 989e12  # of four H100, dense bf16
    assert seconds("policy_update", training_efficiency=1.0) == pytest.approx(4.57e16 / peak_flops, rel=0.01)
    one_pass = seconds("logprob", logprob_passes=1, forward_efficiency=1.0)
    assert one_pass == pytest.approx(4.57e16 / 3 / peak_flops, rel=0.01)


def test_experts_cost_what_a_token_passes_and_move_whole() -> None:
    """Qwen3-30B-A3B: 30.5e9 parameters, of which a token passes 3.3e9."""
    experts = PhaseTimes(PhaseConfig(training_efficiency=1.0), model_shape("Qwen3-30B-A3B"), GPU, 4)
    assert experts.seconds("policy_update", 1, TOKENS) == pytest.approx(6 * 3.35e9 * TOKENS / FLOPS, rel=0.03)
    assert experts.seconds("weight_sync", 1, 1) == pytest.approx(2 * 30.5e9 / 25e9, rel=0.01)


def test_a_phase_that_no_log_may_have_is_refused() -> None:
    with pytest.raises(InputError, match="sleeping"):
        PhaseConfig(by_step_s={"reward": (1.0,), "sleeping": (2.0,)})


def test_given_seconds_of_what_the_trainers_do() -> None:
    assert given_on_trainers(PhaseConfig(logprob_s=0.5, policy_update_s=0.25)) == ("logprob", "policy_update")
    assert given_on_trainers(PhaseConfig(logprob_s=0.0, policy_update_s=0.25)) == ("policy_update",)
    assert given_on_trainers(PhaseConfig(by_step_s={"logprob": (0.0, 0.0), "reward": (1.0,)})) == ()


@pytest.mark.parametrize("phase", ["logprob", "policy_update"])
def test_given_seconds_are_of_a_whole_batch(phase: str) -> None:
    """A quarter of it takes a quarter; on half of the GPUs twice as long."""
    config = PhaseConfig(logprob_s=8.0, policy_update_s=8.0)
    for longer, share, expected_s in ((1.0, 1.0, 8.0), (1.0, 0.25, 2.0), (2.0, 0.25, 4.0)):
        times = PhaseTimes(config, SHAPE, GPU, 4, longer)
        assert times.seconds(phase, 1, TOKENS, share) == pytest.approx(expected_s)
