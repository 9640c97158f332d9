"""Claims about models and GPUs by name: how far off assumed step times are by regime, and which fit where."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from evidence.recording import HERE, OTHERS, write, write_raw
from evidence.roofline_claims import assumed_for
from tlt.analysis.drawing.tables import markdown_rows
from tlt.sim.advise.best_draft import engine_step_s
from tlt.sim.config import AcceptanceConfig, EngineConfig
from tlt.sim.kv_cache import kv_tokens
from tlt.sim.steptimes.calibration import Calibration, load, predict_s, shipped_names
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.traces.catalogue.gpus import gpu_of, gpu_spec
from tlt.traces.catalogue.models import canonical, model_shape
from tlt.traces.results.calibration_points import Point
from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError

MEAN, BIAS = 0.10, 0.05  # targets: mean error and its signed mean, of a calibration's plain steps and chains
MODELS = (
    "Qwen2.5-7B", "Qwen2.5-7B-FP8", "Qwen2.5-32B", "Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B",
    "Qwen3-32B", "Qwen3.5-27B", "Llama-3.1-8B", "Llama-3.3-70B", "Mixtral-8x7B", "Qwen3-30B-A3B",
    "Qwen3-235B-A22B", "Qwen3-Next-80B-A3B", "gpt-oss-20b", "gpt-oss-120b", "GLM-4.5-Air", "DeepSeek-V3",
    "Kimi-K2",
)  # fmt: skip
GPUS = (
    "A100", "A800", "A6000", "L40S", "RTX-4090", "RTX-5090", "RTX-PRO-6000", "H20", "H100", "H800", "H200",
    "B200", "GB200", "MI300X", "Ascend-910B",
)  # fmt: skip
TPS, BATCHES, ROOM_TOKENS, CONTEXT_TOKENS = (1, 2, 4, 8), (8, 64), 8192, 2048.0


def regime(point: Point) -> str:
    """Return the regime of a point: what drafts, how many run, how long their contexts are."""
    drafts = f"K {'1-2' if point.draft_config.depth <= 2 else '3-8'}" if point.draft_config.depth else (
        "plain" if point.when_off == "not_configured" else "K 0")  # fmt: skip
    batch = "1-8" if point.batch <= 8 else "9-64" if point.batch <= 64 else "above 64"
    context = "up to 2,048" if point.context_tokens <= 2100 else "above 2,048"
    return f"{drafts} | {batch} | {context}"


def errors_of(calibration: Calibration) -> dict[str, list[float]]:
    """Return by regime the signed errors of the roofline on the points of a calibration."""
    law, found = assumed_for(calibration), dict[str, list[float]]()
    for point in calibration.points:
        if not point.excluded:
            error = predict_s(law, point) / point.engine_step_s - 1.0
            found.setdefault(regime(point), []).append(error)
    return found


def roofline_vs_measured() -> None:
    """The assumed step times against the measured ones, by calibration that ships and by regime."""
    values: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    cells = []
    for name in shipped_names():
        calibration = load(name)
        if calibration.provenance != "measured":
            continue
        by_regime = errors_of(calibration)
        for kind in ("plain steps", "chains"):
            of = [each for key, errors in by_regime.items() for each in errors
                  if key.startswith(("K 1", "K 3")) == (kind == "chains")]  # fmt: skip
            if of:
                values[f"{name}, {kind}: mean error"] = round(float(np.mean(np.abs(of))), 4)
                values[f"{name}, {kind}: signed"] = round(float(np.mean(of)), 4)
        for key, errors in sorted(by_regime.items()):
            mean, signed = float(np.mean(np.abs(errors))), float(np.mean(errors))
            cells.append((name, *key.split(" | "), str(len(errors)), f"{mean:.1%}", f"{signed:+.1%}"))
            rows.append({"calibration": name, "regime": key, "errors": [round(each, 4) for each in errors]})
    headers = ("Calibration", "Drafts", "Batch", "Context", "Points", "Mean error", "Signed")
    (HERE / "roofline_vs_measured.md").write_text(markdown_rows(headers, cells) + "\n", encoding="utf-8")
    met = all(abs(value) <= (BIAS if name.endswith("signed") else MEAN) for name, value in values.items())
    write(
        "roofline_vs_measured",
        claim="roofline (assumed) against the measured step times of every calibration that ships",
        value=values,
        unit={OTHERS: "share of the measured step"},
        target=f"mean error at most {MEAN:.0%}, bias at most {BIAS:.0%}, of plain steps and of chains, each "
        "calibration",
        met=met,
        how="modelled against measured points of sim/steptimes/calibrations; the drafting constants are "
        "fitted to the chains of the 7B shape on the H100; K = 0 counts as plain",
        measured_on="one GPU each, vLLM (step times)",
        raw=write_raw("roofline_vs_measured.points.jsonl", rows),
    )


def least_tp(model: str, gpu: str) -> int | None:
    """Return the least tensor parallelism with room for eight requests; None: more than eight GPUs."""
    shape = model_shape(model)
    drafts = tuple(map(chain, range(1, 9)))
    for tp in TPS:
        try:
            tokens = kv_tokens(EngineConfig(), shape, gpu_spec(gpu), Parallel(tp=tp), drafts, ROOM_TOKENS)
        except InputError:
            continue
        if tokens >= BATCHES[0] * ROOM_TOKENS and shape.heads % tp == 0:
            return tp
    return None


def step_times(model: str, gpu: str, tp: int) -> tuple[Coefficients, str, int]:
    """Return step times, where they come from, and the most drafts that were measured here (0: none were).

    m: measured, b: borrowed from another GPU, a: assumed.
    """
    calibrations = [load(name) for name in shipped_names() if not name.endswith("-one-run")]
    of_model = [
        each for each in calibrations
        if each.provenance in ("measured", "borrowed") and canonical(each.model) == canonical(model)
    ]  # fmt: skip
    here = [each for each in of_model if each.is_of(model, gpu, tp)]
    if here:
        deepest = max(point.draft_config.depth for point in here[-1].points)
        return here[-1].coefficients, here[-1].provenance[0], deepest
    assumed = roofline(model_shape(model), gpu_spec(gpu), Parallel(tp=tp), Assumptions())
    if not of_model:
        return assumed, "a", 0
    known = gpu_of(of_model[-1].device)
    assert known is not None
    there = assumed_for(of_model[-1])
    plain = [point for point in of_model[-1].points if point.draft_config == OFF]
    factor = float(np.exp(np.mean([np.log(p.engine_step_s / predict_s(there, p)) for p in plain])))
    return assumed.scaled(factor, factor, 1.0), "b", 0


def best_k(law: Coefficients, batch: int) -> int:
    """Return the number of drafts with the most tokens a second under the default chances of acceptance."""
    survival = np.cumsum((0.0, *AcceptanceConfig().survival_by_position))
    plain_s = engine_step_s(law, OFF, "not_configured", batch, CONTEXT_TOKENS)
    paces = [1.0 / plain_s] + [
        (1.0 + survival[k]) / engine_step_s(law, chain(k), "k0", batch, CONTEXT_TOKENS)
        for k in range(1, len(survival))
    ]  # fmt: skip
    return int(np.argmax(paces))


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a GPU."""

    model: str
    gpu: str
    tp: int | None
    best_k: tuple[int, ...] = ()
    source: str = ""
    deepest: int = 0  # most drafts that were measured here; 0: none were

    def text(self) -> str:
        """Return it as the table shows it; more drafts than were measured are marked."""
        if self.tp is None:
            return "-"
        best = (f"{k}*" if 0 < self.deepest < k else str(k) for k in self.best_k)
        return f"TP {self.tp}: {', '.join(best)} {self.source}"


