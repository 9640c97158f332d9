"""Mean staleness against its closed forms, and an asynchronous run that its pauses made slower.

Little's law, counted in policy updates: the mean lag of what is trained on is the number of responses that
have begun and are in no batch yet at the moment of an update, over those that an update takes away. It holds
for any law of lengths and any order. Three systems have that number in closed form; the parameters are those
of "Predicting and Controlling Staleness in Fully Asynchronous RL Training" (Applied Compute, July 2026),
whose own formulas are not at hand: batch, concurrency and the utilisation of the trainer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sim.small_world import Run, config_of, simulate, trace_of
from tests.sim.test_simulation import SMALL, lengths_of

WITHIN = 0.05
BATCH = 24
FREE = {"phases.reward_s": 0.0, "phases.logprob_s": 0.0, "phases.weight_sync_s": 0.0,
        "phases.trainer_scaling": 0.0}  # fmt: skip


def run(steps: int, longest: int, update_s: float, schedule: str, **extra: Any) -> Run:
    trace = trace_of(lengths_of(5, steps, BATCH, longest), 30, 1)
    chosen = SMALL | FREE | {"phases.policy_update_s": update_s, "cluster.schedule": schedule} | extra
    return simulate(config_of(chosen, "none"), trace)


def mean(told: Run, column: str, skip: int) -> float:
    return float(np.mean([row[column] for row in told.cluster.log.schedule_rows[skip:]]))


@pytest.mark.parametrize(("eta", "parts"), [(1.0, 1), (2.5, 1), (1.0, 4)])
@pytest.mark.parametrize("update_s", [0.05, 4.0], ids=["rollouts are slower", "the update is slower"])
def test_under_a_bound_of_admission_the_mean_lag_is_the_bound(
    eta: float, parts: int, update_s: float
) -> None:
    """(eta + 1) batches are alive once admitted and one is trained on: eta of them live through an update.

    In parts, each of which updates the policy, eta batches are eta x parts updates, and the parts of one
    batch are trained on 0 to parts - 1 updates after the first.
    """
    schedule = f"bounded_async(staleness={eta},sync_every={parts})"
    told = run(24 * parts, 300, update_s, schedule)
    found = mean(told, "staleness_mean", 8 * parts)
    assert found == pytest.approx(eta * parts + (parts - 1) / 2, rel=WITHIN)


@pytest.mark.parametrize(("inflight", "update_s"), [(24, 0.5), (24, 0.2), (60, 0.25)])
def test_with_so_many_in_flight_lag_is_concurrency_over_batch_plus_utilisation(
    inflight: int, update_s: float
) -> None:
    """Rollout-bound: `inflight` responses generate at any time, K / B in flight; while the trainer works, a
    share rho of a batch is completed and waits through its update: rho in the queue. (Near a rho of 1 steps
    come in which the trainer is behind, and the queue is longer.)
    """
    told = run(60, 300, update_s, f"bounded_async(staleness=8,inflight={inflight})")
    skip = 12
    step_s = float(np.mean((told.steps["end_s"] - told.steps["start_s"])[skip:]))
    utilisation = update_s / step_s
    assert 0.1 < utilisation < 0.8
    assert mean(told, "in_flight_lag_mean", skip) == pytest.approx(inflight / BATCH, rel=WITHIN)
    assert mean(told, "in_queue_lag_mean", skip) == pytest.approx(utilisation, rel=2 * WITHIN)
    assert mean(told, "staleness_mean", skip) == pytest.approx(inflight / BATCH + utilisation, rel=WITHIN)


def test_one_step_off_lags_by_one() -> None:
    told = run(8, 300, 0.5, "one_step_off")
    assert mean(told, "staleness_mean", 1) == 1.0
    assert {row["staleness_max"] for row in told.cluster.log.schedule_rows[1:]} == {1}


# marin-community/marin issue 8936: Qwen3-0.6B, 20 updates each, trainers and engines on GPUs of their own.
UPDATES = 20
SYNC_GENERATION_S, SYNC_SYNC_S = 35.87, 48.79
ASYNC_SYNC_S, ASYNC_PAUSE_S, ASYNC_WAIT_S = 147.40, 100.55, 1.96
LEARNER_MORE_S = 0.56
COMPONENTS_S, SLOWER_S = 65.27, 68.06  # what the parts sum to, and what the clock said
LEARNER_S = 3.0  # assumed, a step: it is the same in both and longer than generation


def seconds(told: Run, cause: str) -> float:
    rows = told.intervals[(told.intervals["cause"] == cause) & (told.intervals["worker"] == 3)]
    return float((rows["end_s"] - rows["start_s"]).sum())


def test_an_asynchronous_run_that_its_pauses_made_slower() -> None:
    """Overlapping saves nearly all of the generation, the pauses cost three times that."""
    generation_s = float(run(1, 400, 0.0, "bounded_async(staleness=0)").steps["rollout_end_s"].iloc[0])
    longest = round(400 * SYNC_GENERATION_S / UPDATES / generation_s)

    def of(schedule: str, learner_s: float, sync_s: float, pause_s: float) -> Run:
        trace = trace_of(lengths_of(5, 1, BATCH, longest) * UPDATES, 30, 1)
        chosen = SMALL | FREE | {
            "phases.policy_update_s": learner_s, "phases.weight_sync_s": sync_s / UPDATES,
            "phases.sync_pause_s": pause_s / UPDATES, "cluster.schedule": schedule,
        }  # fmt: skip
        return simulate(config_of(chosen, "none"), trace)

    plain = of("bounded_async(staleness=0)", LEARNER_S, SYNC_SYNC_S, 0.0)
    told = of("bounded_async(order=admission,kv=stale)", LEARNER_S + LEARNER_MORE_S / UPDATES,
              ASYNC_SYNC_S - ASYNC_PAUSE_S, ASYNC_PAUSE_S)  # fmt: skip
    assert seconds(plain, "batch_wait") == pytest.approx(SYNC_GENERATION_S, rel=WITHIN)
    assert seconds(plain, "weight_sync") == pytest.approx(SYNC_SYNC_S, rel=0.02)
    assert seconds(told, "sync_pause") == pytest.approx(ASYNC_PAUSE_S)
    assert seconds(told, "sync_pause") + seconds(told, "weight_sync") == pytest.approx(ASYNC_SYNC_S, rel=0.02)
    assert seconds(told, "batch_wait") == pytest.approx(ASYNC_WAIT_S, abs=1.0)
    slower = told.wall_s - plain.wall_s
    assert slower == pytest.approx(COMPONENTS_S, rel=WITHIN)
    assert slower == pytest.approx(SLOWER_S, rel=0.06)
    unpaused = of("bounded_async(order=admission,kv=stale)", LEARNER_S, ASYNC_SYNC_S - ASYNC_PAUSE_S, 0.0)
    assert unpaused.wall_s < plain.wall_s - 30.0
