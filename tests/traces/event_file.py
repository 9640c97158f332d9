"""A TensorBoard event file, written by the published layout of records and protocol buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path


def checksum(data: bytes) -> int:
    """Return the masked CRC-32C of TFRecord, by the table of its definition."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    """Return a number of a protocol buffer."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def of_bytes(field: int, data: bytes) -> bytes:
    """Return a field that holds bytes."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def record(data: bytes) -> bytes:
    """Return a record of TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", checksum(length)) + data + struct.pack("<I", checksum(data))


def event(step: int, name: str, value: float, *, tensor: bool) -> bytes:
    """Return an event with one scalar: `simple_value` (TensorFlow 1, torch) or a tensor (TensorFlow 2)."""
    number = struct.pack("<f", value)
    inner = (
        of_bytes(8, varint(1 << 3) + varint(1) + of_bytes(4, number))
        if tensor
        else varint(2 << 3 | 5) + number
    )
    summary = of_bytes(1, of_bytes(1, name.encode()) + inner)
    return (
        varint(1 << 3 | 1) + struct.pack("<d", 1.7e9) + varint(2 << 3) + varint(step) + of_bytes(5, summary)
    )


def write_events(path: Path, scalars: Iterable[tuple[int, str, float]], *, tensor: bool = False) -> Path:
    """Write an event file of (step, name, value)."""
    first = varint(1 << 3 | 1) + struct.pack("<d", 1.7e9) + of_bytes(3, b"brain.Event:2")
    events = (event(step, name, value, tensor=tensor) for step, name, value in scalars)
    path.write_bytes(record(first) + b"".join(record(one) for one in events))
    return path
