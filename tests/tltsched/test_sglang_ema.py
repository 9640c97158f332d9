"""SGLang's tiers: thresholds, slots and pace, with averages worked out by hand (0.8^5 = 0.32768)."""

from __future__ import annotations

from random import Random

import pytest

from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome
from tltsched.policies.sglang_ema import EmaSlot, SglangEmaConfig, SglangEmaPolicy, Tiers


def policy(**settings: object) -> SglangEmaPolicy:
    config = SglangEmaConfig(**settings)  # type: ignore[arg-type]
    return config.build(Random(0), None)  # noqa: S311


def run(ema: SglangEmaPolicy, requests: int, accepted: float, decision_intervals: int = 1) -> list[int]:
    """Run decision intervals of this mean of accepted drafts; return the K after each."""
    depths = []
    for _ in range(decision_intervals):
        choice = ema.choose(Batch(requests, 0))
        engine_steps = choice.max_engine_steps or 5
        left = round(accepted * engine_steps * requests)
        positions = []
        for _ in range(choice.draft_config.depth):
            positions.append(min(left, engine_steps * requests))
            left -= positions[-1]
        ema.observe(
            Outcome(choice.draft_config, engine_steps, engine_steps * requests, 1.0, tuple(positions))
        )
        depths.append(ema.choose(Batch(requests, 0)).draft_config.depth)
    return depths


def test_a_full_climb_and_descent() -> None:
    ema = policy()
    assert ema.choose(Batch(1, 0)) == Choice(chain(3), 15, 1)  # ten to warm up, and the first interval
    # e: 2 -> 3 - 0.8^15 = 2.965 > 2.5, but not > 4.5
    assert run(ema, 1, 3.0) == [5]
    # e: 5 - 2.035 * 0.328 = 4.333 is not > 4.5; then 5 - 0.667 * 0.328 = 4.781 is
    assert run(ema, 1, 5.0, 2) == [5, 7]
    # e: 4.781 * 0.328 = 1.567 <= 4.25 (leaves 7) and <= 2.25 (leaves 5), not <= 0.25
    # then 0.513, which holds 3, and 0.168 <= 0.25, which leaves it for the floor
    assert run(ema, 1, 0.0, 5) == [3, 3, 1, 1, 1]
    # e is 0.168 * 0.328^2 = 0.018; then 1 - 0.982 * 0.328 = 0.678 > 0.5 climbs one tier
    assert run(ema, 1, 1.0, 2) == [3, 3]


def test_between_batches_of_8_and_31_it_turns_off_and_probes() -> None:
    ema = policy()
    # e: 2 * 0.8^15 = 0.070 <= 0.5 (below 3 lies 1) and <= 0.5 (below 1 lies 0)
    assert run(ema, 16, 0.0) == [0]
    assert ema.choose(Batch(16, 0)) == Choice(OFF, 5, 8)
    # five batches off leave e alone; the smallest positive tier is tried; 0.070 * 0.328 = 0.023 fails it
    assert run(ema, 16, 0.0, 2) == [1, 0]
    # tried again, all accepted: 1 - 0.977 * 0.328 = 0.680 > 0.5, so 3; then 2 of 3: e = 1.567, which holds 3
    assert run(ema, 16, 1.0, 2) == [1, 3]
    assert run(ema, 16, 2.0) == [3]


def test_a_slot_that_began_off_starts_its_probe_at_the_neutral_value() -> None:
    ema = policy(slots=(EmaSlot(batch=1, ks=(0, 2)),), initial_k=0, warmup_batches=0)
    assert ema.choose(Batch(1, 0)) == Choice(OFF, 5, 1)
    # e: -1 -> 1 for the probe; 1 * 0.328 = 0.328 <= 0.5 ends it, and e stays for the next one
    assert run(ema, 1, 0.0, 4) == [2, 0, 2, 0]
    # with e = 0.107: all of 2 accepted, 2 - 1.893 * 0.328 = 1.380 > 0.5
    assert run(ema, 1, 2.0, 2) == [2, 2]


@pytest.mark.parametrize(
    ("requests", "choice"),
    [
        (7, Choice(chain(3), 15, 1)),
        (8, Choice(chain(3), 15, 8)),
        (30, Choice(chain(3), 15, 8)),
        (31, Choice(chain(1), 15, 31)),  # padded to 32
        (60, Choice(chain(1), 15, 31)),
        (61, Choice(OFF, None, 61)),  # padded to 64
        (1000, Choice(OFF, None, 61)),
    ],
)
def test_the_padded_batch_picks_the_slot(requests: int, choice: Choice) -> None:
    assert policy().choose(Batch(requests, 0)) == choice


def test_without_graphs_the_batch_itself_picks_the_slot() -> None:
    assert policy(graph_batches=()).choose(Batch(31, 0)).min_requests == 8
    assert policy(graph_batches=()).choose(Batch(64, 0)) == Choice(OFF, None, 64)


def test_slots_do_not_share_what_they_learn() -> None:
    ema = policy()
    run(ema, 1, 0.0, 3)
    assert ema.choose(Batch(1, 0)).draft_config == chain(1)
    assert ema.choose(Batch(8, 0)) == Choice(chain(3), 15, 8)


def test_a_rollout_begins_where_the_last_one_ended() -> None:
    ema = policy()
    run(ema, 1, 3.0)
    ema.begin_rollout()
    assert ema.choose(Batch(1, 0)) == Choice(chain(5), 5, 1)


@pytest.mark.parametrize("split", [(40,), (1,) * 40, (7, 14, 19), (15, 5, 5, 15)])
def test_many_equal_batches_at_once_are_many_batches(split: tuple[int, ...]) -> None:
    tiers, single = (Tiers(SglangEmaConfig().slots[0], SglangEmaConfig()) for _ in range(2))
    for engine_steps in split:
        tiers.observe(2.6, engine_steps)
    for _ in range(sum(split)):
        single.observe(2.6, 1)
    assert (tiers.k, tiers.engine_steps_to_decision()) == (single.k, single.engine_steps_to_decision())
    assert tiers.accepted == pytest.approx(single.accepted)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("slots", {"slots": ()}),
        ("slots", {"slots": (EmaSlot(batch=2, ks=(1,)),)}),
        ("slots of batch 1", {"slots": (EmaSlot(batch=1, ks=(3, 1)),)}),
        ("slots of batch 1", {"slots": (EmaSlot(batch=1, ks=()),)}),
        ("graph_batches", {"graph_batches": (4, 2)}),
        ("smoothing", {"smoothing": 0.0}),
        ("warmup_batches", {"warmup_batches": -1}),
        ("update_interval", {"update_interval": 0}),
    ],
)
def test_settings_that_cannot_be_are_named(field: str, settings: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"for {field}"):
        policy(**settings)
