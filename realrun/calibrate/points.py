"""Turns the repeats of a calibration into points: medians, spreads, and what is held out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from tlt.realrun.calibrate.measurement_plan import Arrival, Cell, Plan
from tlt.realrun.calibrate.time_steps import Block, EngineKind, MixedBlock, PrefillBlock
from tlt.traces.common.arrays import Floats
from tlt.traces.results.calibration_points import MixedPoint, Point, PrefillPoint, SwitchPoint
from tltsched.draft_config import chain

GROWTH_THAT_SHOWS = 0.1  # relative growth of a batch's context over its repeats that is corrected for


def to_points(blocks: Sequence[Block], plan: Plan) -> tuple[Point, ...]:
    """Return a point for each engine, cell and K, in this order.

    The context of a batch grows from repeat to repeat. Where it grows by a tenth or more, all K of the cell
    share one slope of time over context, fitted inside each K; the repeats are moved along it to their mean
    context before the median and the spread are taken.
    """
    groups: dict[tuple[EngineKind, Cell], list[Block]] = defaultdict(list)
    for block in blocks:
        if block.engine_steps:
            groups[block.engine, block.cell].append(block)
    points: list[Point] = []
    for kind in ("plain", "speculating"):
        for cell in plan.cells:
            points += _cell_points(groups.get((kind, cell), []), plan)
    return tuple(points)


def _cell_points(blocks: list[Block], plan: Plan) -> list[Point]:
    slope = _slope(blocks)
    points = []
    for k in sorted({block.k for block in blocks}):
        same = [block for block in blocks if block.k == k]
        context = np.array([block.context_tokens for block in same])
        seconds = np.array([block.seconds for block in same]) - slope * (context - context.mean())
        median_s, spread_s = median_and_spread(seconds)
        points.append(
            Point(
                provenance="measured",
                when_off="not_configured" if same[0].engine == "plain" else "k0",
                draft_config=chain(k),
                batch=same[0].cell.batch,
                context_tokens=float(context.mean()),
                engine_step_s=median_s,
                repeats=len(same),
                spread_s=spread_s,
                held_out=plan.held_out(same[0].cell, k),
            )
        )
    return points


def _slope(blocks: list[Block]) -> float:
    """Return the seconds that a token more of each request's context adds, 0 if the growth does not show."""
    context = np.array([block.context_tokens for block in blocks], np.float64)
    if len(blocks) < 3 or np.ptp(context) < GROWTH_THAT_SHOWS * context.mean():
        return 0.0
    seconds = np.array([block.seconds for block in blocks], np.float64)
    for k in {block.k for block in blocks}:
        same = np.array([block.k == k for block in blocks])
        context[same] -= context[same].mean()
        seconds[same] -= seconds[same].mean()
    squares = float(context @ context)
    return max(float(context @ seconds) / squares, 0.0) if squares else 0.0


def to_prefill_points(blocks: Sequence[PrefillBlock]) -> tuple[PrefillPoint, ...]:
    """Return a point a cell; repeats in which something was compiled are left out."""
    groups: dict[tuple[int, int], list[float]] = defaultdict(list)
    for block in blocks:
        if not block.compiled:
            groups[block.cell.batch, block.cell.prompt_tokens].append(block.seconds)
    points = []
    for (batch, prompt_tokens), seconds in sorted(groups.items()):
        median_s, spread_s = median_and_spread(seconds)
        points.append(
            PrefillPoint(
                batch=batch,
                prompt_tokens=prompt_tokens,
                prefill_s=median_s,
                repeats=len(seconds),
                spread_s=spread_s,
            )
        )
    return tuple(points)


def to_mixed_points(blocks: Sequence[MixedBlock], plan: Plan) -> tuple[MixedPoint, ...]:
    """Return a point for each engine, arrival and K; repeats in which something was compiled are left out."""
    groups: dict[tuple[EngineKind, Arrival, int], list[MixedBlock]] = defaultdict(list)
    for block in blocks:
        if not block.compiled:
            groups[block.engine, block.arrival, block.k].append(block)
    points = []
    for (kind, arrival, k), same in groups.items():
        median_s, spread_s = median_and_spread([block.seconds for block in same])
        points.append(
            MixedPoint(
                when_off="not_configured" if kind == "plain" else "k0",
                draft_config=chain(k),
                batch=arrival.cell.batch,
                context_tokens=float(np.mean([block.context_tokens for block in same])),
                prompt_tokens=arrival.prompt_tokens,
                engine_step_s=median_s,
                repeats=len(same),
                spread_s=spread_s,
                held_out=plan.mixed_held_out(arrival, k),
            )
        )
    return tuple(points)


def to_switch_points(blocks: Sequence[Block]) -> tuple[SwitchPoint, ...]:
    """Return a point for each change of K at each batch size, over all contexts."""
    groups: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for block in blocks:
        if block.before_k != block.k and block.engine_steps and block.settle_s:
            extra_s = sum(block.settle_s) - len(block.settle_s) * block.seconds
            groups[block.before_k, block.k, block.cell.batch].append(extra_s)
    points = []
    for (from_k, to_k, batch), seconds in sorted(groups.items()):
        extra_s, spread_s = median_and_spread(seconds)
        points.append(
            SwitchPoint(
                from_k=from_k,
                to_k=to_k,
                batch=batch,
                extra_s=extra_s,
                repeats=len(seconds),
                spread_s=spread_s,
            )
        )
    return tuple(points)


def median_and_spread(seconds: Iterable[float] | Floats) -> tuple[float, float]:
    """Return the median and the distance between the quartiles (0 for a single value)."""
    low, median, high = np.quantile(np.asarray(list(seconds)), [0.25, 0.5, 0.75])
    return float(median), float(high - low)
