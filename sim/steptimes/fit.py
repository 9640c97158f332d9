"""Fits the law of tlt.sim.steptimes.law to raw points by non-negative least squares on relative errors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import exp
from operator import itemgetter

import msgspec
import numpy as np
from scipy.optimize import nnls

from tlt.sim.steptimes.calibration import predict_mixed_s
from tlt.sim.steptimes.experts import ExpertTerm
from tlt.sim.steptimes.law import Coefficients, padded, pieces, without_graph
from tlt.traces.catalogue.shape import ModelShape
from tlt.traces.common.arrays import Floats
from tlt.traces.results.calibration_points import MixedPoint, Point, PrefillPoint


class LawSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is given to the fit rather than found by it."""

    knots_tokens: tuple[float, ...]
    """Ascending; no point lies beyond the last one."""
    least_slope_s_per_token: float
    """Slope that no piece above `compute_bound_tokens` may go below: one token at the peak throughput."""
    open_slope_s_per_token: float
    """Slope beyond the last knot, where there are no points."""
    compute_bound_tokens: float = 512.0
    graph_tokens: float | None
    chunk_tokens: float
    kv_s_per_token: float | None = None  # fixed instead of fitted, where the points have one context only
    prefill_s_per_pair: float | None = 0.0
    """None: fitted."""
    verified_terms: bool = False
    """Fit draft_s_per_token and kv_s_per_verified_token, too; otherwise they are 0."""
    graph_batches: tuple[int, ...] = ()


SKEWS = tuple(round(0.1 * step, 1) for step in range(21))  # of routing, that points may show


def _features(
    point: Point, settings: LawSettings, shape: ModelShape, experts: ExpertTerm | None
) -> list[float]:
    """Return one row of the design matrix; its columns are in the order in which `_fit` unpacks them."""
    draft_config, batch = point.draft_config, float(padded(point.batch, settings.graph_batches))
    tokens = batch * draft_config.verify_tokens
    drafting, off = draft_config.depth > 0, draft_config.depth == 0 and point.when_off == "k0"
    drafter_passes = draft_config.depth if drafting else int(off)
    held = point.context_tokens * point.batch
    verified = float(settings.verified_terms)
    return [
        1.0,
        *(float(piece) for piece in pieces(np.asarray(tokens), settings.knots_tokens)),
        held * (1 + drafter_passes / shape.cache_layers()),
        float(off),
        float(off) * batch,
        float(drafting),
        float(draft_config.depth),
        float(draft_config.depth) * batch * draft_config.topk,
        float(without_graph(tokens, settings.graph_tokens)),
        verified * float(drafting) * tokens,
        verified * held * (draft_config.verify_tokens - 1),
        float(experts.seconds(tokens)) if experts else 0.0,
    ]


def _solve(rows: Floats, seconds: Floats, scale_s: Floats) -> Floats:
    """Minimise the relative error with all coefficients >= 0; columns are scaled for conditioning."""
    column = np.abs(rows).max(axis=0)
    column[column == 0.0] = 1.0
    solution, _ = nnls(rows / column / scale_s[:, None], seconds / scale_s)
    return np.asarray(solution / column, np.float64)


def fit_prefill(points: Sequence[PrefillPoint], settings: LawSettings) -> tuple[float, float, float]:
    """Return seconds per chunk, per token, and per pair of tokens, which the settings may give."""
    tokens = np.array([point.batch * point.prompt_tokens for point in points], np.float64)
    pairs = np.array([point.batch * point.prompt_tokens**2 for point in points], np.float64)
    seconds = np.array([point.prefill_s for point in points])
    given_s = settings.prefill_s_per_pair
    fitted_pairs = pairs if given_s is None else np.zeros_like(pairs)
    rows = np.stack([np.ceil(tokens / settings.chunk_tokens), tokens, fitted_pairs], axis=1)
    remaining = np.maximum(seconds - (given_s or 0.0) * pairs, 0.0)
    chunk_s, token_s, pair_s = map(float, _solve(rows, remaining, seconds))
    return chunk_s, token_s, pair_s if given_s is None else given_s


