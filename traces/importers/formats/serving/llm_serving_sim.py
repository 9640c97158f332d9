"""LLMServingSim: requests of a workload or of a vLLM run beside it, JSONL."""

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

    input_toks: Any = None
    output_toks: Any = None
    arrival_time: Any = None  # seconds
    arrival_time_ns: Any = None


def _row(record: Record, line: int, source: Source) -> Response:
    del source
    seconds, nanoseconds = number(record.arrival_time), number(record.arrival_time_ns)
    arrived = seconds if nanoseconds is None else nanoseconds / 1e9
    return Response(
        line=line,
        group=line,
        response_tokens=need("output_toks", whole(record.output_toks)),
        prompt_tokens=whole(record.input_toks) or 0,
        sample=0,
        arrived_s=arrived,
    )


IMPORTER = Importer(
    name="llm-serving-sim",
    framework="LLMServingSim",
    file="requests.jsonl, or a workload .jsonl",
    written_by="LLMServingSim's bench (requests.jsonl) and workloads",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a service, not RL rollouts: each is a prompt of its own.",
        "Times of single requests give how long all took together, if they were sent at once; none is kept.",
        "Which responses were cut is not written.",
    ),
    signs=("input_toks", "output_toks", "arrival_time_ns", "arrival_time"),
    detect=lambda head: head.lacks("input_toks", "output_toks"),
    read=exact_reader(Record, _row),
    file_name=re.compile(r"\.jsonl(?:\.gz)?$"),
)
