"""No engine is installed where these tests run: what the plugin asks vLLM for is answered here."""

from __future__ import annotations

import pytest

from tlt.plugin import install, writer


@pytest.fixture(autouse=True)
def _no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_device", lambda *_counts: "CPU of a test, 1 thread")
    monkeypatch.setattr(install, "_compilations", lambda: lambda: 0)
    monkeypatch.setattr(writer, "EVERY_S", 0.01)
    monkeypatch.setattr(install, "installed_version", lambda: "0.32.0")
