"""Response lengths as a histogram: all that sampling, percentiles and fits need, in little memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from tlt.traces.common.arrays import Bools, Floats, Ints
from tlt.traces.lengths.schema import INT32_MAX, Origin, Trace, check_cap, empty_trace
from tltsched.errors import InputError


@dataclass(frozen=True, eq=False)
class LengthHistogram:
    """How often each length occurs.

    values: distinct lengths in tokens, ascending, shape [k].
    counts: responses of that length, shape [k], >= 1.
    max_response_tokens: longest response that generation allowed, or None.
    truncated_counts: how many of `counts` were cut, shape [k]; without it those at the cap.
    Raises InputError if these do not agree.
    """

    values: Ints
    counts: Ints
    max_response_tokens: int | None
    origin: Origin
    truncated_counts: Ints | None = None

    def __post_init__(self) -> None:
        values, counts = np.asarray(self.values, np.int64), np.asarray(self.counts, np.int64)
        check_cap(self.max_response_tokens)
        if not len(values):
            raise empty_trace(self.origin.source)
        if values.shape != counts.shape or np.any(np.diff(values) <= 0) or np.any(counts < 1):
            raise InputError(
                "histogram", f"{len(values)} values", "ascending values with counts >= 1", "sum equal lengths"
            )
        if values[0] < 1 or values[-1] > (self.max_response_tokens or INT32_MAX):
            bad = int(values[0] if values[0] < 1 else values[-1])
            raise InputError(
                "length",
                bad,
                f"1 to {self.max_response_tokens or INT32_MAX}",
                "correct the length or the cap",
            )
        truncated = self.truncated_counts
        if truncated is None:
            truncated = np.where(values >= (self.max_response_tokens or INT32_MAX + 1), counts, 0)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "truncated_counts", np.asarray(truncated, np.int64))

    @cached_property
    def cumulative(self) -> Ints:
        """Responses no longer than each value, shape [k]."""
        return np.cumsum(self.counts)

    @property
    def rows(self) -> int:
        """Number of responses."""
        return int(self.cumulative[-1])

    @property
    def truncated(self) -> Ints:
        """Responses that were cut, by value, shape [k]."""
        assert self.truncated_counts is not None  # set in __post_init__
        return self.truncated_counts

    def at_rank(self, ranks: Ints) -> Ints:
        """Return the lengths at 0-based `ranks` of the sorted responses; any shape, values in [0, rows)."""
        return self.values[np.searchsorted(self.cumulative, ranks, side="right")]

    def quantile(self, u: Floats) -> Ints:
        """Return the empirical quantile function at `u` in [0, 1], any shape: uniform u gives draws."""
        ranks = np.minimum((np.asarray(u) * self.rows).astype(np.int64), self.rows - 1)
        return self.at_rank(ranks)

    def percentile(self, percent: float) -> float:
        """Return the percentile (0 to 100), interpolated linearly between neighbouring responses."""
        rank = percent / 100 * (self.rows - 1)
        low, high = self.at_rank(np.array([int(np.floor(rank)), int(np.ceil(rank))]))
        return float(low + (rank - np.floor(rank)) * (high - low))

    @property
    def mean(self) -> float:
        """Mean length in tokens."""
        return float(self.values @ self.counts) / self.rows

    @property
    def max(self) -> int:
        """Longest length in tokens."""
        return int(self.values[-1])

    @property
    def max_over_median(self) -> float:
        """Longest length over the median length."""
        return self.max / self.percentile(50)

    @property
    def share_at_cap(self) -> float:
        """Share of responses that were cut."""
        return int(self.truncated.sum()) / self.rows

    def expected_max(self, batch: int) -> float:
        """Return the mean of the longest of `batch` independent draws: sum of v (F(v)^n - F(v-)^n), exact."""
        if batch < 1:
            raise InputError("batch", batch, "1 or more", "state how many responses are drawn")
        powers = (self.cumulative / self.rows) ** batch
        return float(self.values @ np.diff(powers, prepend=0.0))

    def sample(self, n: int, rng: np.random.Generator) -> Ints:
        """Return `n` independent draws (with replacement) in tokens, shape [n]."""
        if n < 0:
            raise InputError("n", n, "0 or more", "state how many responses to draw")
        return self.at_rank(rng.integers(self.rows, size=n))

    def truncate(self, max_response_tokens: int) -> LengthHistogram:
        """Return the lengths under a lower cap: what was longer, or as long, ends there and counts as cut.

        A cap above the one of the recording changes nothing: longer responses were never recorded.
        """
        check_cap(max_response_tokens)
        if self.max_response_tokens is not None and max_response_tokens >= self.max_response_tokens:
            return self
        below = self.values < max_response_tokens
        cut = int(self.counts[~below].sum())
        ends = np.array([cut] if cut else [], np.int64)
        note = f"{self.origin.note} Cut at {max_response_tokens:,} tokens after the recording.".lstrip()
        origin = msgspec.structs.replace(self.origin, max_response_tokens=max_response_tokens, note=note)
        return LengthHistogram(
            np.append(self.values[below], [max_response_tokens] * len(ends)),
            np.append(self.counts[below], ends),
            max_response_tokens,
            origin,
            np.append(self.truncated[below], ends),
        )


def histogram_of(trace: Trace) -> LengthHistogram:
    """Return the response lengths of `trace` as a histogram."""
    lengths = trace.rows["response_tokens"].to_numpy()
    return from_lengths(lengths, trace.rows["truncated"].to_numpy(), trace.origin)


def from_lengths(lengths: npt.NDArray[np.integer], truncated: Bools, origin: Origin) -> LengthHistogram:
    """Return the histogram of `lengths` (tokens, shape [n]); `truncated` (shape [n]) says which were cut."""
    values, where, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    cut = np.bincount(where[truncated], minlength=len(values))
    return LengthHistogram(values.astype(np.int64), counts, origin.max_response_tokens, origin, cut)
