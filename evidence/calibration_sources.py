"""Builds the shipped calibrations from the raw tables in sim/steptimes/calibrations/raw.

`python -m evidence.calibration_sources` writes sim/steptimes/calibrations/*.json; a test holds the shipped
files to it. `python -m evidence.calibration_sources CONTEXT_TOKENS FILE` fits TLT's published cells again as
if their contexts, which nobody has published, had been that long: `cost.source` takes the file.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec
import numpy as np

from evidence.recording import RUNS
from tlt.sim.steptimes.calibration import (
    MIXED_NOT_TIMED,
    SHIPPED,
    Calibration,
    leave_one_out,
    ranges_of,
    residuals_of,
)
from tlt.sim.steptimes.fit import LawSettings, fit
from tlt.sim.steptimes.fit_live import fit_points
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.catalogue.shape import ModelShape
from tlt.traces.results.calibration_points import MeasuredPoints, Point, PrefillPoint
from tlt.traces.runs.runfolder import read_struct
from tltsched.draft_config import DraftConfig, chain

Row = TypeVar("Row")
RAW = SHIPPED / "raw"
H100_DATE = "2026-11, day not recorded"
VLLM_KNOTS = (1.0, 32.0, 128.0, 256.0, 512.0, 2048.0)
PAPER_NAME = "paper-qwen32b-tp4"
PAPER_CONTEXT_TOKENS = 4000.0
PAPER_KNOTS = (1.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
VLLM_GRAPH_TOKENS = 512.0  # vLLM captures full CUDA graphs up to 512 tokens by default
VLLM_CHUNK_TOKENS = 8192.0
NO_GRAPH_BELOW_8 = "8"  # rows whose K table held 8 alone: no graph was captured for a smaller K
BEYOND = "assumed: roofline; no point reads more than 2,048 tokens in an engine step"
COMPILED = "a kernel was compiled inside the timed steps"
# Engine steps that prefill beside a batch, where another session of this engine, model and GPU timed them.
BESIDE = {"vllm-0.32-h200-qwen2.5-7b": RUNS / "h200-qwen2.5-7b-sessions" / "calibration.points.json"}


class StepRow(msgspec.Struct, frozen=True):
    """A row of a vllm-*-step-times.csv; see sim/steptimes/calibrations/raw/README.md."""

    model: str
    mode: str
    captured_k: str
    batch: int
    prompt_tokens: int
    k: int
    new_tokens: int
    prefill_s: str
    ms_per_step: str


class CellRow(msgspec.Struct, frozen=True):
    """A published cell of a tlt-*.csv."""

    depth: int
    topk: int
    verify_tokens: int
    batch: int
    speedup: float
    acceptance_length_with_bonus: float = 0.0  # only in figure 13


def _read(name: str, kind: type[Row]) -> list[Row]:
    with (RAW / name).open(newline="", encoding="utf-8") as file:
        return [msgspec.convert(row, kind, strict=False) for row in csv.DictReader(file)]


def _vllm_points(rows: Sequence[StepRow]) -> tuple[Point, ...]:
    """Return the points of one model in file order."""
    return tuple(
        Point(
            provenance="measured",
            when_off="not_configured" if row.mode == "no_spec" else "k0",
            draft_config=chain(row.k),
            batch=row.batch,
            context_tokens=row.prompt_tokens + row.new_tokens / row.batch / 2,
            engine_step_s=float(row.ms_per_step) / 1e3,
            excluded=COMPILED if float(row.ms_per_step) > 100 else "",
        )
        for row in rows
    )


def _vllm_prefill(rows: Sequence[StepRow]) -> tuple[PrefillPoint, ...]:
    """Return one prefill point a (batch, prompt): the median over the rows that share it."""
    groups: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        groups.setdefault((row.batch, row.prompt_tokens), []).append(float(row.prefill_s))
    return tuple(
        PrefillPoint(batch=batch, prompt_tokens=prompt, prefill_s=median(seconds))
        for (batch, prompt), seconds in sorted(groups.items())
    )


def peak_s_per_token(shape: ModelShape, tp: int) -> float:
    """Return the seconds of one token's matrix products at the data-sheet peak: no kernel is faster."""
    return 2 * shape.read_parameters() / (gpu_spec("H100").bf16_flops * tp)


