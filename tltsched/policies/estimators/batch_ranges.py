"""Ranges of batch sizes by their lower edges; slots as SGLang routes them: padded to a CUDA graph, looked up.

Source of the slots: sgl-project/sglang, adaptive_step_router.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from tltsched.errors import InputError

# Batch sizes that SGLang captures by default when it speculates (sgl-project/sglang, server arguments).
SGLANG_GRAPH_BATCHES = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8))


def check_edges(field: str, edges: Sequence[int]) -> None:
    """Raise InputError unless the edges start at 1 and rise, so that every batch is in one bucket."""
    if not edges or edges[0] != 1 or any(low >= high for low, high in pairwise(edges)):
        raise InputError(field, edges, "batch sizes that start at 1 and rise", "sort them and put 1 in front")


def bucket_of(edges: Sequence[int], requests: int) -> int:
    """Return the index of the bucket of a batch; anything below the first edge counts to the first."""
    return max(0, bisect_right(edges, requests) - 1)


def check_ks(field: str, ks: Sequence[int], low: int) -> None:
    """Raise InputError unless the draft lengths rise from `low` or more."""
    if not ks or ks[0] < low or any(first >= second for first, second in pairwise(ks)):
        raise InputError(field, ks, f"draft lengths that rise, of {low} or more", "sort the list")


def check_graph_batches(sizes: Sequence[int]) -> None:
    """Raise InputError unless the captured batch sizes rise; none at all means that nothing is padded."""
    if sizes:
        check_ks("graph_batches", sizes, 1)


class Slots:
    """Ranges of batch sizes by lower edge, after padding to the next of `graph_batches` if any is left."""

    def __init__(self, edges: Sequence[int], graph_batches: Sequence[int]) -> None:
        self.edges, self.graph_batches = edges, graph_batches

    def padded(self, requests: int) -> int:
        """Return the batch that the engine runs for a batch of `requests`."""
        index = bisect_left(self.graph_batches, requests)
        return self.graph_batches[index] if index < len(self.graph_batches) else requests

    def slot_of(self, requests: int) -> int:
        """Return the index of the slot of a batch; anything below the first edge counts to the first."""
        return bucket_of(self.edges, self.padded(requests))

    def lowest(self, slot: int) -> int:
        """Return the smallest batch of a slot that some batch falls in."""
        if slot == 0:
            return 1
        index = bisect_left(self.graph_batches, self.edges[slot])
        if index == len(self.graph_batches):
            # Nothing is captured from the edge on: batches past the last capture are not padded.
            return self.edges[slot]
        return self.graph_batches[index - 1] + 1 if index else 1
