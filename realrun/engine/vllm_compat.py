"""What has to be so before vLLM 0.32.0 is imported: its version, the environment, the repairs.

Neither this module nor the repairs import vllm or torch at module level: the environment must be set before
either is loaded, for both read it once. Each repair names what is wrong without it, and all are tied to one
version, because they reach into places that vLLM does not promise to keep.
"""

from __future__ import annotations

import os
import sys

from tlt.plugin import graphs
from tlt.plugin.versions import installed_version as installed_version
from tlt.realrun.config import EngineConfig
from tlt.realrun.engine.repairs import cpu_sampling, cpu_seeds, kernel_registry
from tltsched.errors import InputError

VERSION = "0.32.0"
# The CPU wheel of vLLM brings CUDA builds of these, which cannot load beside a CPU torch.
CUDA_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")

EVERYWHERE = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process: its scheduler is reachable
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",  # what it warns of is what this project does on purpose
}
ON_CPU = {
    # Idle OpenMP threads that spin take the cores from the other workers of this machine.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    # A rank takes seconds to end, and one that is ended in the midst of it leaves its shared memory behind.
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "30",
}
ON_CUDA = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",  # keeps full CUDA graphs while K changes
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it compiles kernels at first use
}


def prepare(engine: EngineConfig) -> None:
    """Set the environment, check the version and apply the repairs; raises InputError on another version.

    What the user has set in the environment already is kept.
    """
    require_version()
    settings = {**EVERYWHERE, **(ON_CPU if engine.device == "cpu" else ON_CUDA)}
    if engine.device == "cpu":
        settings["OMP_NUM_THREADS"] = str(engine.threads)
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if engine.device == "cpu":
        hide_cuda_companions()
        use_threads(engine.threads)
    repair(engine.device)


def repair(device: str) -> None:
    """Repair what this process has of vLLM; every process that runs a model needs it, once or more."""
    if device == "cpu":
        cpu_sampling.repair()
        cpu_seeds.repair()
        kernel_registry.repair()
    else:
        # With stock graphs as well: one engine serves every K here, where a server of one K, which is what a
        # user starts, finds a graph of its own for every batch.
        graphs.repair()


def require_version() -> None:
    """Raise InputError unless the one version that this package was written against is installed."""
    version = installed_version()
    if version == VERSION:
        return
    fix = "install the extra real-cpu or real-gpu of this project (see its README)"
    raise InputError("vllm", version or "no vllm", VERSION, fix)


def hide_cuda_companions() -> None:
    """Make optional packages that cannot load look absent, before vllm or transformers looks for them."""
    for name in CUDA_COMPANIONS:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def use_threads(threads: int) -> None:
    """Set the CPU threads of this process; the environment alone is too late if torch was loaded before."""
    import torch

    torch.set_num_threads(threads)  # vLLM makes this call do nothing from its first engine on
