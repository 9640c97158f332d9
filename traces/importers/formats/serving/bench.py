"""Results of serving benchmarks, a JSON object a run: `vllm bench serve --save-detailed` and SGLang's."""

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

VLLM_ONLY = ("model_id", "tokenizer_id", "num_prompts", "start_times", "burstiness")
LOST = (
    "These are requests of a benchmark, not RL rollouts: each is a prompt of its own, a run is a step.",
    "Which responses were cut is not written: with --cap those that reach it are marked.",
)


class Run(msgspec.Struct):
    """The arrays that are read: an element a request."""

    input_lens: Any = None
    output_lens: Any = None
    start_times: Any = None
    errors: Any = None


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    del options
    step = 0
    for found in documents(Run, source):
        if isinstance(found, Skip):
            yield found
            continue
        place, run = found
        if not isinstance(run.output_lens, list):
            yield Skip(place, "no list output_lens: the run was saved without details")
            continue
        yield from _requests(run, run.output_lens, place, step)
        step += 1


def _requests(run: Run, lengths: list[Any], place: int, step: int) -> Iterator[Response | Skip]:
    prompts, starts, errors = (
        column if isinstance(column, list) and len(column) == len(lengths) else None
        for column in (run.input_lens, run.start_times, run.errors)
    )
    began = min((s for s in map(number, starts or ()) if s is not None), default=0.0)
    for index, length in enumerate(lengths):
        told = f"request {index + 1} of run {place}".encode()
        if errors and errors[index]:
            yield Skip(
                place,
                "the request failed",
                told + b": " + str(errors[index])[:300].encode("utf-8", "replace"),
            )
            continue
        tokens = whole(length)
        if tokens is None:
            yield Skip(place, "an element of output_lens is no whole number", told)
            continue
        start = number(starts[index]) if starts else None
        yield Response(
            line=place,
            group=(step << 32) + index,
            response_tokens=tokens,
            prompt_tokens=(whole(prompts[index]) or 0) if prompts else 0,
            step=step,
            sample=0,
            arrived_s=None if start is None else start - began,
        )


def _is_vllm(head: Head) -> bool:
    return any(name in head.fields for name in VLLM_ONLY)


def _no_arrays(head: Head) -> str:
    missing = head.lacks("output_lens", "input_lens")
    if missing and "total_output_tokens" in head.fields:
        return f"{missing}: saved without details (--save-detailed, or --output-details)"
    return missing


def _detect_vllm(head: Head) -> str:
    return _no_arrays(head) or ("" if _is_vllm(head) else f"none of the fields {', '.join(VLLM_ONLY)}")


def _detect_sglang(head: Head) -> str:
    return _no_arrays(head) or ("it has fields of vllm-bench" if _is_vllm(head) else "")


VLLM = Importer(
    name="vllm-bench",
    framework="vLLM",
    file="any .json",
    written_by="vllm bench serve --save-result --save-detailed",
    kind="serving",
    lengths="exact",
    lost=LOST,
    signs=("output_lens", "input_lens", "total_output_tokens", "request_throughput", "model_id"),
    detect=_detect_vllm,
    read=_read,
    file_name=re.compile(r"\.jsonl?(?:\.gz)?$"),
)
SGLANG = Importer(
    name="sglang-bench",
    framework="SGLang",
    file="any .jsonl",
    written_by="python -m sglang.bench_serving --output-file F --output-details",
    kind="serving",
    lengths="exact",
    lost=(*LOST, "No arrival times are written."),
    signs=("output_lens", "input_lens", "total_output_tokens", "request_throughput", "dataset_name"),
    detect=_detect_sglang,
    read=_read,
    file_name=re.compile(r"\.jsonl?(?:\.gz)?$"),
)
