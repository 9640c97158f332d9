"""AIPerf: profile_export.jsonl, a request a line: metadata, metrics with their units, error."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.items import Response, Source, UnusableError
from tlt.traces.importers.reading.records import exact_reader, need
from tlt.traces.importers.reading.values import number, whole

LENGTH = "output_sequence_length"  # of output_token_count and reasoning_token_count


class Record(msgspec.Struct):
    """The fields that are read."""

    metadata: Any = None
    metrics: Any = None
    error: Any = None


def _row(record: Record, line: int, source: Source) -> Response:
    del source
    about = record.metadata if isinstance(record.metadata, dict) else {}
    metrics = record.metrics if isinstance(record.metrics, dict) else {}
    if record.error or about.get("was_cancelled") is True:
        raise UnusableError("the request failed or was cancelled")
    if about.get("benchmark_phase") == "warmup":
        raise UnusableError("a request of the warm-up")
    begun = number(about.get("request_start_ns"))
    found = _tokens(metrics, LENGTH)
    if found is None and (shown := _tokens(metrics, "output_token_count")) is not None:
        found = shown + (_tokens(metrics, "reasoning_token_count") or 0)
    return Response(
        line=line,
        group=line,
        response_tokens=need(LENGTH, found),
        prompt_tokens=_tokens(metrics, "input_sequence_length") or 0,
        sample=0,
        arrived_s=None if begun is None else begun / 1e9,
    )


def _tokens(metrics: dict[str, Any], name: str) -> int | None:
    found = metrics.get(name)
    return whole(found.get("value")) if isinstance(found, dict) and found.get("unit") == "tokens" else None


IMPORTER = Importer(
    name="aiperf",
    framework="AIPerf",
    file="profile_export.jsonl",
    written_by="aiperf profile (in its artifact folder)",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a benchmark, not RL rollouts: each is a prompt of its own, turns of a "
        "conversation too.",
        "Which responses were cut is not written: with --cap those that reach it are marked.",
    ),
    signs=("metadata", "metrics", "error"),
    detect=lambda head: head.lacks("metadata", "metrics", "error"),
    read=exact_reader(Record, _row),
    file_name=re.compile(r"(?:^|/)profile_export[^/]*\.jsonl(?:\.gz)?$"),
)
