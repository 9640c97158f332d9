"""Which tokens a head can draft."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
vocabularies = pytest.importorskip("tlt.realrun.training.head.module")

VOCAB = 30


def test_the_most_frequent_and_those_that_must_be_there() -> None:
    responses = [(7, 7, 7, 3), (9, 3, 9), (20,)]
    assert vocabularies.draft_ids(responses, 3, VOCAB).tolist() == [3, 7, 9]
    assert vocabularies.draft_ids(responses, 3, VOCAB, always=(29,)).tolist() == [3, 7, 29]


def test_unused_tokens_fill_it_up() -> None:
    assert vocabularies.draft_ids([(7, 1)], 5, VOCAB).tolist() == [0, 1, 2, 3, 7]


@given(
    responses=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=20), max_size=10),
    size=st.integers(3, VOCAB),
    always=st.lists(st.integers(0, VOCAB - 1), max_size=3),
)
def test_ids_ascend_and_nothing_left_out_is_more_frequent(
    responses: list[list[int]], size: int, always: list[int]
) -> None:
    ids = vocabularies.draft_ids(responses, size, VOCAB, always).tolist()
    assert len(ids) == size
    assert ids == sorted(set(ids))
    assert set(always) <= set(ids)
    counts = Counter(token for response in responses for token in response)
    inside = [counts[token] for token in ids if token not in always]
    outside = [counts[token] for token in range(VOCAB) if token not in ids]
    assert min(inside, default=0) >= max(outside, default=0) or not inside
