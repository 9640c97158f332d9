"""The records of several schedulers as one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tlt.realrun.driver.step import LiveStep
from tltsched.event_log import Record, encode, read


def numbered(steps: Iterable[LiveStep]) -> Iterator[bytes]:
    """Yield the records of all steps, numbered through."""
    records = (record for step in steps for record in read(step.lines))
    for seq, record in enumerate(records):
        yield encode(Record(record.t_s, seq, record.owner, record.body))


def records_of(steps: Iterable[LiveStep], owner: str) -> list[Record]:
    """Return what is on record of one scheduler."""
    return [record for step in steps for record in read(step.lines) if record.owner == owner]
