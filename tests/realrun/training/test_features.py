"""What the buffer of hidden states keeps, and what it gives to train on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
features = pytest.importorskip("tlt.realrun.training.features")

BYTES_A_TOKEN = 8 + 4 * (2 + 1)  # an id, two values of aux and one of last


def made(step: int, length: int, number: int = 0, prompt: int = 1) -> Any:
    """Return a response whose tokens tell which one it is and where they stood."""
    places = torch.arange(length)
    values = places[:, None].float()
    return features.Features(step, 1000 * number + places, prompt, values.repeat(1, 2), values)


def lengths(batch: list[Any]) -> list[int]:
    return [len(each) for each in batch]


@given(ops=st.lists(st.integers(0, 40), max_size=60), capacity=st.integers(1, 200))
def test_memory_is_bounded_and_what_goes_first_is_old_and_short(ops: list[int], capacity: int) -> None:
    """A length of 0 stands for a new step."""
    buffer = features.FeatureBuffer(capacity * BYTES_A_TOKEN)
    step = 0
    last: list[int] = []
    new: list[int] = []
    for length in ops:
        if length == 0:
            step += 1
            buffer.begin_step(step)
            last, new = sorted(new, reverse=True), []
        elif length <= capacity:
            new.append(length)
            while sum(last) + sum(new) > capacity:
                _ = last.pop() if last else new.pop(0)
        if length:
            buffer.add(made(step, length))
        assert lengths(buffer._last) == last
        assert lengths(buffer._new) == new
        assert buffer.bytes == (sum(last) + sum(new)) * BYTES_A_TOKEN <= buffer.capacity_bytes
        assert len(buffer) == len(last) + len(new)


def test_a_window_keeps_what_was_prompt() -> None:
    whole = made(0, 10, prompt=4)
    assert whole.window(5, 2).prompt_tokens == 2
    assert whole.window(5, 5).prompt_tokens == 1  # its first token has a state to start from
    assert whole.window(5, 5).tokens.tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_responses_of_the_steps_before_are_kept_longest_first(kept: int) -> None:
    buffer = features.FeatureBuffer(10**6, kept)
    for step in range(1, 6):
        buffer.begin_step(step)
        buffer.add(made(step, 10 * step, step))
    assert [each.step for each in buffer._last] == list(range(4, 4 - kept, -1))
    assert [each.step for each in buffer._new] == [5]
    assert buffer.bytes == sum(map(len, (*buffer._last, *buffer._new))) * BYTES_A_TOKEN
    buffer.begin_step(6 + kept)  # steps were left out
    assert len(buffer) == 0


def test_older_than_one_step_is_forgotten() -> None:
    buffer = features.FeatureBuffer(10**6)
    buffer.begin_step(1)
    buffer.add(made(1, 7))
    buffer.begin_step(1)  # again: changes nothing
    assert len(buffer) == 1
    buffer.begin_step(2)
    assert len(buffer) == 1
    buffer.begin_step(3)
    assert (len(buffer), buffer.bytes) == (0, 0)
    buffer.add(made(3, 7))
    buffer.begin_step(5)  # a step was left out
    assert len(buffer) == 0


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_share_of_tokens_from_long_responses_of_the_step_before(share: float) -> None:
    buffer = features.FeatureBuffer(10**6)
    buffer.begin_step(1)
    for length in (400, 10, 300, 20, 250):
        buffer.add(made(1, length))
    buffer.begin_step(2)
    for length in (15, 30, 5, 45, 20, 25):
        buffer.add(made(2, length))
    rng = np.random.default_rng(1)
    taken = [buffer.draw(rng, share) for _ in range(2000)]
    old = [len(each) for each in taken if each.step == 1]
    assert sum(old) / sum(lengths(taken)) == pytest.approx(share, abs=0.02)
    assert set(old) <= {400, 300, 250}


def test_one_step_alone_is_trained_on_whatever_the_share() -> None:
    buffer = features.FeatureBuffer(10**6)
    buffer.begin_step(1)
    buffer.add(made(1, 9))
    assert len(buffer.draw(np.random.default_rng(0), 1.0)) == 9
    buffer.begin_step(2)
    assert len(buffer.draw(np.random.default_rng(0), 0.0)) == 9


def test_draws_follow_from_the_generator() -> None:
    buffer = features.FeatureBuffer(10**6)
    for number in range(30):
        buffer.add(made(0, 5 + number, number))
    first, again = (
        [buffer.draw(rng, 0.5).tokens.tolist() for _ in range(9)]
        for rng in (np.random.default_rng(3), np.random.default_rng(3))
    )
    assert first == again
    assert len({tuple(each) for each in first}) > 1
