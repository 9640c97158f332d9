"""The figures that say how long the tail is and what a batch loses to it."""

from __future__ import annotations

import msgspec

from tlt.traces.lengths.histogram import LengthHistogram
from tlt.traces.lengths.schema import KIND_LABELS, Kind

BATCHES = (8, 64, 256, 1024)


class BatchTail(msgspec.Struct, kw_only=True, frozen=True):
    """What a batch of `batch` independent draws sees.

    idle_share is 1 - mean / expected_max: modelled, the idle share of slots if every response had a slot of
    its own, all slots decoded at one speed, and all waited for the longest response.
    """

    batch: int
    expected_max_tokens: float
    expected_max_over_median: float
    idle_share: float


class Description(msgspec.Struct, kw_only=True, frozen=True):
    """Percentiles (tokens, interpolated), tail ratios and origin of response lengths."""

    rows: int
    min: int
    mean: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    max: int
    max_over_median: float
    max_response_tokens: int | None
    share_at_cap: float
    batches: tuple[BatchTail, ...]
    kind: Kind
    kind_label: str
    origin: str


def describe(hist: LengthHistogram) -> Description:
    """Return the figures of `hist`: counted from its rows; `batches` also assumes independent draws."""
    return Description(
        rows=hist.rows,
        min=int(hist.values[0]),
        mean=hist.mean,
        p50=hist.percentile(50),
        p75=hist.percentile(75),
        p90=hist.percentile(90),
        p95=hist.percentile(95),
        p99=hist.percentile(99),
        max=hist.max,
        max_over_median=hist.max_over_median,
        max_response_tokens=hist.max_response_tokens,
        share_at_cap=hist.share_at_cap,
        batches=tuple(_batch_tail(hist, batch) for batch in BATCHES),
        kind=hist.origin.kind,
        kind_label=KIND_LABELS[hist.origin.kind],
        origin=hist.origin.text(),
    )


def _batch_tail(hist: LengthHistogram, batch: int) -> BatchTail:
    longest = hist.expected_max(batch)
    return BatchTail(
        batch=batch,
        expected_max_tokens=longest,
        expected_max_over_median=longest / hist.percentile(50),
        idle_share=1 - hist.mean / longest,
    )
