"""CSV traces of serving requests: BurstGPT and Azure."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Reader, Response, Skip, Source
from tlt.traces.importers.reading.lines import LINE_BYTES, NO_END, iter_lines
from tlt.traces.importers.reading.values import number_in, whole

FIELD_CHARACTERS = 4096
LOST = "These are requests of a service, not RL rollouts: each is a prompt of its own."
Seconds = Callable[[str], float | None]


def _seconds_of_date(text: str) -> float | None:
    """Return seconds since 1970 of `2023-11-16 18:17:03.9799600`, which has more digits than Python reads."""
    whole_part, _, fraction = text.strip().removesuffix("+00:00").partition(".")
    try:
        at = datetime.strptime(whole_part, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return at + (float(f"0.{fraction}") if fraction.isascii() and fraction.isdigit() else 0.0)


def _seconds_of_nanoseconds(text: str) -> float | None:
    nanoseconds = number_in(text)
    return None if nanoseconds is None else nanoseconds / 1e9


def _reader(time: str, prompt: str, response: str, seconds: Seconds) -> Reader:
    def read(source: Source, options: Options) -> Iterator[Response | Skip]:
        del options
        names: list[str] | None = None
        for line in iter_lines(source.path):
            cells = None if line.too_long else _cells(line.text)
            if cells is None:
                yield Skip(
                    line.number, f"not a line of CSV, or longer than {LINE_BYTES >> 20} MiB", line.text[:400]
                )
            elif names is None:
                names = [cell.strip() for cell in cells]
            elif not line.ended:
                yield Skip(line.number, NO_END, line.text[:400])
            elif len(cells) != len(names):
                yield Skip(line.number, "another number of cells than the header", line.text[:400])
            else:
                row = dict(zip(names, cells, strict=True))
                tokens, before = (whole(number_in(row.get(name, ""))) for name in (response, prompt))
                if tokens is None or before is None:
                    yield Skip(line.number, f"{prompt} or {response} is no whole number", line.text[:400])
                else:
                    at = seconds(row.get(time, ""))
                    yield Response(line.number, line.number, tokens, before, sample=0, arrived_s=at)

    return read


def _cells(text: bytes) -> list[str] | None:
    try:
        return next(csv.reader([text.decode("utf-8", "backslashreplace")]), None)
    except (csv.Error, StopIteration):
        return None


def _detect(*columns: str) -> Callable[[Head], str]:
    def detect(head: Head) -> str:
        names = [name.strip() for name in head.header.split(",")]
        missing = [name for name in columns if name not in names]
        return f"no column {', '.join(missing)} in its first line" if missing else ""

    return detect


BURSTGPT = Importer(
    name="burstgpt",
    framework="BurstGPT",
    file="any .csv",
    written_by="published with the BurstGPT traces",
    kind="serving",
    lengths="exact",
    lost=(LOST, "Failed requests have a response of 0 tokens and are left out."),
    signs=("Timestamp", "Request tokens", "Response tokens", "Total tokens", "Log Type"),
    detect=_detect("Timestamp", "Request tokens", "Response tokens"),
    read=_reader("Timestamp", "Request tokens", "Response tokens", number_in),
    file_name=re.compile(r"\.csv(?:\.gz)?$"),
)
AZURE = Importer(
    name="azure",
    framework="Azure",
    file="any .csv",
    written_by="published with the Azure LLM inference traces",
    kind="serving",
    lengths="exact",
    lost=(LOST, "Which responses were cut is not written."),
    signs=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    detect=_detect("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    read=_reader("TIMESTAMP", "ContextTokens", "GeneratedTokens", _seconds_of_date),
    file_name=re.compile(r"\.csv(?:\.gz)?$"),
)
SPLITWISE = Importer(
    name="splitwise",
    framework="Splitwise",
    file="any .csv",
    written_by="traces of splitwise-sim (generate_trace.py)",
    kind="serving",
    lengths="exact",
    lost=(LOST, "Which responses were cut is not written."),
    signs=("arrival_timestamp", "prompt_size", "token_size", "request_type"),
    detect=_detect("arrival_timestamp", "prompt_size", "token_size"),
    read=_reader("arrival_timestamp", "prompt_size", "token_size", number_in),
    file_name=re.compile(r"\.csv(?:\.gz)?$"),
)
SERVING_SIM = Importer(
    name="llm-serving-sim-csv",
    framework="LLMServingSim",
    file="any .csv",
    written_by="workloads of earlier versions of LLMServingSim",
    kind="serving",
    lengths="exact",
    lost=(LOST, "Which responses were cut is not written."),
    signs=("input_toks", "output_toks", "arrival_time_ns"),
    detect=_detect("input_toks", "output_toks"),
    read=_reader("arrival_time_ns", "input_toks", "output_toks", _seconds_of_nanoseconds),
    file_name=re.compile(r"\.csv(?:\.gz)?$"),
)