CHI_SQUARE_95 = 3.84  # of one parameter
SHARES = np.linspace(0.0, 2.0, 81)  # of a token to verify that a prompt's token may cost


def fit_mixed(
    coefficients: Coefficients, points: Sequence[MixedPoint], in_graphs: bool = False
) -> Coefficients:
    """Return the law with the terms that measured engine steps which prefill beside a batch decide.

    The points that are not held out decide, by least squares on relative errors; no term is negative, and the
    least time of the host is one that was measured, or nothing. `in_graphs`: such engine steps have CUDA
    graphs up to the law's largest; the host then has a time of its own beyond. Points whose host is the
    slower part say little of the share: of those in its 95 % interval (profile likelihood) the nearest to 1
    is taken, as it is derived where nothing was measured. A drafter is assumed to read a prompt no faster
    than one layer of the target does.
    """
    used = [point for point in points if not point.held_out]
    if not used:
        return coefficients
    seconds = np.array([point.engine_step_s for point in used])
    layer_s = one_layer_s(coefficients)
    columns = np.array([[1.0, point.batch, _drafter_tokens(coefficients, point)] for point in used])
    target_s = seconds - layer_s * columns[:, 2]
    past = np.array([in_graphs and _past_graphs(coefficients, point) for point in used])
    hosts = list(product(_hosts_s(target_s[~past]), _hosts_s(target_s[past])))
    hosts_s = np.array([np.where(past, beyond_s, within_s) for within_s, beyond_s in hosts])
    found = []
    for share in SHARES.tolist():
        law = msgspec.structs.replace(
            coefficients, mixed_s=0.0, mixed_s_per_request=0.0, mixed_host_s=0.0, mixed_eager_host_s=None,
            mixed_token_share=share, draft_prefill_s_per_token=0.0,
        )  # fmt: skip
        alone_s = np.array([predict_mixed_s(law, point) for point in used])
        beyond = (target_s - np.maximum(hosts_s, alone_s)) / seconds
        squares, terms = _not_negative(columns / seconds[:, None], beyond)
        best = int(np.argmin(squares))
        found.append((float(squares[best]), share, *hosts[best], *terms[best].tolist()))
    most = min(found)[0] * exp(CHI_SQUARE_95 / len(used))
    alike = [each for each in found if each[0] <= most]
    _, share, host_s, eager_s, constant_s, request_s, token_s = min(
        alike, key=lambda each: abs(each[1] - 1.0)
    )
    return msgspec.structs.replace(
        coefficients, mixed_s=constant_s, mixed_s_per_request=request_s, mixed_host_s=host_s,
        mixed_eager_host_s=max(host_s, eager_s) if past.any() else None, mixed_token_share=share,
        draft_prefill_s_per_token=layer_s + token_s,
    )  # fmt: skip


def one_layer_s(law: Coefficients) -> float:
    """Return the seconds a token that one layer of the target takes to read a prompt."""
    return law.drafter_kv_share * law.prefill_s_per_token


def _hosts_s(seconds: Floats) -> list[float]:
    return [0.0, *np.unique(seconds).tolist()]


def _past_graphs(law: Coefficients, point: MixedPoint) -> bool:
    tokens = point.batch * point.draft_config.verify_tokens + point.prompt_tokens
    return law.past_graphs(tokens, point.draft_config, point.when_off)


def _drafter_tokens(law: Coefficients, point: MixedPoint) -> float:
    """Return how many tokens of the prompt a drafter reads: all, where one is loaded."""
    a_token = msgspec.structs.replace(law, draft_prefill_s_per_token=1.0)
    return a_token.drafter_reads_s(point.draft_config, point.when_off, point.prompt_tokens)


