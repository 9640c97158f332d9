"""CPU: a second engine of one process registers its kernels again, and fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Kernel = Callable[..., Any]


def repair() -> None:
    """Register each CPU kernel once; must run before an engine is built.

    Every new engine registers them again, and searches all loaded modules for the kernels to replace. That
    search fails on an object of llvmlite, which an ngram engine loads: no engine could follow it.
    """
    from vllm.triton_utils import dispatcher

    original = dispatcher.register_kernels
    if getattr(original, "repaired", False):
        return

    def register(overrides: dict[str, Kernel]) -> None:
        new = {name: kernel for name, kernel in overrides.items() if name not in dispatcher._registry}
        if new:
            original(new)

    register.repaired = True  # type: ignore[attr-defined]
    dispatcher.register_kernels = register
