"""Output of an OpenAI-compatible batch (`vllm run-batch`): JSONL, a request a line, with its usage."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.items import Response, Source, UnusableError
from tlt.traces.importers.reading.records import exact_reader, need
from tlt.traces.importers.reading.values import single_text, whole


class Record(msgspec.Struct):
    """The fields that are read."""

    custom_id: Any = None
    response: Any = None
    error: Any = None


def _row(record: Record, line: int, source: Source) -> Response:
    del source
    answer = record.response if isinstance(record.response, dict) else {}
    body = answer.get("body")
    if record.error or not isinstance(body, dict) or answer.get("status_code") not in (200, None):
        raise UnusableError("the request failed")
    usage, choices = body.get("usage"), body.get("choices")
    usage = usage if isinstance(usage, dict) else {}
    choices = choices if isinstance(choices, list) else []
    if len(choices) > 1:
        raise UnusableError("several choices, whose tokens the usage adds up")
    ended = choices[0].get("finish_reason") if choices and isinstance(choices[0], dict) else None
    return Response(
        line=line,
        group=single_text(record.custom_id) or line,
        response_tokens=need("usage.completion_tokens", whole(usage.get("completion_tokens"))),
        prompt_tokens=whole(usage.get("prompt_tokens")) or 0,
        truncated=ended == "length",
    )


IMPORTER = Importer(
    name="batch-output",
    framework="OpenAI batch",
    file="any .jsonl",
    written_by="vllm run-batch -i IN -o OUT (any OpenAI-compatible batch)",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a batch, not RL rollouts; no times are written.",
        "Lengths are usage.completion_tokens; of several choices that is the sum, and they are left out.",
    ),
    signs=("custom_id", "response", "error"),
    detect=lambda head: head.lacks("custom_id", "response"),
    read=exact_reader(Record, _row),
    file_name=re.compile(r"\.jsonl(?:\.gz)?$"),
)
