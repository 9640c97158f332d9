"""Seconds of the phases after the rollout, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tlt.sim.model.phases import PhaseConfig, PhaseTimes, phases_of
from tlt.sim.model.transports import TRANSPORTS, TransportName, sync_s
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape

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