def _not_negative(columns: Floats, wanted: Floats) -> tuple[Floats, Floats]:
    """Return what the best factors >= 0 leave, [rows], and these factors, [rows, n].

    `columns` are [points, n], `wanted` [rows, points]. What is left are squares, times a charge for each
    factor that is not 0, so that one that its points hardly show stays out: it would be extended to larger
    batches. The best of all subsets of columns is what is sought, and few columns have few subsets.
    """
    count = columns.shape[1]
    left, factors = (wanted**2).sum(axis=1), np.zeros((len(wanted), count))
    for chosen in product((False, True), repeat=count):
        some = columns[:, chosen]
        solution = wanted @ np.linalg.pinv(some).T
        squares = ((wanted - solution @ some.T) ** 2).sum(axis=1)
        charged = squares * exp(CHI_SQUARE_95 * sum(chosen) / len(columns))
        better = (charged < left) & (solution >= 0.0).all(axis=1)
        left[better] = charged[better]
        factors[better] = 0.0
        factors[np.ix_(better, chosen)] = solution[better]
    return left, factors


def _given(settings: LawSettings) -> Floats:
    """Return what is known of (floor, slopes) before the fit: lower bounds, and the open slope."""
    bounds = [
        settings.least_slope_s_per_token if knot >= settings.compute_bound_tokens else 0.0
        for knot in settings.knots_tokens[:-1]
    ]
    return np.array([0.0, *bounds, settings.open_slope_s_per_token])


def fit(
    points: Sequence[Point], prefill: Sequence[PrefillPoint], settings: LawSettings, shape: ModelShape
) -> Coefficients:
    """Return the coefficients that fit all points neither held out nor excluded.

    For a mixture of experts the skew of its routing is the one of SKEWS under which the law fits best.
    """
    used = [point for point in points if not point.held_out and not point.excluded]
    terms = [_expert_term(shape, skew) for skew in SKEWS] if shape.experts else [None]
    return min((_fit(used, prefill, settings, shape, term) for term in terms), key=itemgetter(0))[1]


def _expert_term(shape: ModelShape, skew: float) -> ExpertTerm | None:
    """Return the term of a shape's experts, which takes a second for all of them."""
    experts = shape.experts
    if experts is None:
        return None
    return ExpertTerm(count=experts.count, per_token=experts.per_token, read_s=1.0, skew=skew)


def _fit(
    used: Sequence[Point],
    prefill: Sequence[PrefillPoint],
    settings: LawSettings,
    shape: ModelShape,
    experts: ExpertTerm | None,
) -> tuple[float, Coefficients]:
    """Return the sum of squared relative errors, and the coefficients, for one routing of experts."""
    rows = np.array([_features(point, settings, shape, experts) for point in used])
    seconds = np.array([point.engine_step_s for point in used])
    kv_column = 1 + len(settings.knots_tokens)
    given = _given(settings)
    fitted = seconds - rows[:, :kv_column] @ given
    rows[:, kv_column - 1] = 0.0  # the open piece is given
    if settings.kv_s_per_token is not None:
        fitted -= settings.kv_s_per_token * rows[:, kv_column]
        rows[:, kv_column] = 0.0
    solution = _solve(rows, fitted, seconds)
    squares = float((((rows @ solution - fitted) / seconds) ** 2).sum())
    target = solution[:kv_column] + given
    kv_s = settings.kv_s_per_token if settings.kv_s_per_token is not None else float(solution[kv_column])
    off_s, off_request_s, draft_s, pass_s, pass_request_s, eager_s, token_s, verified_s, experts_s = map(
        float, solution[kv_column + 1 :]
    )
    chunk_s, prompt_s, pair_s = fit_prefill(prefill, settings)
    return squares, Coefficients(
        knots_tokens=settings.knots_tokens,
        floor_s=float(target[0]),
        slopes_s_per_token=tuple(target[1:].tolist()),
        kv_s_per_token=kv_s,
        drafter_kv_share=1 / shape.cache_layers(),
        off_s=off_s,
        off_s_per_request=off_request_s,
        draft_s=draft_s,
        draft_pass_s=pass_s,
        draft_pass_s_per_request=pass_request_s,
        graph_tokens=settings.graph_tokens,
        eager_s=eager_s,
        prefill_chunk_s=chunk_s,
        prefill_s_per_token=prompt_s,
        prefill_s_per_pair=pair_s,
        draft_s_per_token=token_s,
        kv_s_per_verified_token=verified_s,
        graph_batches=settings.graph_batches,
        experts=experts and experts.times(experts_s),
    )
