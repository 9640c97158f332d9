"""The record of a run, records.jsonl, as the schedulers know it today, whichever version wrote it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

from tlt.traces.common.manifest import verify
from tlt.traces.common.migrate import upgraded_line
from tltsched.commands import Command
from tltsched.errors import InputError
from tltsched.event_log import Record, encode, read

RECORDS = "records.jsonl"
_LOST = b'"kind":"worker_lost"'


def record_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a record as they are written today; raises InputError if the file is missing."""
    if not path.is_file():
        raise InputError(
            "run folder", str(path.parent), f"a folder with {path.name}", "run it with records on"
        )
    verify(path)
    with path.open("rb") as lines:
        yield from map(upgraded_line, lines)


def read_records(path: Path) -> Iterator[Record]:
    """Yield the events and commands of a record, in order; raises InputError for a line that is none."""
    return read(record_lines(path))


def lost_a_worker(folder: Path) -> bool:
    """Return whether a worker of a run was lost on the way, as its record says; False without a record."""
    path = folder / RECORDS
    return path.is_file() and _LOST in path.read_bytes()


def in_order(owners: Sequence[Sequence[bytes]]) -> tuple[bytes, ...]:
    """Merge the lines of several owners by time; the commands of an event stay right behind it."""
    merged = heapq.merge(*(_blocks(lines) for lines in owners), key=lambda block: block[0].t_s)
    return tuple(encode(record) for block in merged for record in block)


def _blocks(lines: Sequence[bytes]) -> Iterator[list[Record]]:
    """Yield each event with its commands."""
    block: list[Record] = []
    for record in read(lines):
        if block and not isinstance(record.body, Command):
            yield block
            block = []
        block.append(record)
    if block:
        yield block
