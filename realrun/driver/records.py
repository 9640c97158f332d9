"""The records of several schedulers as one file."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from tlt.realrun.driver.step import LiveStep
from tltsched.commands import Command
from tltsched.event_log import Record, encode, read


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


def numbered(steps: Iterable[LiveStep]) -> Iterator[bytes]:
    """Yield the records of all steps, numbered through."""
    records = (record for step in steps for record in read(step.lines))
    for seq, record in enumerate(records):
        yield encode(Record(record.t_s, seq, record.owner, record.body))


def records_of(steps: Iterable[LiveStep], owner: str) -> list[Record]:
    """Return what is on record of one scheduler."""
    return [record for step in steps for record in read(step.lines) if record.owner == owner]
