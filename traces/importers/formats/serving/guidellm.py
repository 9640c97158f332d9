"""GuideLLM: benchmarks.json, one document of benchmarks with their requests, successful and not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Response, Skip, Source
from tlt.traces.importers.reading.records import documents
from tlt.traces.importers.reading.values import number, whole


class Results(msgspec.Struct):
    """The field that is read."""

    benchmarks: Any = None


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    del options
    step = 0
    for found in documents(Results, source):
        if isinstance(found, Skip):
            yield found
            continue
        place, results = found
        for benchmark in results.benchmarks if isinstance(results.benchmarks, list) else ():
            requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
            if isinstance(requests, dict):
                yield from _requests(requests, place, step)
                step += 1


def _requests(requests: dict[str, Any], place: int, step: int) -> Iterator[Response | Skip]:
    for kind in ("incomplete", "errored"):
        for _ in _listed(requests, kind):
            yield Skip(place, f"the request is {kind}", f"benchmark {step + 1}".encode())
    for index, request in enumerate(_listed(requests, "successful")):
        tokens = _tokens(request, "output")
        if tokens is None:
            told = f"request {index + 1} of benchmark {step + 1}".encode()
            yield Skip(place, "neither output_metrics.text_tokens nor output_tokens", told)
            continue
        begun = (number(request.get(name)) for name in ("request_start_time", "start_time"))
        yield Response(
            line=place,
            group=(step << 32) + index,
            response_tokens=tokens,
            prompt_tokens=_tokens(request, "prompt") or _tokens(request, "input") or 0,
            step=step,
            sample=0,
            arrived_s=next((value for value in begun if value is not None and value > 0), None),
        )


def _listed(requests: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    found = requests.get(kind)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _tokens(request: dict[str, Any], side: str) -> int | None:
    metrics = request.get(f"{side}_metrics")
    of_metrics = whole(metrics.get("text_tokens")) if isinstance(metrics, dict) else None
    return whole(request.get(f"{side}_tokens")) if of_metrics is None else of_metrics


def _detect(head: Head) -> str:
    missing = head.lacks("benchmarks")
    if missing:
        return missing
    text = bytes(head.fields["benchmarks"])
    return "" if b'"requests"' in text else "benchmarks without requests: only their statistics were saved"


IMPORTER = Importer(
    name="guidellm",
    framework="GuideLLM",
    file="benchmarks.json",
    written_by="guidellm benchmark --output-path benchmarks.json (up to 64 MiB)",
    kind="serving",
    lengths="exact",
    lost=(
        "These are requests of a benchmark, not RL rollouts: each is a prompt of its own, a benchmark is a "
        "step.",
        "Which responses were cut is not written: with --cap those that reach it are marked.",
        "With --sample-requests only so many of the requests are in the file.",
    ),
    signs=("benchmarks", "args", "metadata"),
    detect=_detect,
    read=_read,
    file_name=re.compile(r"\.json(?:\.gz)?$"),
)
