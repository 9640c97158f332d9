"""Placement of requests on workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tltsched.dispatch import DISPATCH, contiguous, longest_first, round_robin
from tltsched.events import Request


def requests(*lengths: int) -> tuple[Request, ...]:
    return tuple(Request(number, number // 2, 10, length) for number, length in enumerate(lengths))


def ids(placement: tuple[tuple[Request, ...], ...]) -> list[list[int]]:
    return [[request.id for request in placed] for placed in placement]


def test_contiguous_cuts_in_order() -> None:
    assert ids(contiguous(requests(*[0] * 8), 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ids(contiguous(requests(*[0] * 7), 3)) == [[0, 1, 2], [3, 4], [5, 6]]
    assert ids(contiguous(requests(0), 3)) == [[0], [], []]


def test_round_robin_deals() -> None:
    assert ids(round_robin(requests(*[0] * 5), 2)) == [[0, 2, 4], [1, 3]]


def test_longest_first_fills_the_least_loaded() -> None:
    assert ids(longest_first(requests(5, 9, 4, 7, 4), 2)) == [[1, 2], [3, 0, 4]]


def test_longest_first_without_hints_spreads_evenly() -> None:
    assert ids(longest_first(requests(0, 0, 0, 0), 2)) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("rule", sorted(DISPATCH))
@given(lengths=st.lists(st.integers(0, 1000), max_size=40), workers=st.integers(1, 9))
def test_every_request_is_placed_once(rule: str, lengths: list[int], workers: int) -> None:
    placement = DISPATCH[rule](requests(*lengths), workers)
    assert len(placement) == workers
    assert sorted(number for placed in ids(placement) for number in placed) == list(range(len(lengths)))


@given(lengths=st.lists(st.integers(1, 1000), min_size=1, max_size=40), workers=st.integers(1, 9))
def test_longest_first_keeps_the_bound_of_list_scheduling(lengths: list[int], workers: int) -> None:
    loads = [
        sum(request.length_hint_tokens for request in placed)
        for placed in longest_first(requests(*lengths), workers)
    ]
    assert max(loads) <= sum(lengths) / workers + max(lengths)
