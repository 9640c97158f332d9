"""Which engine a process builds, by name: a worker is told it, and tests name one of their own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from tlt.realrun.config import RealConfig
from tlt.realrun.engine.protocol import Engine

MAKE_ENGINE = "tlt.realrun.engine.vllm_engine:make_engine"

EngineFactory = Callable[[RealConfig, bool], Engine]
"""Takes the settings, and whether speculation is configured."""


def engine_factory(name: str) -> EngineFactory:
    """Return the engine factory named `module:function`."""
    module, _, function = name.partition(":")
    make: EngineFactory = getattr(import_module(module), function)
    return make


def engine_name(factory: str) -> str:
    """Return the name of the engine that a factory makes."""
    return "vLLM" if factory == MAKE_ENGINE else factory
