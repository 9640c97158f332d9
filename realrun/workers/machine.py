"""What a measurement ran on, in words: the engine's version, the device and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from tlt.plugin.versions import device_words, installed_version
from tlt.realrun.config import RealConfig
from tlt.realrun.workers.messages import EngineInfo

# Variables that may decide how fast an engine is. Run folders are published, so a value is written only where
# it can be no secret: a number or a switch, or of a variable whose values are known; else that it is set.
DECIDING = (
    "VLLM_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "CUDA_VISIBLE",
    "TORCH",
    "PYTORCH",
    "LD_PRELOAD",
)
HARMLESS = re.compile(r"-?\d{1,6}(\.\d{1,6})?|true|false|on|off|yes|no|auto", re.IGNORECASE)
SHOWN = (
    "CUDA_VISIBLE_DEVICES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET", "OMP_PLACES",
    "OMP_PROC_BIND", "OMP_SCHEDULE", "OMP_WAIT_POLICY", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST", "VLLM_ATTENTION_BACKEND", "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_WORKER_MULTIPROC_METHOD",
)  # fmt: skip
SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "AUTH", "CREDENTIAL", "CERT")


def engine_info(engine: str, config: RealConfig, kv_tokens: int = 0, block_tokens: int = 0) -> EngineInfo:
    """Return what this process runs on, for the record."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return EngineInfo(
        engine=engine,
        engine_version=engine_version(),
        device=device_name(config),
        torch=torch,
        environment=shown_environment(os.environ),
        kv_tokens=kv_tokens,
        block_tokens=block_tokens,
    )


def shown_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may decide the times, with no secret and no path among their values.

    One whose value is not written is said to be set; those whose name tells of a secret are left out, and so
    are paths, which tell nothing about the times.
    """
    return {
        name: value if name in SHOWN or HARMLESS.fullmatch(value) else "(set)"
        for name, value in sorted(variables.items())
        if name.startswith(DECIDING) and "/" not in value and not any(word in name.upper() for word in SECRET)
    }


def engine_version() -> str:
    """Return the version of vLLM that is installed, for a GPU or a CPU; `none` without one."""
    return installed_version(local=True) or "none"


def device_name(config: RealConfig) -> str:
    """Return what one engine runs on, such as `one NVIDIA H100 80GB HBM3` or `CPU ..., 1 thread`."""
    if config.engine.device == "cuda":
        import torch  # only where an engine runs

        return device_words(torch.cuda.get_device_name(0), config.workers.tp, config.workers.tp)
    return device_words("", config.engine.threads * config.workers.tp, config.workers.tp)
