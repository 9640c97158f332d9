"""A calibration: raw step-time points, the fit through them, its residuals, and where all of it comes from.

Files are JSON in the form of `Calibration`. Shipped ones lie in sim/steptimes/calibrations and are rebuilt
from their raw tables by `python -m evidence.calibration_sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import numpy as np

from tlt.sim.steptimes.law import Coefficients
from tlt.traces.catalogue.gpus import canonical_gpu, gpu_of
from tlt.traces.catalogue.models import canonical
from tlt.traces.common.arrays import Floats
from tlt.traces.common.bounds import require_bounds
from tlt.traces.common.shipped import load_named, names_in
from tlt.traces.results.calibration_points import SYNTHETIC, MixedPoint, Point, PrefillPoint, Provenance
from tltsched.errors import InputError

MIXED_NOT_TIMED = {
    "mixed_*, draft_prefill_s_per_token": (
        "derived: an engine step that prefills beside a batch follows from the other terms; none was timed, "
        "and what a drafter takes to read a prompt is left out"
    )
}
CHUNK_TOKENS = 8192.0
SHIPPED = Path(__file__).parent / "calibrations"
Number = TypeVar("Number", int, float)


class Residuals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative errors of the fit, as shares (0.01 is one percent).

    "held out": on the points marked so, which the fit did not see. "leave one out": each point predicted by
    a fit through all the others, for tables too small to give points away.
    """

    validation: Literal["held out", "leave one out"]
    fitted_points: int
    fitted_mean: float
    fitted_max: float
    held_out_points: int
    held_out_median: float
    held_out_mean: float
    held_out_max: float


class Ranges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the points cover. Outside, the model extrapolates and says so."""

    batch: tuple[int, int]  # without drafts
    draft_batch: tuple[int, int]
    context_tokens: tuple[float, float]
    depth: tuple[int, int]
    verify_tokens: tuple[int, int]


class Borrowed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """That the step times are another project's, and how many engine steps of one's own corrected them."""

    table: str
    version: str
    own_points: int


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the simulator needs to know about one engine, model and device."""

    name: str
    provenance: Provenance
    engine: str
    engine_version: str
    device: str
    date: str  # when the points were measured or published
    model: str  # a name of tlt.traces.catalogue.models
    tp: int
    source: str
    licence: str
    notes: tuple[str, ...]
    not_fitted: dict[str, str]  # coefficient -> where its value comes from instead
    coefficients: Coefficients
    residuals: Residuals
    ranges: Ranges
    chunk_tokens: float = CHUNK_TOKENS  # prompt tokens that one engine step prefills at most
    points: tuple[Point, ...]
    prefill_points: tuple[PrefillPoint, ...]
    mixed_points: tuple[MixedPoint, ...] = ()
    settings: str = ""  # of the engine, in words; empty: not recorded
    borrowed: Borrowed | None = None  # None: points and law are of the same engine

    def __post_init__(self) -> None:
        require_bounds(self)
        if self.tp < 1 or not self.chunk_tokens >= 1:
            raise InputError("tp, chunk_tokens", (self.tp, self.chunk_tokens), "1 or more", "calibrate again")
        for name in self.ranges.__struct_fields__:
            low, high = getattr(self.ranges, name)
            if not 0 <= low <= high:
                raise InputError(f"ranges.{name}", (low, high), "a range from 0 on", "calibrate again")
        for name in ("fitted", "held_out"):
            errors = [getattr(self.residuals, f"{name}_{part}") for part in ("mean", "max")]
            if not 0 <= errors[0] <= errors[1] * (1 + 1e-9):
                raise InputError(f"residuals.{name}_mean", errors, "0 to the largest", "calibrate again")

    @property
    def mixes_prefill(self) -> bool:
        """Whether the engine decodes while it prefills, unless told otherwise: SGLang alone does not."""
        return "SGLang" not in self.engine

    @property
    def leaves_sampler_out(self) -> bool:
        """Whether drafts were accepted at given rates, without the sampler that compares distributions.

        That sampler reads the probabilities of the whole vocabulary for each drafted token.
        """
        return any(SYNTHETIC in note for note in self.notes)

    @property
    def drafts_accepted(self) -> str:
        """How drafts were accepted while engine steps were timed, in words; empty where nothing was timed."""
        if self.provenance != "measured":
            return ""
        return "at given rates" if self.leaves_sampler_out else "by the engine's sampler"

    def is_on(self, gpu: str) -> bool:
        """Return whether the device is the GPU of that name."""
        known = gpu_of(self.device)
        return gpu in self.device if known is None else known.name == canonical_gpu(gpu)

    def is_of(self, model: str, gpu: str, tp: int) -> bool:
        """Return whether model, GPU and tensor parallelism are those."""
        return (canonical(self.model), self.tp) == (canonical(model), tp) and self.is_on(gpu)

    def times(self, factor: float) -> Calibration:
        """Return the calibration with all its step times times a factor."""
        return msgspec.structs.replace(self, coefficients=self.coefficients.times(factor))

    def describe(self) -> str:
        """Return one line that says what the step times rest on."""
        engine = f"{self.engine} {self.engine_version}"
        if self.borrowed:
            own = self.borrowed.own_points
            corrected = f"corrected by {own} own points" if own else "not corrected by own points"
            engine = f"{self.borrowed.table} {self.borrowed.version} for {engine}, {corrected}"
        return f"{self.provenance}: {engine}, {self.device}, {self.date} ({self.name})"


