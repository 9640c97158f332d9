"""Writes evidence records: what the measuring scripts of this folder share."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from evidence.tables import Evidence

PROJECT = Path(__file__).parents[1]
HERE = PROJECT / "evidence" / "records"
PICTURES = PROJECT / "docs" / "pictures"
LIBRARIES = ("tlt-sim", "numpy", "scipy", "simpy", "pandas", "msgspec")


def device() -> str:
    """Return the processor and the Python that measured."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


def write(claim_id: str, **facts: Any) -> None:
    """Write one record; what every record shares is filled in here."""
    record = Evidence(
        id=claim_id,
        command=facts.pop("command", f"python -m evidence.measure {claim_id}"),
        device=facts.pop("device", device()),
        versions={name: version(name) for name in LIBRARIES},
        date=datetime.datetime.now(datetime.UTC).date(),
        **facts,
    )
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=2)
    (HERE / f"{claim_id}.json").write_bytes(encoded + b"\n")
    print(f"{claim_id}: {record.value} {record.unit} ({'met' if record.met else 'not met'})", flush=True)


def write_raw(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Write raw points beside the records, a line each, and return the file's name."""
    (HERE / name).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return name
