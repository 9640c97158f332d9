"""AReaL: {log_path}/rollout/{tail_version}/{task_id}.jsonl, a line a sample, with lengths and versions."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.items import Response, Source, UnusableError
from tlt.traces.importers.reading.records import exact_reader, need
from tlt.traces.importers.reading.values import digest, key_of, number, whole


class Record(msgspec.Struct):
    """The fields that are read."""

    task_id: Any = None
    sample_idx: Any = None
    seqlen: Any = None
    prompt_len: Any = None
    head_version: Any = None
    tail_version: Any = None
    reward: Any = None
    completion: Any = None


def _row(record: Record, line: int, source: Source) -> Response:
    total = need("seqlen", whole(record.seqlen))
    prompt = need("prompt_len", whole(record.prompt_len))
    if prompt > total:
        raise UnusableError("prompt_len above seqlen")
    head, tail = whole(record.head_version), whole(record.tail_version)
    return Response(
        line=line,
        group=need("task_id", key_of(record.task_id)),
        response_tokens=total - prompt,
        prompt_tokens=prompt,
        step=source.step if tail is None else tail,
        sample=whole(record.sample_idx),
        reward=number(record.reward),
        text_hash=digest(record.completion) if isinstance(record.completion, str) else 0,
        lag=None if head is None or tail is None else tail - head,
    )


IMPORTER = Importer(
    name="areal",
    framework="AReaL",
    file="rollout/{tail_version}/{task_id}.jsonl",
    written_by="dump_to_file: true (and tokenizer_path)",
    kind="rollout",
    lengths="exact",
    lost=(
        "A step is a tail_version: the policy version at which a response ended.",
        "Which responses were cut is not written: with --cap those that reach it are marked.",
    ),
    signs=("seqlen", "prompt_len", "task_id", "head_version", "tail_version"),
    detect=lambda head: head.lacks("seqlen", "prompt_len", "task_id"),
    read=exact_reader(Record, _row),
    file_name=re.compile(
        r"^(?!(?:.*/)?eval-rollout/)(?:(?:.*/)?(?P<step>\d+)/)?(?:.*/)?[^/]+\.jsonl(?:\.gz)?$"
    ),
)
