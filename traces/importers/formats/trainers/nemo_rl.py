"""NeMo-RL: train_data_step{N}.jsonl, a line a sample, with token ids and a mask of the trained tokens."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Response, Source, UnusableError
from tlt.traces.importers.reading.records import exact_reader, need
from tlt.traces.importers.reading.values import digest, number, single, whole

NO_RAW = msgspec.Raw(b"")


class Record(msgspec.Struct):
    """The fields that are read. The ids stay encoded: prompts differ in their beginning, texts anywhere."""

    token_loss_mask: Any = None
    input_lengths: Any = None
    rewards: Any = None
    token_ids: msgspec.Raw = NO_RAW


def _row(record: Record, line: int, source: Source) -> Response:
    mask = record.token_loss_mask
    if isinstance(mask, list) and len(mask) == 1 and isinstance(mask[0], list):
        mask = mask[0]
    if not isinstance(mask, list):
        raise UnusableError("token_loss_mask is missing or of another type")
    if any(value not in (0, 1) for value in mask if not isinstance(value, list)) or single(mask) == []:
        raise UnusableError("token_loss_mask holds other values than 0 and 1")
    trained = sum(1 for value in mask if value == 1)
    total = need("input_lengths", whole(record.input_lengths))
    if total < trained:
        raise UnusableError("input_lengths below the trained tokens")
    first = next((i for i, value in enumerate(mask) if value == 1), len(mask))
    return Response(
        line=line,
        group=_prompt(record.token_ids, first, line),
        response_tokens=trained,
        prompt_tokens=total - trained,
        reward=number(record.rewards),
        text_hash=digest(bytes(record.token_ids)) if len(record.token_ids) else 0,
        step=source.step,
    )


def _prompt(ids: msgspec.Raw, count: int, line: int) -> str:
    """Return the first `count` ids as written: equal in all responses to a prompt."""
    if not len(ids):
        return f"line {line}"
    text = bytes(ids)
    at = -1
    for _ in range(count):
        at = text.find(b",", at + 1)
        if at < 0:
            return text.decode("latin-1")
    return text[: max(at, 0)].decode("latin-1")


def _detect(head: Head) -> str:
    missing = head.lacks("input_lengths")
    if missing:
        return missing
    known = {"token_loss_mask", "token_ids", "sample_loss_mask", "generation_logprobs"}
    return "" if known & head.fields.keys() else "no field token_loss_mask"


IMPORTER = Importer(
    name="nemo-rl",
    framework="NeMo-RL",
    file="train_data_step{N}.jsonl",
    written_by="logger.log_dir (on by default; skipped when NeMo-Gym logs responses)",
    kind="rollout",
    lengths="exact",
    lost=(
        "Lengths are trained tokens, sum(token_loss_mask); all other tokens count as prompt, those of an "
        "environment between turns too.",
        "Responses are grouped by the tokens before the first trained one.",
        "Which responses were cut is not written: with --cap those that reach it are marked.",
    ),
    signs=("token_loss_mask", "input_lengths", "token_ids", "sample_loss_mask", "generation_logprobs"),
    detect=_detect,
    read=exact_reader(Record, _row),
    file_name=re.compile(r"(?:^|/)train_data_step(?P<step>\d+)\.jsonl(?:\.gz)?$"),
)
