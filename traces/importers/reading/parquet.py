"""Rows of a parquet file, block by block, with bounds on what its metadata may promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tlt.traces.importers.reading.lines import BrokenFileError, broken, shown

BLOCK_ROWS = 256  # of texts: about 100 MB at 100,000 tokens a response
GROUP_BYTES = 4 << 30  # of one row group, decompressed
PARQUET_ERRORS = (OSError, pa.ArrowException, MemoryError, ValueError, OverflowError)


def iter_rows(path: Path, names: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row number from 1, values by name) of the columns `names` that the file has.

    Raises InputError if the file cannot be read on.
    """
    try:
        with pq.ParquetFile(path, pre_buffer=False, memory_map=False) as file:
            _check(file.metadata, path)
            wanted = [name for name in names if name in file.schema_arrow.names]
            row = 1
            for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=wanted, use_threads=False):
                for values in batch.to_pylist():
                    yield row, values
                    row += 1
    except PARQUET_ERRORS as error:
        if isinstance(error, BrokenFileError):
            raise
        raise broken(path, error) from None


def number_columns(path: Path) -> tuple[str, ...]:
    """Return the names of columns of numbers; raises InputError if the file cannot be read."""
    try:
        schema = pq.read_schema(path)
    except PARQUET_ERRORS as error:
        raise broken(path, error) from None
    numbers = (pa.types.is_floating, pa.types.is_integer)
    return tuple(field.name for field in schema if any(kind(field.type) for kind in numbers))


def _check(metadata: pq.FileMetaData, path: Path) -> None:
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if size > GROUP_BYTES:
            allowed = f"at most {GROUP_BYTES >> 30} GiB"
            raise BrokenFileError(
                f"size of row group {group} of {shown(path)}", size, allowed, "write smaller row groups"
            )
