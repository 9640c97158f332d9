"""The table from batch size to draft configuration that is handed to an engine, made from the advice for a
workload.

Each batch size of the advice stands for those between it and the next smaller one: a batch in between drafts
as the larger one would, which costs less when it is wrong. Batches above those that the workload reaches are
judged at the context of the largest reached one. Neighbours share a draft configuration where that loses no
more than a tolerance of tokens per second at any of them: every further draft configuration has graphs of its
own to capture, and a change of draft configuration takes time that the step times do not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import msgspec
import numpy as np

from tlt.sim.advise.advice import BATCHES, advise_at, contexts_by_batch, tokens_when_left
from tlt.sim.advise.best_draft import RankingDraws, engine_step_s, gains_of
from tlt.sim.simulation import Simulation
from tlt.traces.runs.runfolder import BatchAdvice
from tltsched.draft_config import OFF, DraftConfig
from tltsched.policies.base import WhenOff
from tltsched.written.draft_config import parse_draft_config
from tltsched.written.policy_name import policy_of


class TableRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The draft configuration that the table takes at one batch size, and the best one there."""

    draft_config: str
    gain: float  # tokens per second over an engine without speculation configured
    reached: bool  # the workload runs so many requests at once in every step
    best: BatchAdvice


class TableRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A draft configuration for all batches between two, inclusive."""

    first: int
    last: int
    draft_config: str
    rows: tuple[TableRow, ...]


class BatchTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranges that cover 1 to the largest running batch without gaps."""

    when_off: WhenOff
    tolerance: float
    cost_error: float
    cost_error_source: str
    ranges: tuple[TableRange, ...]

    @property
    def policy(self) -> str:
        """The table as a policy: `vllm_table:1-8=4+9-32=0` for chains, `table:1=8_4_48+9=off` for trees."""
        draft_configs = [parse_draft_config(each.draft_config) for each in self.ranges]
        if not all(draft_config.is_chain for draft_config in draft_configs):
            return policy_of("table", [f"{each.first}={each.draft_config}" for each in self.ranges])
        pairs = zip(self.ranges, draft_configs, strict=True)
        return policy_of(
            "vllm_table", [f"{each.first}-{each.last}={draft_config.depth}" for each, draft_config in pairs]
        )

    @property
    def drafts(self) -> bool:
        """Whether any range drafts."""
        return any(each.draft_config != str(OFF) for each in self.ranges)


def batch_table(
    simulation: Simulation,
    draft_configs: Sequence[DraftConfig],
    when_off: WhenOff,
    tolerance: float,
    rng: np.random.Generator,
) -> BatchTable:
    """Return the table over the drafting `draft_configs` and off, up to engine.max_running."""
    contexts, reached = _contexts(simulation)
    advice = advise_at(simulation, contexts, draft_configs, when_off, rng)
    gains = _gains(simulation, draft_configs, when_off, contexts)
    named = [*map(str, draft_configs), str(OFF)]
    ranges, first = [], 1
    for start, stop, draft_config in _cover(gains, tolerance):
        rows = tuple(
            TableRow(
                draft_config=named[draft_config],
                gain=float(gains[index, draft_config]),
                reached=advice.rows[index].requests in reached,
                best=advice.rows[index],
            )
            for index in range(start, stop)
        )
        last = rows[-1].best.requests
        ranges.append(TableRange(first=first, last=last, draft_config=named[draft_config], rows=rows))
        first = last + 1
    return BatchTable(
        when_off=when_off,
        tolerance=tolerance,
        cost_error=advice.cost_error,
        cost_error_source=advice.cost_error_source,
        ranges=tuple(ranges),
    )


def static_draft_config(
    simulation: Simulation, draft_configs: Sequence[DraftConfig]
) -> tuple[DraftConfig, float]:
    """Return the one draft configuration (or off) with the shortest decode of the whole workload, and its
    gain over off.

    Requests run in step: while the batch falls from one size to the next, each emits as many tokens as the
    contexts at the two sizes differ by. A worker's first batch starts from the prompt.
    """
    config = simulation.config
    reached = contexts_by_batch(simulation.trace, config.workers)
    before = float(simulation.trace.rows["prompt_tokens"].mean())
    seconds = dict.fromkeys((OFF, *draft_configs), 0.0)
    for batch in sorted((batch for batch in reached if batch <= config.engine.max_running), reverse=True):
        tokens, middle = reached[batch] - before, (reached[batch] + before) / 2
        emitted = tokens_when_left(simulation, list(seconds), batch)
        for draft_config, each in zip(seconds, emitted.tolist(), strict=True):
            state: WhenOff = "k0" if draft_config.depth else "not_configured"
            engine_step = engine_step_s(simulation.coefficients, draft_config, state, batch, middle)
            seconds[draft_config] += max(tokens, 0.0) * engine_step / each
        before = reached[batch]
    best = min(seconds, key=lambda draft_config: (seconds[draft_config], draft_config))
    return best, seconds[OFF] / seconds[best] if seconds[best] else 1.0


def _contexts(simulation: Simulation) -> tuple[dict[int, float], frozenset[int]]:
    """Return the context at every batch size of the advice up to the largest one, and which are reached."""
    most = simulation.config.engine.max_running
    reached = contexts_by_batch(simulation.trace, simulation.config.workers)
    sizes = sorted({*(batch for batch in BATCHES if batch < most), most})
    known = sorted(reached)
    contexts = {}
    for batch in sizes:
        if batch in reached:
            contexts[batch] = reached[batch]
        elif not known or batch > known[-1]:
            contexts[batch] = reached[known[-1]] if known else _mean_context(simulation)
        else:
            contexts[batch] = float(np.interp(log(batch), np.log(known), [reached[each] for each in known]))
    inside = frozenset(batch for batch in sizes if known and batch <= known[-1])
    return contexts, inside


def _mean_context(simulation: Simulation) -> float:
    rows = simulation.trace.rows
    return float(rows["prompt_tokens"].mean() + rows["response_tokens"].mean())


def _gains(
    simulation: Simulation,
    draft_configs: Sequence[DraftConfig],
    when_off: WhenOff,
    contexts: dict[int, float],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the gains by the fit, [batches, draft configurations + 1]; the last column is off."""
    fit = RankingDraws(np.ones((1, 3)), np.ones((1, len(draft_configs))))
    rows = []
    for batch, context in contexts.items():
        tokens = tokens_when_left(simulation, draft_configs, batch)
        rows.append(gains_of(simulation.coefficients, draft_configs, tokens, batch, context, fit, when_off))
    return np.vstack(rows)


def _cover(
    gains: np.ndarray[tuple[int, int], np.dtype[np.float64]], tolerance: float
) -> list[tuple[int, int, int]]:
    """Return the fewest runs of rows in which one draft configuration is near enough to the best.

    Each is (start, stop, draft configuration).
    """
    share = gains / gains.max(axis=1, keepdims=True)
    near = share >= 1.0 - tolerance
    runs = []
    start = 0
    while start < len(gains):
        stop, kept = start + 1, near[start]
        while stop < len(gains) and (kept & near[stop]).any():
            kept = kept & near[stop]
            stop += 1
        total = np.where(kept, share[start:stop].sum(axis=0), -np.inf)
        runs.append((start, stop, int(np.argmax(total))))
        start = stop
    return runs
