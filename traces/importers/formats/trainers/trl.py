"""TRL GRPOTrainer: completions/completions_{step:05d}.parquet, a row a completion, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Response, Skip, Source
from tlt.traces.importers.reading.parquet import iter_rows, number_columns
from tlt.traces.importers.reading.texts import (
    LOST_BY_TOKENISING,
    NOT_KNOWN_CUT,
    WAITS_NOT_WRITTEN,
    TextResponse,
    needs_tokeniser,
    tokenised,
)
from tlt.traces.importers.reading.values import encoded, message_turns, number, text_of, total, whole

NO_REWARDS = ("step", "advantage")  # numbers of a row that are no function's reward


def _rows(source: Source) -> Iterator[TextResponse | Skip]:
    scores = tuple(name for name in number_columns(source.path) if name not in NO_REWARDS)
    for row, values in iter_rows(source.path, ("step", "prompt", "completion", *scores)):
        prompt, completion = text_of(values.get("prompt")), text_of(values.get("completion"))
        if prompt is None or completion is None:
            lacks = "prompt" if prompt is None else "completion"
            yield Skip(
                row,
                f"{lacks} is missing or neither text nor chat messages",
                str(values)[:400].encode("utf-8", "replace"),
            )
            continue
        step = whole(values.get("step"))
        given = [score for score in (number(values.get(name)) for name in scores) if score is not None]
        response = Response(
            row,
            encoded(values["prompt"]),
            0,
            step=source.step if step is None else step,
            reward=total(given),
        )
        yield TextResponse(response, prompt, completion, message_turns(values["completion"]))


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    if options.tokenise is None:
        raise needs_tokeniser("trl")
    return tokenised(_rows(source), options.tokenise, "trl")


def _detect(head: Head) -> str:
    missing = [name for name in ("prompt", "completion") if name not in head.columns]
    if not head.columns:
        return "no parquet file"
    return f"no column {', '.join(missing)}" if missing else ""


IMPORTER = Importer(
    name="trl",
    framework="TRL",
    file="completions/completions_{step:05d}.parquet",
    written_by="GRPOConfig(log_completions=True)",
    kind="rollout",
    lengths="re-tokenised",
    lost=(
        *LOST_BY_TOKENISING,
        NOT_KNOWN_CUT,
        "Of chat messages the contents are counted, not what the chat template adds.",
        "Responses with the same prompt are one group.",
        "A reward is the sum of those of all functions: their weights are not written.",
    ),
    signs=("prompt", "completion", "step", "advantage"),
    detect=_detect,
    read=_read,
    waits=WAITS_NOT_WRITTEN,
    file_name=re.compile(r"(?:^|/)completions_(?P<step>\d+)\.parquet$"),
)