def vllm_h100(version: str, model: str, kv_s_per_token: float | None = None) -> Calibration:
    """Fit the H100 points of one vLLM version (`0.26` or `0.32`) and model shape."""
    rows = [
        row
        for row in _read(f"vllm-{version}-step-times.csv", StepRow)
        if row.model == f"{model.lower()}-shape" and row.ms_per_step and row.captured_k != NO_GRAPH_BELOW_8
    ]
    shape = model_shape(model)
    assumed = roofline(shape, gpu_spec("H100"), Parallel(), Assumptions())
    settings = LawSettings(
        knots_tokens=VLLM_KNOTS,
        least_slope_s_per_token=peak_s_per_token(shape, 1),
        open_slope_s_per_token=assumed.slopes_s_per_token[-1],
        graph_tokens=VLLM_GRAPH_TOKENS,
        chunk_tokens=VLLM_CHUNK_TOKENS,
        kv_s_per_token=kv_s_per_token,
        prefill_s_per_pair=assumed.prefill_s_per_pair,
    )
    points, prefill = _vllm_points(rows), _vllm_prefill(rows)

    def refit(some: Sequence[Point]) -> Coefficients:
        return fit(some, prefill, settings, shape)

    not_fitted = {
        "prefill_s_per_pair": "assumed: roofline; the prompts are too short to show it",
        "last slope": BEYOND,
        **MIXED_NOT_TIMED,
    }
    if kv_s_per_token is not None:
        where = "measured with vLLM 0.26.0 on the same device: these points have one context"
        not_fitted["kv_s_per_token"] = where
    return Calibration(
        name=f"vllm-{version}-h100-{model.lower()}-one-run",
        provenance="measured",
        engine="vLLM",
        engine_version=f"{version}.0",
        device="one H100 80 GB",
        date=H100_DATE,
        model=model,
        tp=1,
        source=f"sim/steptimes/calibrations/raw/vllm-{version}-step-times.csv",
        licence="Apache-2.0",
        notes=("one run of each point: the spread is not known", "random weights; synthetic acceptance"),
        not_fitted=not_fitted,
        coefficients=(coefficients := refit(points)),
        residuals=leave_one_out(coefficients, points, refit),
        ranges=ranges_of(points),
        points=points,
        prefill_points=prefill,
    )


def _paper_points(context_tokens: float, plain: Coefficients) -> tuple[Point, ...]:
    """Turn published speedups into seconds: engine step = plain step x acceptance length / speedup.

    A checkerboard over (depth or batch, verify width) is held out: half of the published cells.
    """
    fig13 = _read("tlt-fig13.csv", CellRow)
    table4 = [row for row in _read("tlt-table4.csv", CellRow) if row.batch > 1]  # batch 1 is in figure 13

    def plain_s(batch: int) -> float:
        fixed_s = float(plain.fixed_s(DraftConfig(0), "not_configured", np.float64(batch)))
        return fixed_s + plain.kv_s_per_token * context_tokens * batch

    points = [
        Point(provenance="assumed", when_off="not_configured", draft_config=DraftConfig(0), batch=batch,
              context_tokens=context_tokens, engine_step_s=plain_s(batch))
        for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)
    ]  # fmt: skip
    lengths = {(row.depth, row.verify_tokens): row.acceptance_length_with_bonus for row in fig13}
    cells = [*fig13, *table4]
    widths = sorted({cell.verify_tokens for cell in cells})
    depths = sorted({cell.depth for cell in cells})
    batches = sorted({cell.batch for cell in cells})
    for row in cells:
        place = depths.index(row.depth) + batches.index(row.batch) + widths.index(row.verify_tokens)
        length = lengths[(row.depth, row.verify_tokens)]
        points.append(
            Point(
                provenance="published",
                when_off="not_configured",
                draft_config=DraftConfig(row.depth, row.topk, row.verify_tokens),
                batch=row.batch,
                context_tokens=context_tokens,
                engine_step_s=length / row.speedup * plain_s(row.batch),
                held_out=place % 2 == 1,
            )
        )
    return tuple(points)


