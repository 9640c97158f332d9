"""Dynamo's request traces: JSONL events, a request when it has ended, and what tools a harness reported."""

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

SCHEMA = b"dynamo.request.trace.v"
NOT_A_REQUEST = ("tool_start", "tool_end", "tool_error", "request_payload")
MS = 1_000.0
ENDS = {"stop": "stop", "length": "length", "tool_calls": "tool", "function_call": "tool", "abort": "aborted"}


class Event(msgspec.Struct):
    """The fields of an event that are read; it may stand in an envelope with the time it was written at."""

    event_type: Any = None
    event_time_unix_ms: Any = None
    agent_context: Any = None
    request: Any = None


class Line(Event):
    """A line: the event, or its envelope."""

    event: Event | None = None


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    del options
    decoder = msgspec.json.Decoder(Line)
    for line in iter_lines(source.path):
        record = decode(decoder, line, TOO_LONG)
        if isinstance(record, Skip):
            yield record
            continue
        event = record if record.event is None else record.event
        if event.event_type in NOT_A_REQUEST:
            continue
        try:
            yield _row(event, line.number)
        except UnusableError as error:
            yield Skip(line.number, str(error), line.text[:400])


def _row(event: Event, line: int) -> Response:
    request = need("request", event.request if isinstance(event.request, dict) else None)
    context = event.agent_context if isinstance(event.agent_context, dict) else {}
    replay = request.get("replay") if isinstance(request.get("replay"), dict) else {}
    finish = request.get("finish_reason_metadata")
    reason = single_text(finish.get("finish_reason")) if isinstance(finish, dict) else None
    started_s, ended_s = _times(event, request)
    names = [single_text(context.get(name)) for name in ("session_id", "trajectory_id", "program_id")]
    prompt = next(
        (n for n in map(whole, (replay.get("input_length"), request.get("input_tokens"))) if n is not None),
        None,
    )
    session = "/".join(name for name in names if name)
    return Response(
        line=line,
        group=line,
        sample=0,
        prompt_tokens=need("input_length", prompt),
        response_tokens=need("output_tokens", whole(request.get("output_tokens"))),
        truncated=reason == "length",
        end=ENDS.get(reason or "", "not_known"),
        arrived_s=started_s,
        request=Request(
            session=session or f"line {line}",
            id=single_text(request.get("request_id")) or "",
            started_s=started_s,
            ended_s=ended_s,
            blocks=block_ids(replay.get("input_sequence_hashes")),
            block_tokens=whole(replay.get("trace_block_size")),
        ),
    )


def _times(event: Event, request: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return when a request was received and when it ended, in seconds; what is not written stays unknown."""
    received, total = number(request.get("request_received_ms")), number(request.get("total_time_ms"))
    written = number(event.event_time_unix_ms)
    ended = written if received is None or total is None else received + total
    if received is None and ended is not None and total is not None:
        received = ended - total
    return (None if received is None else received / MS), (None if ended is None else ended / MS)


def _detect(head: Head) -> str:
    if not head.fields:
        return "no JSON object at its beginning"
    return "" if SCHEMA in head.start[:4096] else f"no schema {SCHEMA.decode()}1"


IMPORTER = Importer(
    name="dynamo-trace",
    framework="Dynamo",
    file="dynamo-request-trace.{N}.jsonl.gz",
    written_by="DYN_REQUEST_TRACE=1",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a service, not RL rollouts: as lengths each is a prompt of its own.",
        "Events of single tools are not kept: a wait is the time from a response to the next request.",
    ),
    waits=(
        "A wait is the time from the end of a response to the next request of its session, tools "
        "and harness together; where a time is missing it is not known."
    ),
    signs=("schema", "event_type", "agent_context", "request", "event"),
    detect=_detect,
    read=_read,
    file_name=re.compile(r"\.jsonl(?:\.gz)?$"),
)
