"""Trace files: parquet, CSV and JSONL, in and out.

The ending of the name says the format. Parquet carries the origin in its metadata; the others carry it, with
the number of rows, in a file beside them: NAME.origin.json.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from tlt.traces.common.migrate import decode
from tlt.traces.lengths.histogram import LengthHistogram
from tlt.traces.lengths.read_blocks import (
    BLOCK_ROWS,
    READ_ERRORS,
    SUFFIXES,
    iter_blocks,
    suffix_of,
    unreadable,
)
from tlt.traces.lengths.run_as_trace import is_responses, origin_of_run
from tlt.traces.lengths.schema import Origin, Trace
from tlt.traces.lengths.validate import at_cap, check_below_cap, check_unique, complete
from tltsched.errors import InputError

ORIGIN_KEY, SESSIONS_KEY = b"tlt_origin", b"tlt_sessions"

FACTS = dict[str, int | None]  # what is stated of sessions, by name
Progress = Callable[[int], None]  # told the rows of each block as it is done


class Sidecar(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What stands beside a CSV or JSONL file. `rows` shows a file that was cut short between two lines.

    Of sessions `rows` counts sessions, and `sessions` holds what is stated of them alone, by name.
    """

    rows: int
    origin: Origin
    sessions: FACTS | None = None


def is_trace_file(path: Path) -> bool:
    """Return whether the name ends as the name of a trace file."""
    return path.name.lower().endswith(SUFFIXES)


def sidecar_path(path: Path) -> Path:
    """Return where the origin of a CSV or JSONL file stands."""
    return path.with_name(path.name + ".origin.json")


def read_origin(path: Path) -> tuple[Origin, int | None]:
    """Return the origin of a trace file and the rows it should have (None: not stated); raises InputError."""
    stated = read_stated(path)
    return (stated.origin, stated.rows) if stated.rows >= 0 else (stated.origin, None)


def read_stated(path: Path) -> Sidecar:
    """Return what is stated of a trace file, in it or beside it; `rows` is -1 where it is not."""
    unstated = Origin(source=path.name, kind="unstated")
    suffix = suffix_of(path)
    try:
        if suffix == ".parquet":
            schema = _schema(path)
            if is_responses(schema.names):
                return Sidecar(rows=-1, origin=origin_of_run(path) or unstated)
            found = schema.metadata or {}
            origin, of_sessions = found.get(ORIGIN_KEY), found.get(SESSIONS_KEY)
            return Sidecar(
                rows=-1,
                origin=unstated if origin is None else decode(origin, Origin),
                sessions=None if of_sessions is None else msgspec.json.decode(of_sessions, type=FACTS),
            )
        beside = sidecar_path(path)
        return decode(beside.read_bytes(), Sidecar) if beside.is_file() else Sidecar(rows=-1, origin=unstated)
    except (msgspec.MsgspecError, OSError) as error:
        raise InputError(
            f"origin of {path.name}", str(error), "source, kind, model and so on", "write the file again"
        ) from None


def read_trace(path: Path, origin: Origin | None = None, progress: Progress | None = None) -> Trace:
    """Return the trace at `path`, all of it in memory. `origin` replaces the one of the file.

    Raises InputError that names file, line or row, column and value.
    """
    stated, rows_stated = _origin_of(path, origin)
    blocks: list[pd.DataFrame] = []
    for place, block in iter_blocks(path):
        check_below_cap(block["response_tokens"].to_numpy(), stated.max_response_tokens, place)
        blocks.append(block)
        if progress:
            progress(len(block))
    rows = pd.concat(blocks, ignore_index=True)
    _check_rows(path, len(rows), rows_stated)
    rows = complete(rows, stated.max_response_tokens)
    check_unique(rows, path.name)
    return Trace(rows, stated)