def paper_qwen32b_tp4(context_tokens: float = PAPER_CONTEXT_TOKENS) -> Calibration:
    """Fit the published cells of TLT; the plain step that they are relative to is a roofline (assumed).

    The published tables do not say how long the contexts were, and cannot tell: the error on the held-out
    half falls slowly and without a minimum, from 7.5 % (batches above 1, 1,000 tokens) over 5.5 % (4,000) to
    3.8 % (20,000). So PAPER_CONTEXT_TOKENS is assumed.
    """
    model, tp = "Qwen2.5-32B", 4
    shape = model_shape(model)
    # What tokens add to exchanges is left out: it is in the published cells, and taken for matrix products.
    gpu = msgspec.structs.replace(gpu_spec("H100"), link_bytes_per_s=None)
    plain = roofline(shape, gpu, Parallel(tp=tp), Assumptions())
    settings = LawSettings(
        knots_tokens=PAPER_KNOTS,
        least_slope_s_per_token=peak_s_per_token(shape, tp),
        open_slope_s_per_token=plain.slopes_s_per_token[-1],
        graph_tokens=None,
        chunk_tokens=VLLM_CHUNK_TOKENS,
        kv_s_per_token=plain.kv_s_per_token,
        prefill_s_per_pair=plain.prefill_s_per_pair,
    )
    prefill = tuple(
        PrefillPoint(batch=1, prompt_tokens=n, prefill_s=plain.prefill_s(n, n * n, VLLM_CHUNK_TOKENS))
        for n in (512, 4096, 16_384)
    )
    points = _paper_points(context_tokens, plain)
    coefficients = fit(points, prefill, settings, shape)
    return Calibration(
        name=PAPER_NAME if context_tokens == PAPER_CONTEXT_TOKENS else f"{PAPER_NAME}-{context_tokens:.0f}",
        provenance="published",
        engine="TLT on SGLang",
        engine_version="as published",
        device="4 x H100 80 GB (TP 4)",
        date="2025-11",
        model=model,
        tp=tp,
        source="arXiv 2511.16665, figure 13 and table 4 (sim/steptimes/calibrations/raw/tlt-*.csv)",
        licence="facts from the paper",
        notes=(
            "published: speedup and acceptance length of tree drafting with top-k 8",
            "assumed: the plain step time they are relative to (roofline) and prefill",
            f"assumed: contexts of {context_tokens:.0f} tokens in the published batch sweep",
        ),
        not_fitted={
            "kv_s_per_token": "assumed: roofline",
            "prefill_s_per_pair": "assumed: roofline",
            "prefill_chunk_s, prefill_s_per_token": "assumed: roofline points",
            "off_s": "not published: 0",
            "last slope": BEYOND,
            **MIXED_NOT_TIMED,
        },
        coefficients=coefficients,
        residuals=residuals_of(coefficients, points),
        ranges=ranges_of(points),
        points=points,
        prefill_points=prefill,
    )


def measured_points(path: Path) -> MeasuredPoints:
    """Read a raw file, with what another session timed beside it."""
    points = read_struct(path, MeasuredPoints)
    if points.name not in BESIDE:
        return points
    other = read_struct(BESIDE[points.name], MeasuredPoints)
    note = f"prefill beside decode: timed in another session, {other.device}, {other.date}"
    return msgspec.structs.replace(points, mixed_points=other.mixed_points, notes=(*points.notes, note))


def build_all() -> tuple[Calibration, ...]:
    """Return every shipped calibration, fitted anew."""
    older = vllm_h100("0.26", "Qwen2.5-7B")
    return (
        older,
        vllm_h100("0.32", "Qwen2.5-7B", older.coefficients.kv_s_per_token),
        *(fit_points(measured_points(path)) for path in sorted(RAW.glob("*.points.json"))),
        paper_qwen32b_tp4(),
    )


def encode(calibration: Calibration) -> bytes:
    """Return the bytes of a shipped file."""
    return msgspec.json.format(msgspec.json.encode(calibration), indent=1) + b"\n"


def main(folder: Path = SHIPPED) -> None:
    """Write every shipped calibration into `folder`."""
    for calibration in build_all():
        (folder / f"{calibration.name}.json").write_bytes(encode(calibration))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        Path(sys.argv[2]).write_bytes(encode(paper_qwen32b_tp4(float(sys.argv[1]))))
    else:
        main()
