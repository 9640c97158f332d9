"""verifiers: results.jsonl of an evaluation, a rollout a line, with tokens of its turns or their texts."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Response, Source, UnusableError
from tlt.traces.importers.reading.records import exact_reader, need, text_reader
from tlt.traces.importers.reading.texts import LOST_BY_TOKENISING, WAITS_NOT_WRITTEN, TextResponse
from tlt.traces.importers.reading.values import digest, encoded, key_of, message_turns, number, text_of, whole

FILE_NAME = re.compile(r"(?:^|/)results\.jsonl(?:\.gz)?$")


class Record(msgspec.Struct):
    """The fields that are read."""

    example_id: Any = None
    prompt: Any = None
    completion: Any = None
    is_truncated: Any = None
    stop_condition: Any = None
    error: Any = None
    token_usage: Any = None
    reward: Any = None


def _response(record: Record, line: int, tokens: int) -> Response:
    if record.error:
        raise UnusableError("the rollout ended in an error")
    group = key_of(record.example_id)
    return Response(
        line=line,
        group=encoded(record.prompt) if group is None else group,
        response_tokens=tokens,
        truncated=record.is_truncated is True,
        end="turn_limit" if record.stop_condition == "max_turns_reached" else "not_known",
        reward=number(record.reward),
        text_hash=0 if record.completion is None else digest(encoded(record.completion)),
    )


def _exact(record: Record, line: int, source: Source) -> Response:
    del source
    usage = record.token_usage if isinstance(record.token_usage, dict) else {}
    return _response(record, line, need("token_usage.output_tokens", whole(usage.get("output_tokens"))))


def _text(record: Record, line: int, source: Source) -> TextResponse:
    del source
    prompt = need("prompt", text_of(record.prompt))
    completion = need("completion", _generated(record.completion))
    return TextResponse(_response(record, line, 0), prompt, completion, message_turns(record.completion))


def _generated(completion: Any) -> str | None:
    """Return what the model wrote: the messages of the assistant, not those of tools and users between."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list):
        return None
    own = [one for one in completion if isinstance(one, dict) and one.get("role") == "assistant"]
    return text_of(own) if own else None


def _detect_exact(head: Head) -> str:
    return head.lacks("example_id", "completion", "reward", "token_usage")


def _detect_text(head: Head) -> str:
    missing = head.lacks("example_id", "completion", "reward")
    return missing or ("it has token_usage: verifiers" if "token_usage" in head.fields else "")


EXACT = Importer(
    name="verifiers",
    framework="verifiers",
    file="results.jsonl",
    written_by="vf-eval --save-results (versions that write token_usage)",
    kind="rollout",
    lengths="exact",
    lost=(
        "Lengths are token_usage.output_tokens, of all turns of a rollout; prompts are not counted.",
        "An evaluation has no RL steps.",
    ),
    signs=("example_id", "completion", "reward", "token_usage", "is_truncated"),
    detect=_detect_exact,
    read=exact_reader(Record, _exact),
    file_name=FILE_NAME,
)
TEXTS = Importer(
    name="verifiers-texts",
    framework="verifiers",
    file="results.jsonl",
    written_by="vf-eval --save-results",
    kind="rollout",
    lengths="re-tokenised",
    lost=(
        *LOST_BY_TOKENISING,
        "Of a completion with turns the messages of the assistant are counted, without their tool calls.",
        "An evaluation has no RL steps.",
    ),
    signs=("example_id", "prompt", "completion", "reward", "answer"),
    detect=_detect_text,
    read=text_reader("verifiers-texts", Record, _text),
    waits=WAITS_NOT_WRITTEN,
    file_name=FILE_NAME,
)
