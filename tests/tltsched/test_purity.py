"""The scheduler package stays pure: what importing all of it brings in."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import tltsched
for module in pkgutil.walk_packages(tltsched.__path__, "tltsched."):
    importlib.import_module(module.name)
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""
FORBIDDEN = {"simpy", "torch", "vllm", "numpy", "pandas", "scipy", "pyarrow", "matplotlib", "click", "rich"}


def test_importing_all_of_tltsched_brings_in_only_msgspec() -> None:
    printed = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    loaded = set(printed.stdout.split())
    assert "tltsched" in loaded
    assert not loaded & FORBIDDEN
    assert {"traces", "sim", "realrun", "analysis"}.isdisjoint(loaded)