def cell_of(model: str, gpu: str) -> Cell:
    """Return whether a model fits, and how many drafts are best."""
    tp = least_tp(model, gpu)
    if tp is None:
        return Cell(model=model, gpu=gpu, tp=None)
    law, source, deepest = step_times(model, gpu, tp)
    best = tuple(best_k(law, each) for each in BATCHES)
    return Cell(model=model, gpu=gpu, tp=tp, source=source, best_k=best, deepest=deepest)


def models_by_gpus() -> None:
    """Which of twenty models fit on which of fifteen GPUs, and how many drafts are best there."""
    cells = [cell_of(model, gpu) for model in MODELS for gpu in GPUS]
    by_model = {model: [cell.text() for cell in cells if cell.model == model] for model in MODELS}
    table = markdown_rows(("Model", *GPUS), [(model, *texts) for model, texts in by_model.items()])
    (HERE / "models_by_gpus.md").write_text(table + "\n", encoding="utf-8")
    fits = [cell for cell in cells if cell.tp is not None]
    values: dict[str, float] = {"cells": len(cells), "of them fit": len(fits)}
    for source, word in (("m", "measured"), ("b", "borrowed"), ("a", "assumed")):
        values[f"step times {word}"] = sum(cell.source == source for cell in fits)
    write(
        "models_by_gpus",
        claim="which of twenty models fit on which of fifteen GPUs, with how many of them, and the best "
        "number of drafts at batch 8 and 64",
        value=values,
        unit={OTHERS: ""},
        target="none: a table",
        met=None,
        how="modelled from shapes and data sheets; step times measured, borrowed from the same model on "
        "another GPU, or assumed (roofline), as each cell says; default chances of acceptance",
        measured_on="no device, but for the calibrations that ship",
        raw=write_raw("models_by_gpus.points.jsonl", [msgspec.to_builtins(cell) for cell in cells]),
    )


SHAPES = (roofline_vs_measured, models_by_gpus)
