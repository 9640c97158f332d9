"""JSONL with a session a line: Applied Compute's workloads, and the traces of kv-cache-tester (AgentX)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Request, Response, Skip, Source, UnusableError
from tlt.traces.importers.reading.lines import DOCUMENT_BYTES, iter_lines
from tlt.traces.importers.reading.records import TOO_LONG_DOCUMENT, decode, exact_reader, need
from tlt.traces.importers.reading.values import block_ids, number, single_text, whole
from tlt.traces.sessions.turns import Turn

FILE_NAME = re.compile(r"\.jsonl?(?:\.gz)?$")
SERVICE = "These are sessions of a service, not RL rollouts: each is a prompt of its own."


class Workload(msgspec.Struct):
    """A session of Applied Compute: lists of one number a turn that calls a tool."""

    num_turns: Any = None
    input_prompt_length: Any = None
    assistant_response_length: Any = None
    tool_call_output_length: Any = None
    tool_call_latency: Any = None
    final_assistant_response_length: Any = None


def _workload(record: Workload, line: int, source: Source) -> Response:
    del source
    prompt = need("input_prompt_length", whole(record.input_prompt_length))
    said, own = (
        _wholes(values) for values in (record.tool_call_output_length, record.assistant_response_length)
    )
    latency = record.tool_call_latency
    waits = [number(value) for value in latency] if isinstance(latency, list) else []
    if not len(said) == len(own) == len(waits) == whole(record.num_turns):
        raise UnusableError("lists of different lengths, or not of num_turns")
    own.append(need("final_assistant_response_length", whole(record.final_assistant_response_length)))
    turns = []
    for tokens, response, wait in zip([prompt, *said], own, [*waits, 0.0], strict=True):
        known = float("nan") if wait is None else wait
        turns.append(Turn(input_tokens=tokens, response_tokens=response, wait_s=known, end="tool"))
    turns[-1] = msgspec.structs.replace(turns[-1], end="stop")
    return Response(
        line=line,
        group=line,
        sample=0,
        prompt_tokens=prompt + sum(said),
        response_tokens=sum(own),
        end="stop",
        several_turns=len(turns) > 1,
        turns=tuple(turns) if len(turns) > 1 else (),
    )


def _wholes(values: Any) -> list[int]:
    found = [whole(value) for value in values] if isinstance(values, list) else [None]
    if any(value is None for value in found):
        raise UnusableError("a list of lengths is missing or holds something else")
    return [value for value in found if value is not None]


class Agent(msgspec.Struct):
    """A session of kv-cache-tester: requests with seconds since its begin; subagents have theirs inside."""

    id: Any = None
    block_size: Any = None
    hash_id_scope: Any = None
    requests: Any = None


def _agents(source: Source, options: Options) -> Iterator[Response | Skip]:
    del options
    decoder = msgspec.json.Decoder(Agent)
    for line in iter_lines(source.path, DOCUMENT_BYTES):
        record = decode(decoder, line, TOO_LONG_DOCUMENT)
        if isinstance(record, Skip):
            yield record
        elif not isinstance(record.requests, list):
            yield Skip(line.number, "no list of requests", line.text[:400])
        else:
            yield from _of_agent(record, line.number)


def _of_agent(record: Agent, line: int) -> Iterator[Response | Skip]:
    name = single_text(record.id) or f"line {line}"
    for place, one in enumerate(record.requests):
        if not isinstance(one, dict) or "in" not in one or "out" not in one:
            yield Skip(
                line, "an entry that is no request of the session itself, as of a subagent", name.encode()
            )
            continue
        prompt, tokens = whole(one["in"]), whole(one["out"])
        if prompt is None or tokens is None:
            yield Skip(line, "a request without lengths", name.encode())
            continue
        started_s, took_s = number(one.get("t")), number(one.get("api_time"))
        yield Response(
            line=line,
            group=f"{name} {place}",
            sample=0,
            prompt_tokens=prompt,
            response_tokens=tokens,
            request=Request(
                session=name,
                started_s=started_s,
                ended_s=None if started_s is None or took_s is None else started_s + took_s,
                blocks=block_ids(one.get("hash_ids")),
                block_tokens=whole(record.block_size),
                local_blocks=record.hash_id_scope == "local",
            ),
        )


def _detect_agents(head: Head) -> str:
    return head.lacks("requests", "block_size", "models")


APPLIED_COMPUTE = Importer(
    name="applied-compute",
    framework="Applied Compute",
    file="any .jsonl",
    written_by="published with Applied-Compute/trie",
    kind="serving",
    lengths="exact",
    lost=(SERVICE, "Several tools called at once are one. Which responses were cut is not written."),
    waits="Waits are tool_call_latency, as recorded; a file in which all are 0 did not measure them.",
    signs=("num_turns", "input_prompt_length", "assistant_response_length", "tool_call_latency"),
    detect=lambda head: head.lacks("num_turns", "input_prompt_length", "assistant_response_length"),
    read=exact_reader(Workload, _workload),
    file_name=FILE_NAME,
)
AGENTX = Importer(
    name="agentx",
    framework="kv-cache-tester",
    file="any .jsonl",
    written_by="published as AgentX traces, format Weka",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a service, not RL rollouts: as lengths each is a prompt of its own.",
        "Requests of subagents are left out. When sessions began is not written, nor what was cut.",
    ),
    waits=(
        "A wait is the time from the end of a response (t and api_time) to the next request of its session."
    ),
    signs=("id", "models", "block_size", "hash_id_scope", "requests"),
    detect=_detect_agents,
    read=_agents,
    file_name=FILE_NAME,
)
