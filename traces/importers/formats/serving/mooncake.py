"""Mooncake, and Qwen-Bailian in the same layout: JSONL of requests with time, lengths and prompt blocks.

Mooncake's times are whole milliseconds; Bailian's are seconds, and its requests have a chat and a turn.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Request, Response, Source, UnusableError
from tlt.traces.importers.reading.records import exact_reader, need
from tlt.traces.importers.reading.values import block_ids, key_of, number, whole


class Record(msgspec.Struct):
    """The fields that are read."""

    timestamp: Any = None
    input_length: Any = None
    output_length: Any = None
    hash_ids: Any = None
    session_id: Any = None
    delay: Any = None
    delay_ms: Any = None
    chat_id: Any = None
    parent_chat_id: Any = None


def _row(record: Record, line: int, source: Source) -> Response:
    del source
    time_ms = number(record.timestamp)
    if time_ms is not None and not time_ms.is_integer():
        raise UnusableError(
            "a fraction of a millisecond: times in seconds (qwen-bailian has them, and chat_id)"
        )
    time_s = None if time_ms is None else time_ms / 1000.0
    delay_ms = next((n for n in map(number, (record.delay, record.delay_ms)) if n is not None), None)
    session = key_of(record.session_id)
    request = Request(
        session=f"line {line}" if session is None else str(session),
        started_s=time_s,
        wait_s=None if delay_ms is None else delay_ms / 1000.0,
        blocks=block_ids(record.hash_ids),
    )
    return _response(record, line, time_s, request)


def _row_in_seconds(record: Record, line: int, source: Source) -> Response:
    del source
    time_s = number(record.timestamp)
    chat, parent = key_of(record.chat_id), key_of(record.parent_chat_id)
    request = Request(
        session="",  # chats: each says which one it goes on from
        id=str(chat),
        after=(str(parent),),
        started_s=time_s,
        blocks=block_ids(record.hash_ids),
    )
    return _response(record, line, time_s, request)


def _response(record: Record, line: int, arrived_s: float | None, request: Request) -> Response:
    return Response(
        line=line,
        group=line,
        response_tokens=need("output_length", whole(record.output_length)),
        prompt_tokens=need("input_length", whole(record.input_length)),
        sample=0,
        arrived_s=arrived_s,
        request=request,
    )


def _detect(head: Head) -> str:
    missing = head.lacks("timestamp", "input_length", "output_length")
    others = [name for name in ("chat_id", "wait_for", "tool_wait_ms") if name in head.fields]
    return missing or (f"it has the field {others[0]}" if others else "")


MOONCAKE = Importer(
    name="mooncake",
    framework="Mooncake",
    file="any .jsonl",
    written_by="published with the Mooncake traces",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a service, not RL rollouts: each is a prompt of its own.",
        "Which responses were cut is not written.",
    ),
    waits=(
        "Requests with the same session_id are turns of a session. A wait is the delay, where it "
        "is written; a time between two requests holds the decoding of the first, so that the wait "
        "in it is not known."
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
        "A turn of a chat is a request whose prompt holds the turns before it.",
        "Which responses were cut is not written.",
    ),
    waits=(
        "Turns of a chat follow their parent_chat_id. Waits are not known: the time between two "
        "requests holds the decoding of the first."
    ),
    signs=("timestamp", "input_length", "output_length", "chat_id", "turn"),
    detect=lambda head: head.lacks("timestamp", "input_length", "output_length", "chat_id"),
    read=exact_reader(Record, _row_in_seconds),
    file_name=re.compile(r"\.jsonl(?:\.gz)?$"),
)
