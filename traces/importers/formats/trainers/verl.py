"""verl: rollout_data_dir/{global_step}.jsonl, a line a sample, as text."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.items import Response, Source, UnusableError
from tlt.traces.importers.reading.records import need, text_reader
from tlt.traces.importers.reading.texts import (
    LOST_BY_TOKENISING,
    NOT_KNOWN_CUT,
    TOOLS,
    WAITS_NOT_WRITTEN,
    TextResponse,
)
from tlt.traces.importers.reading.values import encoded, number, text_of, whole

SINGLE_TURN = 2  # messages: the question and the answer


class Record(msgspec.Struct):
    """The fields that are read."""

    input: Any = None
    output: Any = None
    step: Any = None
    num_turns: Any = None
    score: Any = None


def _row(record: Record, line: int, source: Source) -> TextResponse:
    prompt, output = need("input", text_of(record.input)), need("output", text_of(record.output))
    turns = whole(record.num_turns) or SINGLE_TURN
    if turns > SINGLE_TURN and not TOOLS.search(output):
        raise UnusableError("several turns in output, and nothing that tells what the model wrote in them")
    step = whole(record.step)
    response = Response(
        line,
        encoded(record.input),
        0,
        step=source.step if step is None else step,
        reward=number(record.score),
    )
    return TextResponse(response, prompt, output)


IMPORTER = Importer(
    name="verl",
    framework="verl",
    file="{global_step}.jsonl",
    written_by="trainer.rollout_data_dir=DIR",
    kind="rollout",
    lengths="re-tokenised",
    lost=(
        *LOST_BY_TOKENISING,
        NOT_KNOWN_CUT,
        "No identity of a prompt is written: responses with the same input text are one group.",
    ),
    signs=("input", "output", "step", "score", "gts"),
    detect=lambda head: head.lacks("input", "output", "step", "score"),
    read=text_reader("verl", Record, _row),
    waits=WAITS_NOT_WRITTEN,
    file_name=re.compile(r"(?:^|/)(?P<step>\d+)\.jsonl(?:\.gz)?$"),
)
