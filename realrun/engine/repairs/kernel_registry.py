"""CPU: kernels cannot be registered beside llvmlite, nor twice in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Kernel = Callable[..., Any]


def repair() -> None:
    """Register each CPU kernel once, llvmlite or not; must run before an engine is built.

    Every new engine registers them again, and searches all loaded modules for the kernels to replace. That
    search fails on an object of llvmlite, which an ngram engine loads, and whatever else compiles with numba:
    no engine could follow.
    """
    from vllm.triton_utils import dispatcher

    original = dispatcher.register_kernels
    if getattr(original, "repaired", False):
        return

    def register(overrides: dict[str, Kernel]) -> None:
        new = {name: kernel for name, kernel in overrides.items() if name not in dispatcher._registry}
        if not new:
            return
        dispatcher.sys = SimpleNamespace(modules=_searched())
        try:
            original(new)
        finally:
            dispatcher.sys = sys

    register.repaired = True  # type: ignore[attr-defined]
    dispatcher.register_kernels = register


def _searched() -> dict[str, Any]:
    """Return the loaded modules without those that hold no kernel and cannot be searched."""
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] != "llvmlite"}
