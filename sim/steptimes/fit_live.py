"""Fits the law to the points that calibrating a live engine left, and says how well it fits.

What is found by the fit and what is given differs by device. On a GPU whose data sheet is known
(tlt.traces.catalogue) no piece above 512 tokens an engine step is cheaper than the peak throughput allows,
the open slope is the roofline's, and so is the pair term of prefill. On anything else nothing is given: the
open slope continues the last fitted piece. Residuals by draft configuration and the tax of a speculation that
is off stand in the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec
import numpy as np

from tlt.sim.steptimes.calibration import (
    MIXED_NOT_TIMED,
    Calibration,
    Residuals,
    leave_one_out,
    mixed_errors,
    predict_s,
    ranges_of,
    residuals_of,
)
from tlt.sim.steptimes.fit import LawSettings, fit, fit_mixed, one_layer_s
from tlt.sim.steptimes.law import Coefficients, padded
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.traces.catalogue.gpus import GpuSpec, gpu_of
from tlt.traces.catalogue.models import model_shape
from tlt.traces.catalogue.shape import ModelShape
from tlt.traces.results.calibration_points import MeasuredPoints, MixedPoint, Point
from tltsched.draft_config import OFF
from tltsched.errors import InputError

POOR_FIT = 0.05  # mean error on unseen points above which the notes warn
LEAST_POINTS = 4
BEYOND_GPU = "assumed: roofline; no point reads more tokens in an engine step"
ONE_LAYER = "assumed: a drafter reads a prompt as fast as one layer of the target; the points show no more"
BEYOND_FITTED = "assumed: the last fitted slope goes on; no point reads more tokens in an engine step"


def fit_points(measured: MeasuredPoints) -> Calibration:
    """Return the calibration of `measured`; raises InputError if it holds too little for a fit."""
    shape = model_shape(measured.model, "model")
    _check(measured)
    gpu = gpu_of(measured.device)
    assumed = roofline(shape, gpu, Parallel(tp=measured.tp), Assumptions()) if gpu else None
    settings = _settings(measured, assumed, _peak_s_per_token(shape, gpu, measured.tp))

    def refit(some: Sequence[Point]) -> Coefficients:
        fitted = fit(some, measured.prefill_points, settings, shape)
        whole = fitted if gpu else _continued(fitted)
        whole = msgspec.structs.replace(whole, plain_graph_tokens=measured.plain_graph_tokens)
        # An engine that was told which batches to capture has graphs for decode alone.
        return fit_mixed(whole, measured.mixed_points, in_graphs=not measured.graph_batches)

    coefficients = refit(measured.points)
    residuals = _residuals(coefficients, measured.points, refit)
    not_fitted = {"last slope": BEYOND_GPU if gpu else BEYOND_FITTED}
    if not measured.mixed_points:
        not_fitted |= MIXED_NOT_TIMED
    elif coefficients.draft_prefill_s_per_token == one_layer_s(coefficients):
        not_fitted["draft_prefill_s_per_token"] = ONE_LAYER
    if gpu:
        not_fitted["prefill_s_per_pair"] = "assumed: roofline; it hides behind the other terms"
    return Calibration(
        name=measured.name,
        provenance="measured",
        engine=measured.engine,
        engine_version=measured.engine_version,
        device=measured.device,
        date=measured.date,
        model=measured.model,
        tp=measured.tp,
        source="points.json of the same calibration",
        licence=measured.licence,
        notes=(*measured.notes, *_notes(measured, coefficients, residuals)),
        not_fitted=not_fitted,
        coefficients=coefficients,
        residuals=residuals,
        ranges=ranges_of(measured.points),
        chunk_tokens=measured.chunk_tokens,
        points=measured.points,
        prefill_points=measured.prefill_points,
        mixed_points=measured.mixed_points,
        settings=measured.settings,
    )


def _check(measured: MeasuredPoints) -> None:
    used = [point for point in measured.points if not (point.held_out or point.excluded)]
    plain = [point for point in used if point.draft_config == OFF and point.when_off == "not_configured"]
    if len(plain) < LEAST_POINTS or not measured.prefill_points:
        got = f"{len(plain)} plain points and {len(measured.prefill_points)} of prefill"
        fix = "raise calibration.time_limit_s or calibration.batches"
        raise InputError("calibration points", got, f"{LEAST_POINTS} plain points and prefill, or more", fix)


def _settings(measured: MeasuredPoints, assumed: Coefficients | None, peak_s: float) -> LawSettings:
    return LawSettings(
        knots_tokens=knots(measured.points, measured.graph_batches),
        least_slope_s_per_token=peak_s,
        open_slope_s_per_token=assumed.slopes_s_per_token[-1] if assumed else 0.0,
        graph_tokens=measured.graph_tokens,
        chunk_tokens=measured.chunk_tokens,
        prefill_s_per_pair=assumed.prefill_s_per_pair if assumed else None,
        verified_terms=True,
        graph_batches=measured.graph_batches,
    )


def knots(points: Sequence[Point], graph_batches: tuple[int, ...]) -> tuple[float, ...]:
    """Return the ends of the pieces: the least tokens an engine step, powers of two, and the most.

    Every piece has two fitted values or more.
    """
    fitted = [point for point in points if not (point.held_out or point.excluded)]
    tokens = sorted(
        {float(padded(point.batch, graph_batches)) * point.draft_config.verify_tokens for point in fitted}
    )
    chosen = [tokens[0]]
    power = 2.0
    while power < tokens[-1]:
        inside = sum(chosen[-1] < value <= power for value in tokens)
        above = sum(value > power for value in tokens)
        if power > chosen[-1] and inside >= 2 and above >= 2:
            chosen.append(power)
        power *= 2
    return (*chosen, tokens[-1]) if tokens[-1] > chosen[-1] else tuple(chosen)


def _peak_s_per_token(shape: ModelShape, gpu: GpuSpec | None, tp: int) -> float:
    """Return the seconds of one token's matrix products at the data-sheet peak; 0 where it is not known."""
    if gpu is None:
        return 0.0
    return sum(
        2 * parameters / (gpu.flops(products) * tp)
        for products, parameters in shape.active_by_products().items()
    )


