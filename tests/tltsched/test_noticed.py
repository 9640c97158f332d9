"""What mutants showed that no test noticed."""

from __future__ import annotations

from random import Random

import pytest

from tltsched.cluster_config import ClusterConfig
from tltsched.draft_config import OFF
from tltsched.errors import InputError
from tltsched.policies.base import Batch
from tltsched.policies.goodput import GoodputConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.threshold import ThresholdConfig


def test_only_those_who_see_lengths_know_them() -> None:
    assert not ClusterConfig().knows_lengths()
    assert not ClusterConfig(dispatch="round_robin").knows_lengths()
    assert ClusterConfig(dispatch="longest_first").knows_lengths()
    assert ClusterConfig(schedule="longest_first").knows_lengths()


@pytest.mark.parametrize("threshold", [6, 7])
def test_above_the_threshold_nothing_is_drafted_until_the_batch_falls_to_it(threshold: int) -> None:
    config = ThresholdConfig(
        inner=StaticConfig(draft_config="2"), threshold_requests=threshold, warmup_engine_steps=0
    )
    choice = config.build(Random(0), None).choose(Batch(threshold + 20, 1000))  # noqa: S311
    assert choice.draft_config == OFF
    assert choice.min_requests == threshold + 1


def test_priors_at_the_ends_of_their_ranges_are_taken() -> None:
    GoodputConfig(draft_configs=("off", "2"), acceptance_prior=(0.5, 0.0))
    GoodputConfig(draft_configs=("off", "4_4_16"), tree_prior={"4_4_16": 1.0})
    GoodputConfig(draft_configs=("off", "4_4_16"), tree_prior={"4_4_16": 5.0})
    for length in (0.99, 5.01):
        with pytest.raises(InputError):
            GoodputConfig(draft_configs=("off", "4_4_16"), tree_prior={"4_4_16": length})
    with pytest.raises(InputError):
        GoodputConfig(draft_configs=("off", "2"), acceptance_prior=(0.5, -0.1))
