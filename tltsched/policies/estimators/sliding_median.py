"""A sliding window of repeated values, its median and its mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


def weighted_median(entries: Iterable[tuple[float, int]]) -> float:
    """Return the median of values that stand `count` times each: the mean of the middle two if even.

    There must be one entry or more.
    """
    ranked = sorted(entries)
    total = sum([count for _, count in ranked])
    low_rank, high_rank = (total - 1) // 2, total // 2
    seen, low = 0, None
    for value, count in ranked:
        seen += count
        if seen > high_rank:
            return value if low is None else (low + value) / 2
        if low is None and seen > low_rank:
            low = value
    raise ValueError("the median of nothing was asked for")


class Window:
    """The last `length` values, where a decision interval of many equal engine steps takes one entry.

    It answers as a plain deque of `length` values would: when it is full, the oldest repeats fall out one by
    one. The median is kept until a value arrives.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.entries: deque[tuple[float, int]] = deque()
        self._held = 0
        self._median: float | None = None

    def add(self, value: float, count: int) -> None:
        """Append `value` `count` times."""
        count = min(count, self.length)
        self._median = None
        self.entries.append((value, count))
        surplus = self._held + count - self.length
        self._held = min(self._held + count, self.length)
        while surplus > 0:
            oldest, repeats = self.entries.popleft()
            if repeats > surplus:
                self.entries.appendleft((oldest, repeats - surplus))
            surplus -= repeats

    def is_full(self) -> bool:
        """Return whether `length` values are held."""
        return self._held == self.length

    def clear(self) -> None:
        """Forget all values."""
        self.entries.clear()
        self._held = 0
        self._median = None

    def mean(self) -> float | None:
        """Return the mean, or None while the window is empty."""
        return sum(value * count for value, count in self.entries) / self._held if self._held else None

    def median(self) -> float | None:
        """Return the median, or None while the window is empty."""
        if self._median is None and self.entries:
            self._median = weighted_median(self.entries)
        return self._median