def _continued(fitted: Coefficients) -> Coefficients:
    """Let the last fitted slope go on past the last knot."""
    slopes = fitted.slopes_s_per_token
    if len(slopes) < 2:
        return fitted
    return msgspec.structs.replace(fitted, slopes_s_per_token=(*slopes[:-1], slopes[-2]))


def _residuals(
    coefficients: Coefficients, points: Sequence[Point], refit: Callable[[Sequence[Point]], Coefficients]
) -> Residuals:
    if any(point.held_out for point in points):
        return residuals_of(coefficients, points)
    return leave_one_out(coefficients, points, refit)


def _notes(measured: MeasuredPoints, coefficients: Coefficients, residuals: Residuals) -> list[str]:
    notes = []
    if residuals.held_out_mean > POOR_FIT:
        notes.append(
            f"the law fits poorly: mean error on unseen points {residuals.held_out_mean:.1%}, "
            f"worst {residuals.held_out_max:.1%}"
        )
    notes.append(
        f"error by draft configuration (mean, signed): "
        f"{_errors_by_draft_config(measured.points, coefficients)}"
    )
    spread = median(point.spread_s / point.engine_step_s for point in measured.points)
    notes.append(f"spread of the repeats (quartiles): {spread:.1%} of an engine step at the median point")
    if measured.mixed_points:
        notes.append(_mixed_note(measured.mixed_points, coefficients))
    if coefficients.experts is not None:
        experts = coefficients.experts
        notes.append(
            f"experts: {experts.read_s * 1e3:.2f} ms where a step wakes all {experts.count}, the n-th "
            f"likeliest taken as often as n ** -{experts.skew:g} (fitted, beside straight pieces)"
        )
    tax = off_tax(measured.points)
    if tax:
        notes.append("K = 0 over no speculation configured: " + _by_batch(tax))
    notes += _switch_notes(measured)
    if measured.compiled_engine_steps:
        notes.append(
            f"{measured.compiled_engine_steps} engine steps dropped since something was compiled in them"
        )
    return notes


def _mixed_note(points: Sequence[MixedPoint], coefficients: Coefficients) -> str:
    """Say how well engine steps that prefill beside a batch are met, those held out from the fit apart."""
    parts = []
    for text, held_out in (("fitted", False), ("unseen", True)):
        errors = mixed_errors(coefficients, [point for point in points if point.held_out == held_out])
        if len(errors):
            mean, signed = float(np.mean(np.abs(errors))), float(np.mean(errors))
            parts.append(f"{len(errors)} {text} points {mean:.1%} ({signed:+.1%})")
    return "prefill beside decode, mean error (signed): " + ", ".join(parts)


def off_tax(points: Sequence[Point]) -> dict[int, float]:
    """Return by batch what K = 0 takes over no speculation configured, as a share; median over contexts.

    The two are compared where the same batch was measured in both, at the closest contexts.
    """
    plain = [point for point in points if point.draft_config == OFF and point.when_off == "not_configured"]
    taxes: dict[int, list[float]] = {}
    for point in points:
        same = [other for other in plain if other.batch == point.batch]
        if point.draft_config == OFF and point.when_off == "k0" and same:
            nearest = min(same, key=lambda other: abs(other.context_tokens - point.context_tokens))
            taxes.setdefault(point.batch, []).append(point.engine_step_s / nearest.engine_step_s - 1.0)
    return {batch: median(values) for batch, values in sorted(taxes.items())}


def _errors_by_draft_config(points: Sequence[Point], coefficients: Coefficients) -> str:
    errors: dict[str, list[float]] = {}
    for point in points:
        name = "plain" if point.when_off == "not_configured" else f"K={point.draft_config.depth}"
        errors.setdefault(name, []).append(predict_s(coefficients, point) / point.engine_step_s - 1.0)
    return ", ".join(
        f"{name} {np.mean(np.abs(values)):.1%} ({np.mean(values):+.1%})" for name, values in errors.items()
    )


def _by_batch(shares: dict[int, float]) -> str:
    return ", ".join(f"batch {batch} {share:+.1%}" for batch, share in shares.items())


def _switch_notes(measured: MeasuredPoints) -> list[str]:
    """Say what going from off to the longest chain and back costs, as a median over batches."""
    longest = max((switch.to_k for switch in measured.switch_points), default=0)
    ways = {
        (from_k, to_k): [
            switch.extra_s
            for switch in measured.switch_points
            if (switch.from_k, switch.to_k) == (from_k, to_k)
        ]
        for from_k, to_k in ((0, longest), (longest, 0))
    }
    if not longest or not all(ways.values()):
        return []
    there, back = (median(seconds) * 1e3 for seconds in ways.values())
    return [f"a switch takes {there:+.2f} ms, K = 0 to {longest} and {back:+.2f} ms back (not in the law)"]
