"""Scalars of TensorBoard event files, read without TensorFlow.

A file is a row of records (length, its checksum, bytes, their checksum); a record is a protocol buffer
`Event` with a step and a summary, whose values are a name and a number, as `simple_value` or as a tensor of
one float. Names and numbers of the fields: tensorflow/core/util/event.proto, framework/summary.proto and
tensor.proto. Only the checksum of lengths is checked: it tells a cut or foreign file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tlt.traces.importers.reading.lines import READ_ERRORS, Bounded, BrokenFileError, broken, opened, shown

RECORD_BYTES = 64 << 20  # pictures and histograms are longer than scalars
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Field = tuple[int, int, int | bytes]
Scalar = tuple[int, str, float]  # step, name, value
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def is_event_file(start: bytes) -> bool:
    """Return whether bytes begin as an event file does: a record whose length has its checksum."""
    if len(start) < 12:
        return False
    length, checked = struct.unpack_from("<QI", start)
    return 0 < length < RECORD_BYTES and checked == _masked(start[:8]) and b"brain.Event" in start[:64]


def iter_scalars(path: Path) -> Iterator[Scalar]:
    """Yield the scalars of a file in its order; a record at the end that is not whole yet is left out.

    Raises InputError if the file is none, or breaks off otherwise.
    """
    file = opened(path)
    try:
        for record in _records(file, path):
            try:
                yield from _scalars(record)
            except (IndexError, struct.error, ValueError):
                continue  # a value of another kind, or broken: the next record is found by its length
    except READ_ERRORS as error:
        raise broken(path, error) from None
    finally:
        file.close()


def _records(file: Bounded, path: Path) -> Iterator[bytes]:
    while True:
        head = file.read(12)
        if len(head) < 12:
            return
        length, checked = struct.unpack("<QI", head)
        if checked != _masked(head[:8]) or length > RECORD_BYTES:
            what = "a record whose length is not what its checksum says"
            raise BrokenFileError(f"contents of {shown(path)}", what, "an event file", "copy it again")
        record = file.read(length + 4)
        if len(record) < length + 4:
            return
        yield record[:length]


def _scalars(event: bytes) -> Iterator[Scalar]:
    step, summaries = 0, []
    for number, kind, value in _fields(event):
        if number == 2 and kind == VARINT:
            step = int(value)
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, _, value in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                name, found = _named(value)
                if name and found is not None and 0 <= step < 1 << 31:
                    yield step, name, found


def _named(value: bytes) -> tuple[str, float | None]:
    name, found = "", None
    for number, kind, inner in _fields(value):
        if number == 1 and isinstance(inner, bytes):
            name = inner[:300].decode("utf-8", "replace")
        elif number == 2 and kind == FIXED32 and isinstance(inner, bytes):
            found = struct.unpack("<f", inner)[0]
        elif number == 8 and isinstance(inner, bytes):
            found = _tensor(inner)
    return name, found


def _tensor(tensor: bytes) -> float | None:
    """Return the number of a tensor of one float or double; None of any other."""
    kinds = {1: "<f", 2: "<d"}
    dtype, content, listed = 0, b"", None
    for number, kind, value in _fields(tensor):
        if number == 1 and kind == VARINT:
            dtype = int(value)
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in (5, 6) and isinstance(value, bytes):  # float_val, double_val, packed or not
            listed = value
    found = content or listed
    form = kinds.get(dtype)
    if form is None or found is None or len(found) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, found)[0])


def _fields(message: bytes) -> Iterator[Field]:
    """Yield (number, kind, value) of a protocol buffer message; raises IndexError or ValueError if broken."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = _varint(message, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ValueError("a kind of field that there is not")
        if at + size > len(message):
            raise IndexError("a field beyond the end")
        yield number, kind, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")


def _masked(data: bytes) -> int:
    """Return the masked CRC-32C of `data`, as TFRecord writes it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
