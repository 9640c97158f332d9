"""Mooncake, and Qwen-Bailian in the same layout: JSONL of requests with time, lengths and prompt blocks.

Mooncake's times are whole milliseconds; Bailian's are seconds, and its requests have a chat and a turn.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Response, Source, UnusableError
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
    if time_ms is not None and not time_ms.is_integer():
        raise UnusableError(
            "a fraction of a millisecond: times in seconds (qwen-bailian has them, and chat_id)"
        )
    return _request(record, line, None if time_ms is None else time_ms / 1000.0)


def _row_in_seconds(record: Record, line: int, source: Source) -> Response:
    del source
    return _request(record, line, number(record.timestamp))


def _request(record: Record, line: int, arrived_s: float | None) -> Response:
    return Response(
        line=line,
        group=line,
        response_tokens=need("output_length", whole(record.output_length)),
        prompt_tokens=need("input_length", whole(record.input_length)),
        sample=0,
        arrived_s=arrived_s,
    )


def _detect(head: Head) -> str:
    missing = head.lacks("timestamp", "input_length", "output_length")
    return missing or ("it has the field chat_id" if "chat_id" in head.fields else "")


MOONCAKE = Importer(
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
    signs=("timestamp", "input_length", "output_length", "hash_ids"),
    detect=_detect,
    read=exact_reader(Record, _row),
    file_name=re.compile(r"\.jsonl(?:\.gz)?$"),
)
BAILIAN = Importer(
    name="qwen-bailian",
    framework="Qwen-Bailian",
    file="any .jsonl",
    written_by="published with the Qwen-Bailian usage traces",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a service, not RL rollouts: each is a prompt of its own.",
        "Chats (chat_id, parent_chat_id, turn) and shared prefixes (hash_ids) are not kept: a turn is a "
        "request whose prompt holds the turns before it. Which responses were cut is not written.",
    ),
    signs=("timestamp", "input_length", "output_length", "chat_id", "turn"),
    detect=lambda head: head.lacks("timestamp", "input_length", "output_length", "chat_id"),
    read=exact_reader(Record, _row_in_seconds),
    file_name=re.compile(r"\.jsonl(?:\.gz)?$"),
)
