"""The recorded lengths that come with the package, and the one lookup of a name or a file.

Percentiles, counts and licences of the files are in data/NOTICE.md.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.lengths.files import is_trace_file, length_histogram, read_trace
from tlt.traces.lengths.histogram import LengthHistogram, from_lengths, histogram_of
from tlt.traces.lengths.schema import Origin, Trace
from tlt.traces.lengths.validate import to_trace
from tltsched.errors import InputError

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Shipped:
    """One recorded file. `columns` renames its columns to those of a trace; None marks a histogram file."""

    file: str
    origin: Origin
    columns: dict[str, str] | None = None


def _servegen(who: str) -> Origin:
    return Origin(
        source=f"alibaba/ServeGen, DeepSeek-R1 production traffic, {who}",
        kind="serving",
        model="DeepSeek-R1",
        max_response_tokens=32_768,
        licence="Apache-2.0",
        note="Windows that start at 0, 6, 12 and 18 h, summed; no prompts, no order, no training step.",
    )


SHIPPED: dict[str, Shipped] = {
    "r1-client35": Shipped("servegen_r1_client35_output_hist.csv.gz", _servegen("client 35")),
    "r1-client66": Shipped("servegen_r1_client66_output_hist.csv.gz", _servegen("client 66")),
    "r1-all": Shipped("servegen_r1_output_hist.csv.gz", _servegen("all 73 clients")),
    "mooncake-conversation": Shipped(
        "mooncake_conversation_trace_lens.csv.gz",
        Origin(
            source="kvcache-ai/Mooncake, FAST'25 conversation trace",
            kind="serving",
            model="not stated (chat service of Kimi)",
            max_response_tokens=2_000,
            licence="Apache-2.0",
            note="Cap inferred: 30 responses end at exactly 2,000 tokens, 2 at each length just below.",
        ),
        {"timestamp_ms": "arrived_s", "input_length": "prompt_tokens", "output_length": "response_tokens"},
    ),
    "azure-conversation": Shipped(
        "azure2023_conv.csv.gz",
        Origin(
            source="Azure/AzurePublicDataset, LLM inference trace 2023, conversation",
            kind="serving",
            max_response_tokens=1_000,
            licence="CC-BY-4.0",
            note="Cap inferred: 11 responses end at exactly 1,000 tokens, 2 to 4 at lengths just below.",
        ),
        {"arrived_at_s": "arrived_s", "input_tokens": "prompt_tokens", "output_tokens": "response_tokens"},
    ),
}


def _shipped_histogram(shipped: Shipped) -> LengthHistogram:
    totals = pd.read_csv(DATA / shipped.file).groupby("output_tokens")["count"].sum().sort_index()
    return LengthHistogram(
        totals.index.to_numpy(np.int64),
        totals.to_numpy(np.int64),
        shipped.origin.max_response_tokens,
        shipped.origin,
    )


def _shipped_trace(shipped: Shipped, columns: dict[str, str]) -> Trace:
    raw = pd.read_csv(DATA / shipped.file).rename(columns=columns)
    if "timestamp_ms" in columns:
        raw["arrived_s"] /= 1000.0
    return to_trace(raw, shipped.origin)


def trace_path(name_or_path: str) -> Path:
    """Return the path of a trace file; raises InputError if it is neither that nor a shipped name."""
    path = Path(name_or_path)
    if path.exists() or is_trace_file(path):
        return path  # a file that is missing or of another type gets its own error on opening
    near = difflib.get_close_matches(name_or_path, SHIPPED, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "use one of these names or the path of a trace file"
    raise InputError("trace", name_or_path, f"{', '.join(SHIPPED)} or a file", hint)


def load(name_or_path: str) -> LengthHistogram | Trace:
    """Return the shipped data of that name, else the trace file at that path.

    The DeepSeek-R1 data are histograms; all else is a trace. Raises InputError.
    """
    shipped = SHIPPED.get(name_or_path)
    if shipped is None:
        return read_trace(trace_path(name_or_path))
    if shipped.columns is None:
        return _shipped_histogram(shipped)
    return _shipped_trace(shipped, shipped.columns)


def load_histogram(name_or_path: str) -> LengthHistogram:
    """Return the response lengths of shipped data or of a trace file, the latter in bounded memory."""
    if name_or_path not in SHIPPED:
        return length_histogram(trace_path(name_or_path))
    loaded = load(name_or_path)
    return loaded if isinstance(loaded, LengthHistogram) else histogram_of(loaded)


def load_trace(name_or_path: str) -> Trace:
    """Return shipped data or a trace file as rows; raises InputError for data that are a histogram only."""
    loaded = load(name_or_path)
    if isinstance(loaded, Trace):
        return loaded
    rows = [name for name, shipped in SHIPPED.items() if shipped.columns is not None]
    raise InputError(
        "trace",
        name_or_path,
        f"{', '.join(rows)} or a file",
        "this one is a histogram without rows: generate rows from it (tlt trace sample)",
    )


def load_prompt_histogram(name_or_path: str) -> LengthHistogram:
    """Return the prompt lengths of a trace; raises InputError if it does not know them."""
    trace = load_trace(name_or_path)
    tokens = trace.rows["prompt_tokens"].to_numpy()
    if not tokens.min():
        raise InputError(
            "prompt_tokens",
            0,
            "a trace that knows all prompt lengths",
            f"use another trace than {name_or_path}",
        )
    origin = msgspec.structs.replace(trace.origin, max_response_tokens=None)
    return from_lengths(tokens, np.zeros(len(tokens), bool), origin)
