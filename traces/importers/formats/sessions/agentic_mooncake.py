"""Agentic Mooncake: JSONL of requests that wait for one another, as Dynamo makes it from request traces.

Version 1 has wait_for, delay and tool_wait_ms a request; version 2 a line of its own first, with the size of
a block, then play_id, not_before_ms and dependencies with a delay each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Request, Response, Skip, Source, UnusableError
from tlt.traces.importers.reading.lines import iter_lines
from tlt.traces.importers.reading.records import TOO_LONG, decode, need
from tlt.traces.importers.reading.values import block_ids, number, single_text, whole

SCHEMA = "dynamo.agentic_mooncake"
MS = 1_000.0


class Record(msgspec.Struct):
    """The fields that are read, of a request or of the first line."""

    request_id: Any = None
    session_id: Any = None
    input_length: Any = None
    input_tokens: Any = None
    output_length: Any = None
    output_tokens: Any = None
    hash_ids: Any = None
    timestamp: Any = None
    created_time: Any = None
    not_before_ms: Any = None
    wait_for: Any = None
    dependencies: Any = None
    delay: Any = None
    delay_ms: Any = None
    tool_wait_ms: Any = None
    schema: Any = None
    block_size: Any = None


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    del options
    decoder = msgspec.json.Decoder(Record)
    block_tokens: int | None = None
    for line in iter_lines(source.path):
        record = decode(decoder, line, TOO_LONG)
        if isinstance(record, Skip):
            yield record
        elif record.schema == SCHEMA:
            block_tokens = whole(record.block_size)
        else:
            try:
                yield _row(record, line.number, block_tokens)
            except UnusableError as error:
                yield Skip(line.number, str(error), line.text[:400])


def _row(record: Record, line: int, block_tokens: int | None) -> Response:
    after, wait_s = _dependencies(record)
    begins = next(
        (
            n
            for n in map(number, (record.not_before_ms, record.timestamp, record.created_time))
            if n is not None
        ),
        None,
    )
    session = need("session_id", single_text(record.session_id))
    begin_s = (
        None if after else (begins or 0.0) / MS
    )  # a request that waits for others has no time of its own
    return Response(
        line=line,
        group=line,
        sample=0,
        prompt_tokens=need("input_length", _first_whole(record.input_length, record.input_tokens)),
        response_tokens=need("output_length", _first_whole(record.output_length, record.output_tokens)),
        arrived_s=begin_s,
        request=Request(
            session=session,
            id=need("request_id", single_text(record.request_id)),
            after=after,
            wait_s=wait_s,
            blocks=block_ids(record.hash_ids),
            block_tokens=block_tokens,
            local_blocks=block_tokens is not None,  # version 2 numbers blocks in each play
        ),
    )


def _dependencies(record: Record) -> tuple[tuple[str, ...], float]:
    """Return which requests have to have ended, and the seconds from the last of them on."""
    if isinstance(record.dependencies, list):
        known = [one for one in record.dependencies if isinstance(one, dict)]
        ended = [one for one in known if one.get("trigger") == "completion"]
        delays = [delay for delay in (number(one.get("delay_ms")) for one in ended) if delay is not None]
        return tuple(str(one.get("request_id")) for one in ended), max(delays, default=0.0) / MS
    names = record.wait_for if isinstance(record.wait_for, list) else []
    delays = [number(value) or 0.0 for value in (record.delay, record.delay_ms, record.tool_wait_ms)]
    return tuple(str(name) for name in names), sum(delays) / MS


def _first_whole(*values: Any) -> int | None:
    return next((found for found in map(whole, values) if found is not None), None)


def _detect(head: Head) -> str:
    if "schema" in head.fields and SCHEMA.encode() in head.start[:4096]:
        return ""
    missing = head.lacks("request_id", "session_id", "output_length")
    if missing:
        return missing
    ties = ("wait_for", "tool_wait_ms", "dependencies", "branches", "prefix_reset")
    return "" if any(name in head.fields for name in ties) else f"no field {' or '.join(ties[:3])}"


IMPORTER = Importer(
    name="agentic-mooncake",
    framework="Agentic Mooncake",
    file="any .jsonl",
    written_by="Dynamo's request_trace_to_mooncake --agentic; AISimulate",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a service, not RL rollouts: as lengths each is a prompt of its own.",
        "Which responses were cut is not written.",
    ),
    waits=(
        "Waits are those that the file states (delay and tool_wait_ms), after the requests that a "
        "request waits for; what other sessions of the same agent took is not in them."
    ),
    signs=("request_id", "session_id", "wait_for", "tool_wait_ms", "hash_ids", "output_length"),
    detect=_detect,
    read=_read,
    file_name=re.compile(r"\.jsonl(?:\.gz)?$"),
)
