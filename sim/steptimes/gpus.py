"""Data-sheet figures of GPUs: what a roofline needs beside the shape of the model.

Dense bf16 throughput, memory bandwidth and size are from the vendor's data sheet of the named part.
"""

from __future__ import annotations

import msgspec


class GpuSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Data-sheet figures of one GPU."""

    name: str
    bf16_flops: float  # dense, per second
    memory_bytes_per_s: float
    memory_bytes: float
    source: str


def _gpu(name: str, teraflops: float, gigabytes_per_s: float, gigabytes: float, part: str) -> GpuSpec:
    return GpuSpec(
        name=name, bf16_flops=teraflops * 1e12, memory_bytes_per_s=gigabytes_per_s * 1e9,
        memory_bytes=gigabytes * 1e9, source=f"published: NVIDIA data sheet, {part}, dense bf16",
    )  # fmt: skip


GPUS: dict[str, GpuSpec] = {
    gpu.name: gpu
    for gpu in (
        _gpu("A100", 312, 2039, 80, "A100 80GB SXM"),
        _gpu("H100", 989, 3350, 80, "H100 80GB SXM"),
        _gpu("H200", 989, 4800, 141, "H200 SXM"),
        _gpu("B200", 2250, 8000, 180, "HGX B200"),
        _gpu("H20", 148, 4000, 96, "H20"),
        _gpu("L40", 181, 864, 48, "L40"),
    )
}