def ranges_of(points: Sequence[Point]) -> Ranges:
    """Return what the points that count cover."""
    used = [point for point in points if not point.excluded]
    drafting = [point for point in used if point.draft_config.depth]
    return Ranges(
        batch=_range([point.batch for point in used if not point.draft_config.depth]),
        draft_batch=_range([point.batch for point in drafting]),
        context_tokens=_range([point.context_tokens for point in used]),
        depth=_range([point.draft_config.depth for point in drafting]),
        verify_tokens=_range([point.draft_config.verify_tokens for point in drafting]),
    )


def _range(values: Sequence[Number]) -> tuple[Number, Number]:
    return min(values), max(values)


def predict_s(coefficients: Coefficients, point: Point) -> float:
    """Return the law's engine step time for the conditions of `point`."""
    fixed_s = float(coefficients.fixed_s(point.draft_config, point.when_off, np.float64(point.batch)))
    per_token = coefficients.context_s_per_token(point.draft_config, point.when_off)
    return fixed_s + per_token * point.context_tokens * point.batch


def predict_mixed_s(coefficients: Coefficients, point: MixedPoint) -> float:
    """Return the law's seconds of an engine step that prefills one prompt beside a batch that decodes."""
    draft_config, batch = point.draft_config, point.batch
    fixed_s = float(coefficients.fixed_s(draft_config, point.when_off, np.float64(batch)))
    per_token = coefficients.context_s_per_token(draft_config, point.when_off)
    decode_s = fixed_s + per_token * point.context_tokens * batch
    prompt_tokens = point.prompt_tokens
    return coefficients.mixed_engine_step_s(
        draft_config, point.when_off, batch, decode_s, prompt_tokens, float(prompt_tokens) ** 2
    )


def mixed_errors(coefficients: Coefficients, points: Sequence[MixedPoint]) -> Floats:
    """Return the signed relative error of the law on each engine step that prefilled beside a batch, [n]."""
    return np.array([predict_mixed_s(coefficients, point) / point.engine_step_s - 1.0 for point in points])


def error_of(coefficients: Coefficients, point: Point) -> float:
    """Return the absolute relative error of the law on one point."""
    return abs(predict_s(coefficients, point) / point.engine_step_s - 1.0)


def residuals_of(coefficients: Coefficients, points: Sequence[Point]) -> Residuals:
    """Return the relative errors on the fitted and on the held-out points (there must be some of both)."""
    used = [point for point in points if not point.excluded]
    fitted = [error_of(coefficients, point) for point in used if not point.held_out]
    held_out = [error_of(coefficients, point) for point in used if point.held_out]
    return _residuals("held out", fitted, held_out)


def leave_one_out(
    coefficients: Coefficients, points: Sequence[Point], refit: Callable[[Sequence[Point]], Coefficients]
) -> Residuals:
    """Return the errors of a fit through all points, and of each point under a fit through all others."""
    used = [point for point in points if not point.excluded]
    fitted = [error_of(coefficients, point) for point in used]
    left_out = [error_of(refit([*used[:n], *used[n + 1 :]]), point) for n, point in enumerate(used)]
    return _residuals("leave one out", fitted, left_out)


def _residuals(
    validation: Literal["held out", "leave one out"], fitted: list[float], unseen: list[float]
) -> Residuals:
    return Residuals(
        validation=validation,
        fitted_points=len(fitted),
        fitted_mean=float(np.mean(fitted)),
        fitted_max=max(fitted),
        held_out_points=len(unseen),
        held_out_median=float(np.median(unseen)),
        held_out_mean=float(np.mean(unseen)),
        held_out_max=max(unseen),
    )


def shipped_names() -> tuple[str, ...]:
    """Return the names of the calibrations that come with the package."""
    return names_in(SHIPPED)


def load(name_or_path: str) -> Calibration:
    """Read a shipped calibration by name, or a calibration.json by path; raises InputError."""
    return load_named(
        SHIPPED, name_or_path, Calibration, field="calibration", what="a calibration file",
        again="calibrate again", fix="name one of these or give the path of a calibration.json", things=True,
    )  # fmt: skip


def describe_calibration(calibration: Calibration) -> str:
    """Return a paragraph: origin, errors on fitted and unseen points, ranges, and what was not fitted."""
    residuals, ranges = calibration.residuals, calibration.ranges
    lines = [
        calibration.describe(),
        f"  model {calibration.model}, TP {calibration.tp}",
        f"  source {calibration.source} ({calibration.licence})",
        f"  error on {residuals.fitted_points} fitted points: mean {residuals.fitted_mean:.1%}, "
        f"max {residuals.fitted_max:.1%}",
        f"  error on {residuals.held_out_points} unseen points ({residuals.validation}): "
        f"median {residuals.held_out_median:.1%}, mean {residuals.held_out_mean:.1%}, "
        f"max {residuals.held_out_max:.1%}",
        f"  batch {ranges.batch[0]}-{ranges.batch[1]}, while drafting "
        f"{ranges.draft_batch[0]}-{ranges.draft_batch[1]}, context {ranges.context_tokens[0]:.0f}-"
        f"{ranges.context_tokens[1]:.0f} tokens, depth {ranges.depth[0]}-{ranges.depth[1]}, "
        f"verify {ranges.verify_tokens[0]}-{ranges.verify_tokens[1]} tokens",
        *(f"  note: {note}" for note in calibration.notes),
        *(f"  {name}: {origin}" for name, origin in calibration.not_fitted.items()),
    ]
    return "\n".join(lines)
