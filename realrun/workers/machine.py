"""What a measurement ran on, in words: the engine's version, the device and the environment."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

from tlt.plugin.versions import device_words, installed_version
from tlt.realrun.config import RealConfig
from tlt.realrun.workers.messages import EngineInfo

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
    return installed_version(local=True) or "none"


def device_name(config: RealConfig) -> str:
    """Return what one engine runs on, such as `one NVIDIA H100 80GB HBM3` or `CPU ..., 1 thread`."""
    if config.engine.device == "cuda":
        import torch  # only where an engine runs

        return device_words(torch.cuda.get_device_name(0), config.workers.tp, config.workers.tp)
    return device_words("", config.engine.threads * config.workers.tp, config.workers.tp)
