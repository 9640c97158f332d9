"""Whether a roofline says rightly when a model that is not bf16, or not dense, gains by drafting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from evidence.other_shapes import SURVIVAL
from evidence.recording import OTHERS, Figure, write, write_raw
from evidence.roofline_claims import assumed_for
from tlt.sim.steptimes.calibration import Calibration, load, predict_s
from tlt.sim.steptimes.law import Coefficients
from tlt.traces.results.calibration_points import Point
from tltsched.errors import InputError

# Of a session each: `python -m evidence.other_shapes` left their points. That of the mixture of experts
# (Qwen3-30B-A3B) ended before its drafting engine was measured at every batch: 4, 16, 32 and 64 are.
MEASURED = {"FP8": "vllm-0.32-h200-qwen2.5-7b-fp8", "MoE": "vllm-0.32-h200-qwen3-30b-a3b"}
# Acceptance at which gains are asked for: as it was measured with, and weaker and stronger drafters.
RATES = {"as measured": tuple(SURVIVAL), "weak": (0.5, 0.25, 0.12, 0.06), "strong": (0.9, 0.8, 0.72, 0.65)}
TIE = 0.01  # a measured gain that is so near to 1 has no sign


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One batch and context at one acceptance: gains over a plain step by K, measured and by the roofline."""

    batch: int
    prompt_tokens: int  # about the context of its points
    acceptance: str
    measured: dict[int, float]
    assumed: dict[int, float]

    def wrong_signs(self) -> list[int]:
        """Return the K whose gain the roofline puts on the other side of 1."""
        return [
            k for k, gain in self.measured.items()
            if abs(gain - 1.0) > TIE and (gain > 1.0) != (self.assumed[k] > 1.0)
        ]  # fmt: skip

    def off_by(self) -> int:
        """Return how far the roofline's best K is from the measured one; 0 is no speculation."""
        best = [max({0: 1.0, **gains}.items(), key=lambda item: item[1])[0]
                for gains in (self.measured, self.assumed)]  # fmt: skip
        return abs(best[0] - best[1])


def judged(calibration: Calibration, law: Coefficients) -> list[Judged]:
    """Return every batch and context of a calibration, at every acceptance of RATES.

    A gain is the tokens of an engine step that drafts over its length in plain steps of the same batch and
    the nearest context. Raises InputError for a batch without a plain point.
    """
    plain = [point for point in calibration.points if point.when_off == "not_configured"]
    cells: dict[tuple[int, float], list[tuple[Point, Point]]] = defaultdict(list)
    for point in calibration.points:
        if point.draft_config.depth:
            same = [other for other in plain if other.batch == point.batch]
            if not same:
                allowed = "a plain point of every batch"
                raise InputError(calibration.name, f"none of batch {point.batch}", allowed, "measure it")
            base = min(same, key=lambda other: abs(other.context_tokens - point.context_tokens))
            cells[point.batch, base.context_tokens].append((point, base))
    found = []
    for (batch, context), pairs in sorted(cells.items()):
        for name, survival in RATES.items():
            tokens = {point.draft_config.depth: 1.0 + sum(survival[: point.draft_config.depth])
                      for point, _ in pairs}  # fmt: skip
            measured, assumed = {}, {}
            for point, base in pairs:
                k = point.draft_config.depth
                measured[k] = tokens[k] * base.engine_step_s / point.engine_step_s
                assumed[k] = tokens[k] * predict_s(law, base) / predict_s(law, point)
            found.append(
                Judged(batch=batch, prompt_tokens=round(context), acceptance=name, measured=measured,
                       assumed=assumed)
            )  # fmt: skip
    return found


def figures_of(
    name: str, calibration: Calibration, law: Coefficients, cells: Sequence[Judged]
) -> dict[str, Figure]:
    """Return what is counted of one calibration, and the errors of its step times."""
    values: dict[str, Figure] = {
        f"{name}: gains": float(sum(len(cell.measured) for cell in cells)),
        f"{name}: gains on the wrong side of 1": float(sum(len(cell.wrong_signs()) for cell in cells)),
        f"{name}: choices of K": float(len(cells)),
        f"{name}: choices further than one from the best": float(sum(cell.off_by() > 1 for cell in cells)),
    }
    for kind, drafts in (("plain steps", False), ("chains", True)):
        errors = [
            predict_s(law, point) / point.engine_step_s - 1.0 for point in calibration.points
            if not point.excluded and bool(point.draft_config.depth) == drafts
            and (drafts or point.when_off == "not_configured")
        ]  # fmt: skip
        values[f"{name}, {kind}: mean error"] = round(float(np.mean(np.abs(errors))), 4)
        values[f"{name}, {kind}: signed"] = round(float(np.mean(errors)), 4)
    return values


def other_shapes() -> None:
    """The roofline against the points of each measured shape."""
    values: dict[str, Figure] = {}
    rows, met = [], True
    for name, shipped in MEASURED.items():
        calibration = load(shipped)
        law = assumed_for(calibration)
        cells = judged(calibration, law)
        values |= figures_of(name, calibration, law, cells)
        met &= not any(cell.wrong_signs() or cell.off_by() > 1 for cell in cells)
        rows += [{"shape": name} | msgspec.to_builtins(cell, str_keys=True) for cell in cells]
    write(
        "other_shapes",
        claim="whether a roofline (assumed) says rightly that drafting gains or loses, and how many drafts "
        "are best, for FP8 weights and for a mixture of experts",
        value=values,
        unit={OTHERS: "share of the measured step"} | {key: "" for key in values if "error" not in key
                                                      and "signed" not in key},
        target=f"every gain on its side of 1 (ties within {TIE:.0%} left out), every best K within one, at "
        "acceptance as measured, weaker and stronger",
        met=met,
        how="modelled against measured: batch 1 to 128, K = 0 to 4, contexts of 512 and 4,096 (MoE "
        "drafts at batch 4, 16, 32 and 64, one context each, two repeats); random weights, "
        "a head of random weights, synthetic acceptance",
        measured_on="one H200, vLLM 0.32.0 (7B shape, weights fp8_per_tensor; Qwen3-30B-A3B)",
        raw=write_raw("other_shapes.points.jsonl", rows),
    )  # fmt: skip


OTHER_SHAPES = (other_shapes,)