def length_histogram(
    path: Path, origin: Origin | None = None, progress: Progress | None = None
) -> LengthHistogram:
    """Return the response lengths of the trace at `path`. Memory: one block and the distinct lengths.

    Checks what `read_trace` checks, except repeated (step, prompt_id, sample), which needs all rows at once.
    """
    stated, rows_stated = _origin_of(path, origin)
    values, counts, cut = (np.zeros(0, np.int64) for _ in range(3))
    for place, block in iter_blocks(path):
        lengths = block["response_tokens"].to_numpy()
        check_below_cap(lengths, stated.max_response_tokens, place)
        truncated = (
            block["truncated"].to_numpy()
            if "truncated" in block
            else at_cap(lengths, stated.max_response_tokens)
        )
        new, where, new_counts = np.unique(lengths, return_inverse=True, return_counts=True)
        new_cut = np.bincount(where[truncated], minlength=len(new))
        merged = np.union1d(values, new)
        total, total_cut = np.zeros(len(merged), np.int64), np.zeros(len(merged), np.int64)
        for some, amount, some_cut in ((values, counts, cut), (new, new_counts, new_cut)):
            at = np.searchsorted(merged, some)
            total[at] += amount
            total_cut[at] += some_cut
        values, counts, cut = merged, total, total_cut
        if progress:
            progress(len(block))
    _check_rows(path, int(counts.sum()), rows_stated)
    return LengthHistogram(values, counts, stated.max_response_tokens, stated, cut)


def write_trace(trace: Trace, path: Path, force: bool = False) -> None:
    """Write `trace` to `path`, whole or not at all. An existing file is replaced only with `force`."""
    table = pa.Table.from_pandas(trace.rows, preserve_index=False)
    write_rows(table, Sidecar(rows=len(trace.rows), origin=trace.origin), path, force)


def write_rows(table: pa.Table, beside: Sidecar, path: Path, force: bool) -> None:
    """Write rows in the format of the ending of `path`, and what is stated of them: whole or not at all."""
    suffix = suffix_of(path)
    check_output(path, force)
    part, beside_part = (
        path.with_name(f".{path.name}.{os.getpid()}.{kind}") for kind in ("part", "origin.part")
    )
    try:
        if suffix == ".parquet":
            _write_parquet(table, beside, part)
        else:
            write = _write_csv if suffix.startswith(".csv") else _write_jsonl
            write(table, part, "gzip" if suffix.endswith(".gz") else None)
            beside_part.write_bytes(msgspec.json.format(msgspec.json.encode(beside), indent=2) + b"\n")
            beside_part.replace(sidecar_path(path))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
        beside_part.unlink(missing_ok=True)


def check_output(path: Path, force: bool) -> None:
    """Raise InputError if `path` cannot be written: wrong ending, no such folder, or there already."""
    suffix = suffix_of(path)
    if not path.parent.is_dir():
        raise InputError("folder of the output", str(path.parent), "a folder that exists", "make it first")
    if path.is_dir():
        raise InputError("output", str(path), "a file name", "this is a folder")
    taken = [path] if suffix == ".parquet" else [path, sidecar_path(path)]
    for file in taken:
        if file.exists() and not force:
            raise InputError("output", str(file), "a name that is free", "choose another name or add --force")


def _origin_of(path: Path, origin: Origin | None) -> tuple[Origin, int | None]:
    if not path.is_file():
        raise InputError("trace file", str(path), "a file that exists", "check the path")
    stated, rows = read_origin(path)
    return origin or stated, rows


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except READ_ERRORS as error:
        raise unreadable(path, error) from None


def _check_rows(path: Path, got: int, stated: int | None) -> None:
    if stated is not None and got != stated:
        raise InputError(
            f"rows of {path.name}",
            got,
            f"{stated}, as {sidecar_path(path).name} states",
            "the file was cut short or edited: restore it, or remove the file beside it",
        )


def _write_parquet(table: pa.Table, beside: Sidecar, part: Path) -> None:
    stated = {ORIGIN_KEY: msgspec.json.encode(beside.origin)}
    if beside.sessions is not None:
        stated[SESSIONS_KEY] = msgspec.json.encode(beside.sessions)
    pq.write_table(table.replace_schema_metadata(stated), part, compression="zstd")


def _write_csv(table: pa.Table, part: Path, compression: str | None) -> None:
    with pa.output_stream(str(part), compression=compression) as stream:
        pa_csv.write_csv(table, stream, pa_csv.WriteOptions(quoting_style="none", quoting_header="none"))


def _write_jsonl(table: pa.Table, part: Path, compression: str | None) -> None:
    encoder = msgspec.json.Encoder()
    with pa.output_stream(str(part), compression=compression) as stream:
        for batch in table.to_batches(max_chunksize=BLOCK_ROWS):
            stream.write(encoder.encode_lines(batch.to_pylist()))
