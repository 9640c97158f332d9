"""The clairvoyant bound against rollouts that are worked out by hand, and against every schedule."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.sim.small_world import PLAIN, config_of, costs, simulate, trace_of
from tests.sim.test_simulation import SMALL, lengths_of
from tlt.sim.advise.bounds import bounds_of, clairvoyant_bound
from tlt.sim.model.requests import StepRequests
from tlt.sim.workload import steps_of
from tltsched.schedules import PRESETS


def requests(*lengths: int, prompt_tokens: int = 10) -> StepRequests:
    n = len(lengths)
    return StepRequests(
        np.arange(n), np.full(n, prompt_tokens), np.array(lengths), np.zeros(n, bool), np.zeros(n)
    )


def test_one_request_alone_takes_its_steps() -> None:
    bound = clairvoyant_bound(requests(50), costs(), 1)
    prefill_s = PLAIN.prefill_chunk_s + 10 * PLAIN.prefill_s_per_token + 100 * PLAIN.prefill_s_per_pair
    steps_s = sum(PLAIN.floor_s + PLAIN.kv_s_per_token * (10 + token) for token in range(1, 50))
    assert bound.longest_s == pytest.approx(prefill_s + steps_s, rel=1e-12)
    assert bound.seconds == bound.longest_s >= bound.work_s


def test_much_equal_work_is_bounded_by_the_workers() -> None:
    few, many = (clairvoyant_bound(requests(*[100] * 6400), costs(), workers) for workers in (2, 4))
    assert few.seconds == few.work_s == pytest.approx(2 * many.work_s)


def test_prompts_are_computed_once_a_group_at_what_they_add_at_least() -> None:
    alone = StepRequests(np.arange(4), np.full(4, 1000), np.full(4, 2), np.zeros(4, bool), np.zeros(4))
    shared = msgspec.structs.replace(alone, group=np.zeros(4, np.int64))
    # This engine does not decode while it prefills.
    prompt_s = 1000 * PLAIN.prefill_s_per_token + 1000**2 * PLAIN.prefill_s_per_pair
    apart, together = (clairvoyant_bound(each, costs(), 1).work_s for each in (alone, shared))
    assert apart - together == pytest.approx(3 * prompt_s)
    uncached = clairvoyant_bound(shared, costs(), 1, prefix_caching=False).work_s
    assert uncached == pytest.approx(apart)


def test_phases_are_summed_to_the_last_digit() -> None:
    """Built-in sums end in other digits from Python 3.12 on, and so did bounds.json."""
    phases = {"reward_s": 0.1, "logprob_s": 0.2, "policy_update_s": 0.3, "weight_sync_s": 0.0}
    config = config_of(SMALL | {f"phases.{name}": seconds for name, seconds in phases.items()}, "none")
    run = simulate(config, trace_of(lengths_of(1, 3, 8, 20), 30, 4))
    row = bounds_of(run.simulation).rows[0]
    assert row.phases_s == 0.6  # rounded once; step by step it is 0.6000000000000001


def test_no_requests_take_no_time() -> None:
    assert clairvoyant_bound(requests(), costs(), 4).seconds == 0.0


@pytest.mark.parametrize("name", [name for name, spec in PRESETS.items() if spec.keeps_order])
def test_no_schedule_is_faster(name: str) -> None:
    trace = trace_of(lengths_of(5, 3, 64, 600), 30, 4)
    run = simulate(config_of(SMALL | {"cluster.schedule": name}, "none"), trace)
    rollout_s = (run.steps["rollout_end_s"] - run.steps["start_s"]).tolist()
    for step, seconds in zip(steps_of(trace), rollout_s, strict=True):
        assert seconds >= clairvoyant_bound(step, run.simulation.costs, 4).seconds
