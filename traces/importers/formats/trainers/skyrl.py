"""SkyRL: dumped_evals/global_step_{N}_evals/{data_source}.jsonl, texts with a stop reason."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.items import Response, Source
from tlt.traces.importers.reading.records import need, text_reader
from tlt.traces.importers.reading.texts import LOST_BY_TOKENISING, WAITS_NOT_WRITTEN, TextResponse
from tlt.traces.importers.reading.values import encoded, single_text, text_of, total


class Record(msgspec.Struct):
    """The fields that are read."""

    input_prompt: Any = None
    output_response: Any = None
    stop_reason: Any = None
    score: Any = None


def _row(record: Record, line: int, source: Source) -> TextResponse:
    prompt = need("input_prompt", text_of(record.input_prompt))
    reason = single_text(record.stop_reason)
    response = Response(
        line,
        encoded(record.input_prompt),
        0,
        truncated=reason == "length",
        end="stop" if reason == "stop" else "not_known",
        step=source.step,
        reward=total(record.score),
    )
    return TextResponse(response, prompt, need("output_response", text_of(record.output_response)))


IMPORTER = Importer(
    name="skyrl-eval",
    framework="SkyRL",
    file="global_step_{N}_evals/{data_source}.jsonl",
    written_by="trainer.dump_eval_results=true (the default)",
    kind="rollout",
    lengths="re-tokenised",
    lost=(
        *LOST_BY_TOKENISING,
        "These are evaluation samples: their number and sampling settings are not those of training.",
        "Responses with the same input text are one group.",
    ),
    signs=("input_prompt", "output_response", "stop_reason", "env_class", "env_extras"),
    detect=lambda head: head.lacks("input_prompt", "output_response"),
    read=text_reader("skyrl-eval", Record, _row),
    waits=WAITS_NOT_WRITTEN,
    file_name=re.compile(
        r"(?:^|/)(?:global_step_(?P<step>\d+)_evals/)?(?!aggregated_results)[^/]+\.jsonl(?:\.gz)?$"
    ),
)
