"""Mooncake: JSONL of requests with their time, lengths and hashes of prompt blocks."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.items import Response, Source
from tlt.traces.importers.reading.records import exact_reader, need
from tlt.traces.importers.reading.values import number, whole


class Record(msgspec.Struct):
    """The fields that are read."""

    timestamp: Any = None
    input_length: Any = None
    output_length: Any = None


def _row(record: Record, line: int, source: Source) -> Response:
    del source
    time_ms = number(record.timestamp)
    return Response(
        line=line,
        group=line,
        response_tokens=need("output_length", whole(record.output_length)),
        prompt_tokens=need("input_length", whole(record.input_length)),
        sample=0,
        arrived_s=None if time_ms is None else time_ms / 1000.0,
    )


IMPORTER = Importer(
    name="mooncake",
    framework="Mooncake",
    file="any .jsonl",
    written_by="published with the Mooncake traces",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a service, not RL rollouts: each is a prompt of its own.",
        "Shared prefixes (hash_ids) are not kept. Which responses were cut is not written.",
    ),
    detect=lambda head: head.lacks("timestamp", "input_length", "output_length"),
    read=exact_reader(Record, _row),
    file_name=re.compile(r"\.jsonl(?:\.gz)?$"),
)
