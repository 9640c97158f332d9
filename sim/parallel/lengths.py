"""Lengths that many simulations share: calls carry a handle, and each process reads them once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa

from tlt.traces.lengths.schema import Origin, Trace

MOST_KEPT = 8  # traces that a process keeps

_kept: OrderedDict[str, Trace] = OrderedDict()


class Lengths(msgspec.Struct, frozen=True):
    """A trace, or where it is: a path, or whatever an executor reads it from."""

    key: str
    where: Any
    read: Callable[[Any], bytes] | None = None  # None: `where` is the trace itself

    def get(self) -> Trace:
        """Return the trace."""
        if self.read is None:
            assert isinstance(self.where, Trace)
            return self.where
        if self.key not in _kept:
            _kept[self.key] = decoded(self.read(self.where))
            if len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)
        _kept.move_to_end(self.key)
        return _kept[self.key]


def encoded(trace: Trace) -> bytes:
    """Return a trace as bytes of Arrow."""
    table = pa.Table.from_pandas(trace.rows)
    about = {**(table.schema.metadata or {}), b"origin": msgspec.json.encode(trace.origin)}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.with_metadata(about)) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def decoded(data: bytes) -> Trace:
    """Return the trace of `encoded`, index and types of columns included."""
    with pa.ipc.open_stream(data) as stream:
        table = stream.read_all()
    origin = msgspec.json.decode(table.schema.metadata[b"origin"], type=Origin)
    rows: pd.DataFrame = table.to_pandas()
    return Trace(rows, origin)


def key_of(data: bytes) -> str:
    """Return what tells traces apart."""
    return hashlib.sha256(data).hexdigest()
