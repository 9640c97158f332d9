"""GPUs by name, or by the path of a file with the few figures of a data sheet.

`sheets/*.toml` hold those that ship. An own file is one of their tables, alone:

    name = "My-GPU"
    bf16_teraflops = 500      # dense, a second
    fp8_teraflops = 1000      # leave out what it does not have
    memory_gb = 96
    memory_gb_per_s = 3000
    link_gb_per_s = 400       # to its neighbours, both directions; leave out if not known
    source = "published: the data sheet of ..."
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tlt.traces.catalogue.shape import Products
from tltsched.errors import InputError, unknown_name

SHEETS = Path(__file__).parent / "sheets"
Positive = Annotated[float, Meta(gt=0.0, lt=1e9)]
OWN = ("none of these has its figures: give the path of a file with name, bf16_teraflops, memory_gb, "
       "memory_gb_per_s and source")  # fmt: skip


class GpuSheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of one GPU in the units of data sheets, and where they are from."""

    name: Annotated[str, Meta(min_length=1)]
    bf16_teraflops: Positive  # dense
    memory_gb: Positive
    memory_gb_per_s: Positive
    source: Annotated[str, Meta(min_length=1)]
    fp8_teraflops: Positive | None = None
    fp4_teraflops: Positive | None = None
    link_gb_per_s: Positive | None = None  # both directions together
    also: tuple[str, ...] = ()  # other names
    devices: tuple[str, ...] = ()  # what the names that drivers report contain


class GpuSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Data-sheet figures of one GPU, in units a second and bytes."""

    name: str
    bf16_flops: float  # dense, per second
    memory_bytes_per_s: float
    memory_bytes: float
    source: str
    fp8_flops: float | None = None
    fp4_flops: float | None = None
    link_bytes_per_s: float | None = None  # one direction

    def flops(self, products: Products) -> float:
        """Return the rate of an arithmetic; where the GPU lacks it, weights are widened to the next one."""
        if products == "fp4":
            return self.fp4_flops or self.flops("fp8")
        return self.fp8_flops or self.bf16_flops if products == "fp8" else self.bf16_flops


class _Sheets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    gpus: tuple[GpuSheet, ...]


def _spec(sheet: GpuSheet) -> GpuSpec:
    def scaled(value: float | None, unit: float) -> float | None:
        return None if value is None else value * unit

    return GpuSpec(
        name=sheet.name,
        bf16_flops=sheet.bf16_teraflops * 1e12,
        fp8_flops=scaled(sheet.fp8_teraflops, 1e12),
        fp4_flops=scaled(sheet.fp4_teraflops, 1e12),
        memory_bytes_per_s=sheet.memory_gb_per_s * 1e9,
        memory_bytes=sheet.memory_gb * 1e9,
        link_bytes_per_s=scaled(sheet.link_gb_per_s, 1e9 / 2),
        source=sheet.source,
    )


@cache
def sheets() -> dict[str, GpuSheet]:
    """Return the data sheets that ship, by name."""
    found: dict[str, GpuSheet] = {}
    for file in sorted(SHEETS.glob("*.toml")):
        read = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _Sheets)
        found |= {sheet.name: sheet for sheet in read.gpus}
    return found


def canonical_gpu(given: str) -> str:
    """Return the name under which a GPU ships; what is not known comes back."""
    return next((name for name, sheet in sheets().items() if given in (name, *sheet.also)), given)


def is_known_gpu(name: str) -> bool:
    """Return whether a GPU of that name ships, or a file of its figures is there."""
    return canonical_gpu(name) in sheets() or Path(name).is_file()


def gpu_spec(name: str, field: str = "hardware.gpu") -> GpuSpec:
    """Return a GPU by name, or by the path of a file of its figures; raises InputError for `field`."""
    if sheet := sheets().get(canonical_gpu(name)):
        return _spec(sheet)
    if Path(name).is_file():
        return msgspec.structs.replace(_spec(_own(Path(name), field)), name=name)
    raise unknown_name(field, name, sheets(), OWN, things=True)


def _own(file: Path, field: str) -> GpuSheet:
    try:
        return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), GpuSheet)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(
            field, f"{file}: {error}", "a TOML file with name, bf16_teraflops, memory_gb, memory_gb_per_s "
            "and source; fp8_teraflops, fp4_teraflops and link_gb_per_s where it has them", "correct it",
        ) from None  # fmt: skip


def gpu_of(device: str) -> GpuSpec | None:
    """Return the GPU that the name of a device contains, the longest match first; None: not known."""
    matches = [
        (len(part), name) for name, sheet in sheets().items() for part in (name, *sheet.devices)
        if part in device
    ]  # fmt: skip
    return _spec(sheets()[max(matches)[1]]) if matches else None


def same_device(ran: str, calibrated: str) -> bool:
    """Return whether both name as many GPUs of one kind, however their drivers write it."""
    kinds = gpu_of(ran), gpu_of(calibrated)
    known = kinds[0] is not None and kinds[0] == kinds[1]
    return ran == calibrated or (known and ran.split()[:1] == calibrated.split()[:1])
