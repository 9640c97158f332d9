"""ROLL: rollout_dump_data.step_{N}.jsonl, one JSON object of columns a file, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Response, Skip, Source
from tlt.traces.importers.reading.records import documents
from tlt.traces.importers.reading.texts import (
    LOST_BY_TOKENISING,
    NOT_KNOWN_CUT,
    TextResponse,
    needs_tokeniser,
    tokenised,
)
from tlt.traces.importers.reading.values import encoded, number, text_of, whole


class Columns(msgspec.Struct):
    """The columns that are read."""

    responses: Any = None
    prompt: Any = None
    messages: Any = None
    global_step: Any = None
    scores: Any = None


def _rows(source: Source) -> Iterator[TextResponse | Skip]:
    for found in documents(Columns, source):
        if isinstance(found, Skip):
            yield found
            continue
        number, columns = found
        if not isinstance(columns.responses, list):
            yield Skip(number, "responses is missing or no list")
            continue
        for index, completion in enumerate(columns.responses):
            yield _row(columns, index, completion, source)


def _row(columns: Columns, index: int, completion: Any, source: Source) -> TextResponse | Skip:
    """Return the response `index`; its place is its number in the column."""
    line = index + 1
    text = text_of(completion)
    if text is None:
        return Skip(line, "responses holds something else than text", b"element of responses")
    prompt = _element(columns.prompt, index)
    prompt = _element(columns.messages, index) if prompt is None else prompt
    shown = text_of(prompt)
    step = whole(_element(columns.global_step, index))
    response = Response(
        line,
        line if shown is None else encoded(prompt),
        0,
        step=source.step if step is None else step,
        reward=number(_element(columns.scores, index)),
    )
    return TextResponse(response, shown or "", text)


def _element(column: Any, index: int) -> Any:
    if not isinstance(column, list):
        return column
    return column[index] if index < len(column) else None


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    if options.tokenise is None:
        raise needs_tokeniser("roll")
    return tokenised(_rows(source), options.tokenise, "roll")


def _detect(head: Head) -> str:
    missing = head.lacks("responses")
    if missing:
        return missing
    return "" if bytes(head.fields["responses"]).startswith(b"[") else "responses is no column (a list)"


IMPORTER = Importer(
    name="roll",
    framework="ROLL",
    file="rollout_dump_data.step_{N}.jsonl",
    written_by="rollout_dump_dir=/absolute/path",
    kind="rollout",
    lengths="re-tokenised",
    lost=(
        *LOST_BY_TOKENISING,
        NOT_KNOWN_CUT,
        "Responses with the same prompt text are one group; where no prompt is written each is its own.",
    ),
    signs=("responses", "prompt", "sampling_params", "scores", "ground_truth"),
    detect=_detect,
    read=_read,
    file_name=re.compile(r"(?:^|/)[^/]*step_(?P<step>\d+)\.jsonl?(?:\.gz)?$"),
)
