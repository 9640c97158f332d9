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


@given(
    sizes=st.tuples(st.lists(st.integers(1, 50), max_size=12), st.lists(st.integers(1, 50), max_size=12)),
    tokens=st.integers(1, 120),
    window=st.integers(0, 60),
    share=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_a_batch_keeps_its_budget_and_is_made_of_whole_responses_or_windows(
    sizes: tuple[list[int], list[int]], tokens: int, window: int, share: float, seed: int
) -> None:
    buffer = features.FeatureBuffer(10**6)
    for step, of_step in enumerate(sizes, start=1):
        buffer.begin_step(step)
        for number, length in enumerate(of_step):
            buffer.add(made(step, length, number))
    batch = buffer.take(np.random.default_rng(seed), tokens, share, window)
    assert len(batch) <= len(buffer)
    assert bool(batch) == bool(len(buffer))
    if batch:
        assert max(lengths(batch)) * len(batch) <= tokens
    for each in batch:
        whole = sizes[each.step - 1][int(each.tokens[0]) // 1000]
        assert len(each) == min(whole, tokens, window or tokens)
        assert each.tokens.diff().eq(1).all()
        assert (each.tokens % 1000).tolist() == each.aux[:, 0].tolist() == each.last[:, 0].tolist()


def test_a_window_keeps_what_was_prompt() -> None:
    whole = made(0, 10, prompt=4)
    assert whole.window(5, 2).prompt_tokens == 2
    assert whole.window(5, 5).prompt_tokens == 1  # its first token has a state to start from
    assert whole.window(5, 5).tokens.tolist() == [5, 6, 7, 8, 9]


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
    assert buffer.take(np.random.default_rng(0), 10, 0.5) == []


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
    taken = [each for _ in range(200) for each in buffer.take(rng, 1000, share)]
    old = [len(each) for each in taken if each.step == 1]
    assert sum(old) / sum(lengths(taken)) == pytest.approx(share, abs=0.02)
    assert set(old) <= {400, 300, 250}


def test_one_step_alone_is_trained_on_whatever_the_share() -> None:
    buffer = features.FeatureBuffer(10**6)
    buffer.begin_step(1)
    buffer.add(made(1, 9))
    assert lengths(buffer.take(np.random.default_rng(0), 20, 1.0)) == [9]
    buffer.begin_step(2)
    assert lengths(buffer.take(np.random.default_rng(0), 20, 0.0)) == [9]


def test_batches_follow_from_the_generator() -> None:
    buffer = features.FeatureBuffer(10**6)
    for number in range(30):
        buffer.add(made(0, 5 + number, number))
    first, again = ([buffer.take(np.random.default_rng(3), 90, 0.5)] for _ in range(2))
    assert [each.tokens.tolist() for each in first[0]] == [each.tokens.tolist() for each in again[0]]
