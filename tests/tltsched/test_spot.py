"""The control law of spot training."""

from __future__ import annotations

import pytest

from tltsched.errors import InputError
from tltsched.spot import SpotConfig, SpotState, SpotTrainer

RELEASED = SpotConfig(enabled=True, grow=False, order="lowest_rank", interval_steps=10)


def started(config: SpotConfig, idle: list[int], step: int = 0, workers: int = 4) -> list[tuple[int, ...]]:
    """Let workers fall idle one by one, a second apart; return who starts at each."""
    trainer = SpotTrainer(workers, config)
    trainer.begin_step(step, range(workers), 0.0)
    starts = []
    for second, worker in enumerate(idle, 1):
        trainer.fall_idle(worker, float(second))
        starts.append(trainer.start())
    return starts


@pytest.mark.parametrize(
    ("config", "starts"),
    [
        (SpotConfig(), [(), (), ()]),
        (SpotConfig(enabled=True), [(3,), (1,), (0,)]),
        (SpotConfig(enabled=True, max_trainers=2), [(3,), (1,), ()]),
        (SpotConfig(enabled=True, min_idle_workers=2), [(), (3, 1), (0,)]),
        (SpotConfig(enabled=True, min_idle_workers=2, order="lowest_rank"), [(), (1, 3), (0,)]),
        (SpotConfig(enabled=True, grow=False), [(3,), (), ()]),
        (SpotConfig(enabled=True, grow=False, min_idle_workers=2), [(), (3, 1), ()]),
        (SpotConfig(enabled=True, min_idle_workers=3, max_trainers=2), [(), (), (3, 1)]),
        (RELEASED, [(3,), (), ()]),
    ],
)
def test_who_starts_as_workers_fall_idle(config: SpotConfig, starts: list[tuple[int, ...]]) -> None:
    assert started(config, [3, 1, 0]) == starts


def test_training_keeps_its_cadence() -> None:
    due = [step for step in range(25) if started(RELEASED, [2], step) == [(2,)]]
    assert due == [0, 10, 20]


def test_a_place_that_falls_free_is_taken() -> None:
    trainer = SpotTrainer(3, SpotConfig(enabled=True, max_trainers=1))
    trainer.begin_step(0, (2,), 0.0)
    assert (trainer.start(), trainer.start()) == ((0,), ())
    trainer.lose(0)
    assert trainer.start() == (1,)


def test_stopping_takes_only_trainers_and_lasts_until_they_are_idle() -> None:
    trainer = SpotTrainer(3, SpotConfig(enabled=True))
    trainer.begin_step(0, (2,), 0.0)
    assert trainer.start() == (0, 1)
    assert trainer.stop((1, 2)) == (1,)
    assert (trainer.stopping, trainer.stop((1,))) == (True, ())
    trainer.fall_idle(1, 1.0)
    assert (trainer.stopping, trainer.states[1]) == (False, SpotState.IDLE)
    trainer.become_busy(1)
    assert list(trainer.states.values()) == [SpotState.TRAINING, SpotState.BUSY, SpotState.BUSY]


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("min_idle_workers", {"min_idle_workers": 0}),
        ("max_trainers", {"max_trainers": -1}),
        ("interval_steps", {"interval_steps": 0}),
        ("max_trainers", {"max_trainers": 1, "min_idle_workers": 2, "grow": False}),
    ],
)
def test_settings_out_of_range_are_named(field: str, settings: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        SpotConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.field == field
