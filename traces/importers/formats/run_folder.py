"""This project's own run folders: responses.parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Response, Skip, Source
from tlt.traces.importers.reading.lines import BrokenFileError
from tlt.traces.lengths.read_blocks import iter_blocks
from tlt.traces.lengths.run_as_trace import is_responses


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    del options
    if not Head(source.path).columns or source.path.suffix != ".parquet":
        raise BrokenFileError(
            f"contents of {source.name}", "no parquet", "responses.parquet", "give a run folder"
        )
    for place, block in iter_blocks(source.path):
        names = ("step", "prompt_id", "prompt_tokens", "response_tokens", "truncated")
        columns = [block[name].tolist() for name in names]
        for index, (step, group, prompt, tokens, truncated) in enumerate(zip(*columns, strict=True)):
            yield Response(place.first + index, group, tokens, prompt, truncated, step)


def _detect(head: Head) -> str:
    if not head.columns:
        return "no parquet file"
    return "" if is_responses(head.columns) else "other columns than responses.parquet"


IMPORTER = Importer(
    name="run-folder",
    framework="tlt",
    file="responses.parquet",
    written_by="tlt sim run, tlt real replay, tlt real train",
    kind="unstated",
    lengths="exact",
    lost=("Times of requests and workers stay in the run folder.",),
    detect=_detect,
    read=_read,
    file_name=re.compile(r"(?:^|/)responses\.parquet$"),
)
