"""Drafts out of earlier responses: acceptance, cost, epochs, and prefixes taken over; in both modes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.sim.small_world import (
    PLAIN,
    ROOM,
    config_of,
    costs,
    drive,
    no_drafts,
    simulate,
    submission,
    trace_of,
)
from tlt.sim.config import resolve
from tlt.sim.model.drafter import DrafterConfig, HistoryConfig
from tlt.sim.model.engines.running_batch import Limits, RequestPool
from tlt.sim.model.suffix_drafts import HistoryCosts, HistoryDrafter, HistoryLaw, drafter_of, reusing
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError

HISTORY = HistoryConfig(hit_rate=0.5, survival_by_position=(0.8, 0.6, 0.45), first_epoch_steps=1)
SETTINGS: dict[str, Any] = {
    "hardware.gpus": 8,
    "hardware.tp": 4,
    "cluster.phases": [],
    "drafter.kind": "history",
    "drafter.history.hit_rate": 0.5,
    "drafter.history.survival_by_position": [0.8, 0.6, 0.45],
}
LENGTHS = [1200, 900, 600, 300] * 4


def history_costs(config: HistoryConfig = HISTORY) -> HistoryCosts:
    return HistoryCosts(costs(), config)


def test_a_draft_survives_if_there_is_a_match_and_it_is_right() -> None:
    law = HistoryLaw(HISTORY)
    assert law.survival(chain(2)).tolist() == pytest.approx([0.4, 0.3])
    assert law.survival(chain(5)).tolist() == pytest.approx([0.4, 0.3, 0.225, 0.16875, 0.1265625])
    assert (law.extrapolates(chain(3)), law.extrapolates(chain(4))) == (False, True)
    assert "assumed" in law.source
    with pytest.raises(InputError, match="chains"):
        law.survival(DraftConfig(4, 4, 16))


def test_only_matches_are_verified_and_drafting_is_free() -> None:
    table = history_costs(msgspec.structs.replace(HISTORY, lookup_s=0.5)).of(chain(3))
    # 1 + 0.5 * 3 = 2.5 tokens a request: 5 for two (under the knot at 8), 20 for eight (12 past it)
    assert table.fixed_s[2] == pytest.approx(0.010 + 0.5)
    assert table.fixed_s[8] == pytest.approx(0.010 + 12 * 0.0005 + 0.5)
    assert table.context_s_per_token == PLAIN.kv_s_per_token
    measured = msgspec.structs.replace(PLAIN, kv_s_per_verified_token=1e-7, graph_tokens=19.0, eager_s=1.0)
    table = HistoryCosts(costs(coefficients=measured), HISTORY).of(chain(3))
    assert table.context_s_per_token == pytest.approx(1e-6 + 1.5e-7)
    assert table.fixed_s[8] == pytest.approx(1.016)


def test_off_is_an_engine_without_a_drafter_and_a_switch_is_free() -> None:
    plain, history = costs(), history_costs()
    assert history.of(OFF).fixed_s.tolist() == plain.of(OFF).fixed_s.tolist()
    assert history.of(OFF).context_s_per_token == plain.of(OFF).context_s_per_token
    assert history.when_off == "not_configured"
    assert history.switch_s("draft_prefill", 1e6, 1e9) == history.switch_s("reprefill", 1e6, 1e9) == 0.0


def test_both_modes_take_the_same_time_on_average() -> None:
    lengths = np.random.default_rng(4).integers(50, 1500, 30).tolist()
    seconds: dict[str, list[float]] = {"jump": [], "exact": []}
    accepted: dict[str, list[float]] = {"jump": [], "exact": []}
    for mode in seconds:
        for seed in range(8):
            pool = RequestPool(submission(lengths), Limits(12, 1e9, False))
            told = drive(
                mode, pool, HistoryLaw(HISTORY), lambda _: SetDraftConfig(0, chain(3), None, 1), seed,
                step_costs=history_costs(),
            )  # fmt: skip
            seconds[mode].append(told.seconds)
            accepted[mode].append(told.accepted / told.request_steps)
    assert np.mean(seconds["jump"]) == pytest.approx(np.mean(seconds["exact"]), rel=0.01)
    assert np.mean(accepted["exact"]) == pytest.approx(0.925, rel=0.02)
    assert np.mean(accepted["jump"]) == pytest.approx(0.925, rel=0.02)


def test_the_first_epoch_has_no_history_unless_the_group_serves() -> None:
    drafter = drafter_of(DrafterConfig(kind="history", history=HISTORY))
    assert isinstance(drafter, HistoryDrafter)
    drafter.begin_step()
    assert (drafter.version, drafter.age_steps) == (-1, 0)
    drafter.policy_updated()
    drafter.begin_step()
    assert (drafter.version, drafter.age_steps, drafter.exponent) == (0, 1, 1.0)
    group = msgspec.structs.replace(HISTORY, group_hit_rate=0.25)
    drafter = drafter_of(DrafterConfig(kind="history", history=group))
    drafter.begin_step()
    assert drafter.version == 0
    assert (0.5 * 0.8) ** drafter.exponent == pytest.approx(0.25 * 0.8)
    drafter.begin_step()
    assert drafter.exponent == 1.0
    assert not isinstance(drafter_of(DrafterConfig()), HistoryDrafter)


@pytest.mark.parametrize("mode", ["jump", "exact"])
@pytest.mark.parametrize(("group_hit_rate", "first"), [(0.0, 0.0), (0.25, 0.393)])
def test_a_run_drafts_from_the_second_epoch_on(mode: str, group_hit_rate: float, first: float) -> None:
    settings = SETTINGS | {"run.mode": mode, "drafter.history.group_hit_rate": group_hit_rate}
    run = simulate(config_of(settings, "static:3"), trace_of([LENGTHS, LENGTHS]))
    per_engine_step = (run.steps["accepted_tokens"] / run.steps["request_steps"].clip(lower=1)).tolist()
    assert per_engine_step[0] == pytest.approx(first, abs=0.06)
    assert per_engine_step[1] == pytest.approx(0.925, rel=0.06)
    took = (run.steps["rollout_end_s"] - run.steps["start_s"]).tolist()
    assert took[1] < took[0]
    assert run.simulation.law.source.startswith("assumed: drafts out of earlier responses")
    again = simulate(config_of(settings, "static:3"), trace_of([LENGTHS, LENGTHS]))
    assert again.records == run.records


@pytest.mark.parametrize("mode", ["jump", "exact"])
def test_a_verified_prefix_is_not_generated_again(mode: str) -> None:
    limits = reusing(ROOM, msgspec.structs.replace(HISTORY, reuse_prefix_share=0.6, first_epoch_steps=3))
    engine_steps = {}
    for step in (2, 3):
        pool = RequestPool(submission([1, 2, 10, 100]), limits, step)
        told = drive(mode, pool, HistoryLaw(HISTORY), no_drafts)
        engine_steps[step] = told.request_steps
        assert sorted(told.finish_s) == [0, 1, 2, 3]
    # A prefill emits one token; from step 3 on it also keeps 0, 1, 6 and 60.
    assert engine_steps == {2: 0 + 1 + 9 + 99, 3: 0 + 0 + 3 + 39}


def test_the_pass_reads_the_prompt_and_the_whole_earlier_response() -> None:
    limits = reusing(ROOM, msgspec.structs.replace(HISTORY, reuse_prefix_share=0.5, first_epoch_steps=0))
    limits = msgspec.structs.replace(limits, prefix_caching=True)
    pool = RequestPool(submission([20, 40], prompt_tokens=10, group=[7, 7]), limits)
    assert pool.admit() == 2
    chunk = pool.prefill(1000)
    assert chunk.tokens == 10 + 20 + 10 + 40  # of prompts below a block of the cache nothing is kept
    assert chunk.pairs == 30**2 + 50**2
    pool.join(chunk.done)
    assert pool.emitted.tolist() == [11, 21]
    assert pool.context().tolist() == [21, 31]


def test_a_prompt_in_the_cache_is_read_from_its_last_block_on() -> None:
    limits = reusing(ROOM, msgspec.structs.replace(HISTORY, reuse_prefix_share=0.5, first_epoch_steps=0))
    limits = msgspec.structs.replace(limits, prefix_caching=True)
    pool = RequestPool(submission([20, 40], prompt_tokens=40, group=[7, 7]), limits)
    assert pool.admit() == 2
    chunk = pool.prefill(1000)
    assert chunk.tokens == 40 + 20 + (40 - 32) + 40  # one prompt, the rest of another, both responses
    assert chunk.pairs == 60**2 + 80**2 - 32**2


def test_requests_that_bring_a_long_prefix_wait_for_the_room_it_takes() -> None:
    config = msgspec.structs.replace(HISTORY, reuse_prefix_share=0.5, first_epoch_steps=0)
    pool = RequestPool(submission([200, 200]), reusing(Limits(8, 300.0, False), config))
    assert pool.admit() == 1
    assert RequestPool(submission([200, 200]), Limits(8, 300.0, False)).admit() == 2


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"drafter": {"history": {"survival_by_position": [0.5, 0.6]}}}, "survival_by_position"),
        ({"drafter": {"history": {"survival_by_position": []}}}, "survival_by_position"),
        ({"drafter": {"history": {"hit_rate": 0.2, "group_hit_rate": 0.3}}}, "group_hit_rate"),
        ({"drafter": {"history": {"hit_rate": 1.5}}}, "hit_rate"),
        ({"drafter": {"history": {"reuse_prefix_share": 1.0}}}, "reuse_prefix_share"),
        ({"drafter": {"kind": "history"}, "cluster": {"spot": {"enabled": True}}}, "cluster.spot.enabled"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        resolve(settings, "none")
