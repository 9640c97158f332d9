"""Can the K = 0 tax be shrunk? `python -m evidence.k0_skip FOLDER` (a folder of `tlt real model`)

vLLM runs the drafter's first pass also at K = 0, to keep its KV in step. Here that pass is left out while
K = 0, which a live engine could do if it filled the drafter's KV when drafting comes on. Measured on CPU:

- the step at K = 0 with and without that pass, against an engine without speculation;
- what the gap in the KV then costs: acceptance right after an interval at K = 0, with and without the pass,
  for a draft model that accepts some drafts (tiny model, float32, greedy).

Writes k0_skip.json. Needs the extra real-cpu.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from evidence.recording import OTHERS, device, write
from tlt.realrun.config import DrafterConfig, EngineConfig, ModelConfig, RealConfig
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.engine.vllm_engine import VllmEngine, make_engine
from tlt.realrun.models.drafter import make_draft_model
from tlt.realrun.models.target import prepare_model

PROMPT = tuple(range(3, 35))
BLOCKS, ENGINE_STEPS = 8, 10
OFF_ENGINE_STEPS, ON_ENGINE_STEPS = 48, 24


@contextmanager
def no_pass_at_zero(engine: VllmEngine) -> Iterator[None]:
    """Leave the drafter's forward pass out while no draft is asked for."""
    import torch

    drafter: Any = engine._core.model_executor.driver_worker.worker.model_runner.drafter
    propose = drafter.propose

    def skipping(*args: Any, **kwargs: Any) -> Any:
        k = kwargs["num_speculative_tokens"] if "num_speculative_tokens" in kwargs else args[0]
        if k:
            return propose(*args, **kwargs)
        tokens = kwargs["next_token_ids"]
        return torch.empty(len(tokens), 0, dtype=torch.int64, device=tokens.device)

    drafter.propose = skipping
    try:
        yield
    finally:
        drafter.propose = propose


def fill(engine: VllmEngine, batch: int, tokens: int) -> None:
    """Start `batch` requests and run them until all decode."""
    engine.submit([EngineRequest(number, PROMPT, tokens) for number in range(batch)])
    while engine.step(0).prompt_tokens:
        pass


def step_s(engine: VllmEngine) -> float:
    """Return the median seconds of an engine step at K = 0, two engine steps after whatever was before."""
    return median([engine.step(0).seconds for _ in range(ENGINE_STEPS + 2)][2:])


def taxes(config: RealConfig, batch: int) -> dict[str, float]:
    """Return the tax of K = 0 at one batch, with and without the drafter's pass; blocks alternate."""
    plain, speculating = make_engine(config, speculating=False), make_engine(config, speculating=True)
    tokens = (BLOCKS + 1) * (ENGINE_STEPS + 2) * 2 + 20
    fill(plain, batch, tokens)
    fill(speculating, batch, tokens)
    blocks: list[tuple[float, float, float]] = []
    for number in range(BLOCKS + 1):
        base_s, kept_s = step_s(plain), step_s(speculating)
        with no_pass_at_zero(speculating):
            skipped_s = step_s(speculating)
        if number:
            blocks.append((base_s, kept_s, skipped_s))
    plain.close()
    return {
        f"tax, batch {batch}": round(median(kept / base - 1 for base, kept, _ in blocks), 4),
        f"tax without the pass, batch {batch}": round(median(skip / base - 1 for base, _, skip in blocks), 4),
    }


def acceptance(root: Path, skip: bool) -> float:
    """Return the mean acceptance length (bonus included) right after an interval at K = 0."""
    model = prepare_model("tiny", root / "tiny")
    draft = make_draft_model(model, root / "draft")
    engine = make_engine(
        RealConfig(
            model=ModelConfig(folder=str(model), name="tiny", dtype="float32"),
            drafter=DrafterConfig(kind="draft_model", folder=str(draft), ks=(0, 4)),
            engine=EngineConfig(max_running=16, max_context_tokens=512, eager=True, temperature=0.0),
        ),
        speculating=True,
    )
    fill(engine, 16, 320)
    if skip:
        with no_pass_at_zero(engine):
            for _ in range(OFF_ENGINE_STEPS):
                engine.step(0)
    else:
        for _ in range(OFF_ENGINE_STEPS):
            engine.step(0)
    facts = [engine.step(4) for _ in range(ON_ENGINE_STEPS)][1:]
    engine.close()
    return 1 + sum(sum(fact.accepted_by_position) for fact in facts) / sum(fact.batch for fact in facts)


def main(folder: str) -> None:
    """Measure and write the record."""
    values: dict[str, float] = {}
    for batch in (1, 8):
        config = RealConfig(
            model=ModelConfig(folder=f"{folder}/model"),
            drafter=DrafterConfig(folder=f"{folder}/eagle3", ks=(0, 4)),
            engine=EngineConfig(max_running=8, max_context_tokens=512, kv_gigabytes=0.3, eager=True),
        )
        values |= taxes(config, batch)
    with tempfile.TemporaryDirectory() as root:
        values["acceptance length after K = 0"] = round(acceptance(Path(root), skip=False), 3)
        values["the same without the pass"] = round(acceptance(Path(root), skip=True), 3)
    write(
        "k0_skip",
        timed=True,
        claim="K = 0 without the drafter's pass, vLLM 0.32 on CPU (SmolLM2-135M, EAGLE-3): tax, acceptance"
        " right after it (tiny draft model)",
        value=values,
        unit={
            OTHERS: "share of the plain step",
            "acceptance length after K = 0": "tokens",
            "the same without the pass": "tokens",
        },
        target="tax at most 3 % without the pass",
        met=all(tax <= 0.03 for name, tax in values.items() if name.startswith("tax without")),
        measured_on=f"{device()}, vLLM 0.32 for CPU",
        how="measured, medians of alternating blocks; the drafter's KV is not filled when drafting comes on",
        command=f"python -m evidence.k0_skip {folder}",
    )


if __name__ == "__main__":
    main(sys.argv[1])
