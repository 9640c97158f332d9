"""Evidence records: one JSON file a claim, with its figures and all that is needed to measure it again."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from tlt.traces.common.intervals import Estimate
from tlt.traces.runs.records import lost_a_worker
from tlt.traces.runs.runfolder import read_struct
from tlt.version import VERSION
from tltsched.errors import InputError

PROJECT = Path(__file__).parents[1]
HERE = PROJECT / "evidence" / "records"
RUNS = PROJECT / "evidence" / "runs"
PICTURES = PROJECT / "docs" / "pictures"
LIBRARIES = ("numpy", "scipy", "simpy", "pandas", "msgspec")
OTHERS = "*"  # in `unit`: every figure that is not named there

Figure = float | tuple[float, float, float]  # a value, or a value with both ends of its 95 % interval


class Earlier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the same claim gave when it was measured before; units are those of the claim."""

    date: datetime.date
    value: dict[str, Figure]
    met: bool | None
    other: str = ""  # what was otherwise than now, if anything


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One claim with its figures. The page of cards is made from these (evidence.tables)."""

    id: str  # the file's name without .json
    claim: str
    value: dict[str, Figure]
    unit: dict[str, str]  # by figure, or OTHERS
    target: str  # in words: what was aimed at
    met: bool | None  # None: nothing was aimed at
    how: str  # measured, published, modelled or assumed, and by what method
    measured_on: str  # the accelerator or processor that the figures speak about
    command: str
    device: str  # the processor that computed the record
    versions: dict[str, str]
    date: datetime.date
    raw: str | None = None  # file beside this one that holds the raw points
    earlier: tuple[Earlier, ...] = ()  # every measurement that this one follows, the first first

    def __post_init__(self) -> None:
        unknown = set(self.unit) - set(self.value) - {OTHERS}
        missing = set() if OTHERS in self.unit else set(self.value) - set(self.unit)
        if unknown or missing:
            got = ", ".join(sorted(unknown | missing))
            raise InputError("unit", got, "a unit for each figure", f"name it, or give `{OTHERS}`")

    def unit_of(self, figure: str) -> str:
        """Return the unit of a figure of `value`."""
        return self.unit[figure] if figure in self.unit else self.unit[OTHERS]


def load_all(folder: Path) -> dict[str, Evidence]:
    """Read every *.json of a folder, by id in order of id.

    Raises InputError if a file is malformed, its id is not its name, or its raw file is missing.
    """
    records = {}
    for path in sorted(folder.glob("*.json")):
        record = read_struct(path, Evidence)
        if record.id != path.stem:
            raise InputError(f"id in {path}", record.id, path.stem, "name the file after the id")
        if record.raw is not None and not (
            Path(record.raw).name == record.raw and (folder / record.raw).is_file()
        ):
            raise InputError(f"raw in {path}", record.raw, "the name of a file beside it", "add the file")
        records[record.id] = record
    return records


def refuse_losses(runs: Iterable[Path]) -> None:
    """Raise InputError if a run folder is of a run that lost a worker: the others did its work as well."""
    for run in runs:
        if lost_a_worker(run):
            allowed, fix = (
                "runs whose workers lived to the end",
                "see warnings in summary.json; measure again",
            )
            raise InputError("run folder", f"{run}, which lost a worker", allowed, fix)


def device() -> str:
    """Return the processor and the Python that measured."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


def write(claim_id: str, *, timed: bool = False, **facts: Any) -> None:
    """Write one record; what every record shares is filled in here.

    timed: the figures are timed anew by each call, so that those of the record it replaces are kept in it.
    """
    path = HERE / f"{claim_id}.json"
    before = read_struct(path, Evidence) if path.is_file() else None
    earlier = before.earlier if before else ()
    if before and timed and before.value != facts["value"]:
        earlier += (Earlier(date=before.date, value=before.value, met=before.met),)
    record = Evidence(
        earlier=earlier,
        id=claim_id,
        command=facts.pop("command", f"python -m evidence.measure {claim_id}"),
        device=device(),
        versions=facts.pop("versions", None)
        or {"tlt-sim": VERSION} | {name: version(name) for name in LIBRARIES},
        date=datetime.datetime.now(datetime.UTC).date(),
        **facts,
    )
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=2)
    path.write_bytes(encoded + b"\n")
    met = {True: "met", False: "not met", None: "no target"}[record.met]
    print(f"{claim_id}: {record.value} ({met})", flush=True)


def value_of(figure: Figure) -> float:
    """Return a figure without its interval."""
    return figure[0] if isinstance(figure, tuple) else figure


def figure(estimate: Estimate) -> Figure:
    """Return an estimate as a figure of a record, with its interval if it has one."""
    if estimate.interval is None:
        return round(estimate.value, 3)
    low, high = estimate.interval
    return round(estimate.value, 3), round(low, 3), round(high, 3)


def write_raw(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Write raw points beside the records, a line each, and return the file's name."""
    (HERE / name).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return name


def tlt(*arguments: str) -> None:
    """Run a command of the project."""
    subprocess.run([sys.executable, "-m", "tlt", *arguments], check=True, cwd=PROJECT)
