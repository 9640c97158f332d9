"""Rows of a head's batch: of one width, next to full, and made of whole responses or windows of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlt.realrun.training_config import HeadConfig

torch = pytest.importorskip("torch")
features = pytest.importorskip("tlt.realrun.training.features")
rows = pytest.importorskip("tlt.realrun.training.head.rows")


def made(length: int, number: int = 0) -> Any:
    """Return a response whose tokens tell which one it is and where they stood."""
    places = torch.arange(length)
    values = places[:, None].float()
    return features.Features(0, 10_000 * number + places, 1, values.repeat(1, 2), values)


@pytest.mark.parametrize(
    ("batch", "window", "shape"),
    [(4096, 1024, (4, 1024)), (4096, 0, (1, 4096)), (1000, 300, (3, 300)), (256, 1024, (1, 256))],
)
def test_rows_hold_the_tokens_of_a_batch_at_most(batch: int, window: int, shape: tuple[int, int]) -> None:
    assert rows.shape_of(HeadConfig(batch_tokens=batch, window_tokens=window)) == shape


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 200)),
    most=st.integers(1, 60),
)
def test_rows_are_made_of_whole_responses_or_windows(
    lengths: list[int], shape: tuple[int, int], most: int
) -> None:
    given_ = iter([made(length, number) for number, length in enumerate(lengths * 60)])
    drawn: list[Any] = []

    def draw() -> Any:
        drawn.append(next(given_))
        return drawn[-1]

    found = rows.fill(rows.Shape(*shape), draw, np.random.default_rng(0), most)
    placed = sorted((each for row in found for each in row), key=lambda each: int(each.tokens[0]) // 10_000)
    assert 1 <= len(found) <= shape[0]
    assert all(found)
    assert max(sum(map(len, row)) for row in found) <= shape[1]
    assert len(placed) in (len(drawn), len(drawn) - 1)
    for each, whole in zip(placed, drawn, strict=False):
        assert len(each) <= len(whole)
        assert each.tokens.tolist() == list(range(int(each.tokens[0]), int(each.tokens[0]) + len(each)))
        assert int(each.tokens[0]) // 10_000 == int(whole.tokens[0]) // 10_000
        assert len(each) == len(whole) or len(each) >= min(rows.SHORTEST_WINDOW_TOKENS, shape[1])
    if len(placed) < most:  # the next did not fit into what was left
        left = shape[0] * shape[1] - sum(map(len, placed))
        assert left < shape[0] * min(rows.SHORTEST_WINDOW_TOKENS, max(shape[1], 1))


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_packed_rows_hold_every_response_whole_and_are_no_wider_than_the_longest(lengths: list[int]) -> None:
    found = rows.packed([made(length, number) for number, length in enumerate(lengths)])
    assert sorted(len(each) for row in found for each in row) == sorted(lengths)
    assert max(sum(map(len, row)) for row in found) == max(lengths)
    assert len(found) <= 1 + 2 * sum(lengths) // max(lengths)


def test_packing_nothing_is_no_row() -> None:
    assert rows.packed([]) == []
