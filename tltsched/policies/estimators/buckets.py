"""Ranges of batch sizes, given by their lower edges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from tltsched.errors import InputError


def check_edges(field: str, edges: Sequence[int]) -> None:
    """Raise InputError unless the edges start at 1 and rise, so that every batch is in one bucket."""
    if not edges or edges[0] != 1 or any(low >= high for low, high in pairwise(edges)):
        raise InputError(field, edges, "batch sizes that start at 1 and rise", "sort them and put 1 in front")


def bucket_of(edges: Sequence[int], requests: int) -> int:
    """Return the index of the bucket of a batch; anything below the first edge counts to the first."""
    return max(0, bisect_right(edges, requests) - 1)
