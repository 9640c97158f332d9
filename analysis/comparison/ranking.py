"""The answer of runs on the same lengths: who is ranked by what, and which policy to run.

Every study that ranks runs, whatever command made it, has its answer from here.
"""

from __future__ import annotations

import msgspec

from tlt.analysis.comparison.compare import ComparisonTable, Row
from tlt.analysis.comparison.premises import acceptance_range
from tlt.analysis.comparison.verdict import Told, ceiling_sentence, ceilings, covers_sentence, sentences_of
from tlt.analysis.load import Run, RunSet
from tlt.traces.common.intervals import Estimate, mean_difference_s, speedup
from tlt.traces.common.regret import Regrets, regrets_over_steps
from tlt.traces.results.answer import Answer, PolicyAnswer
from tlt.traces.results.answer import unranked as why_unranked

HOUR_S = 3600.0


def judge(table: ComparisonTable, runs: RunSet, price: float | None = None) -> Answer:
    """Return the answer over a table and the runs it was made from; `price` is USD per GPU-hour.

    A single run has no rival. One that knows lengths in advance, leaves too much behind, or was measured
    while a worker stood still is none, unless it is the baseline; nothing is held against a baseline that
    stood still. The best policy is recommended if its gain's interval lies above 1.
    """
    rows = {row.policy: row for row in table.rows}
    baseline = table.rows[0]
    by_token = any(row.token_factor != 1.0 for row in table.rows)
    total_s = {run.policy: float(runs.counted_seconds(run)[0].sum()) for run in runs.runs}
    ranked = [row.policy for row in table.rows if row is baseline or not unranked(row, baseline)]
    order = sorted(ranked, key=lambda policy: total_s[policy])  # stable: the baseline wins a tie
    best = rows[order[0]]
    is_gain = best is not baseline and best.speedup.above(1.0)
    recommended = best if is_gain else baseline
    regrets = _regrets(runs, ranked, recommended.policy)
    assumed = acceptance_range(runs.what_if, best, baseline)
    told = Told(table, runs, best, is_gain, by_token, regrets, ranked, assumed)
    said = sentences_of(told)
    return Answer(
        unit="s a million trained tokens" if by_token else "s a step",
        by_token=by_token,
        steps=table.steps,
        baseline=baseline.policy,
        best=best.policy,
        runner_up=order[1] if len(order) > 1 else None,
        recommended=recommended.policy,
        is_gain=is_gain,
        gain=best.speedup,
        regrets=regrets,
        policies=tuple(
            _policy(run, rows[run.policy], baseline, runs, by_token, order, price) for run in runs.runs
        ),
        acceptance=assumed,
        ceilings=tuple(ceilings(runs.bounds, runs.runs[0])) if runs.bounds is not None else (),
        headline=said[0],
        sentence=" ".join(said),
        covers=covers_sentence(told),
        ceiling=ceiling_sentence(runs.bounds, runs.runs[0]) if len(rows) > 1 else "",
    )


def unranked(row: Row, baseline: Row) -> str:
    """Return why a policy cannot be ranked; empty: it can."""
    for each in (row, baseline):
        if each.stood_still:
            return f"a worker of {each.policy} stood still for {each.stood_still}: measure it again"
    return why_unranked(row.schedule.clairvoyant, row.left_behind, row.unsettled)


def _regrets(runs: RunSet, ranked: list[str], recommended: str) -> Regrets | None:
    counted = {run.policy: runs.counted_seconds(run) for run in runs.runs if run.policy in ranked}
    return regrets_over_steps(counted, recommended)


def _policy(
    run: Run, row: Row, baseline: Row, runs: RunSet, by_token: bool, order: list[str], price: float | None
) -> PolicyAnswer:
    base = runs.runs[0]
    why = "" if row.policy in order else unranked(row, baseline)
    counted_s, base_s = runs.counted_seconds(run), runs.counted_seconds(base)
    saved_s, gain = mean_difference_s(base_s, counted_s), speedup(base_s, counted_s)
    if run is base:
        gain = Estimate(1.0, (1.0, 1.0), "the baseline itself")
        saved_s = Estimate(0.0, (0.0, 0.0), "the baseline itself")
    mean_s = float(counted_s[0].mean()) if len(run.steps) else 0.0
    gpu_hours = run.summary.gpus * len(run.steps) / HOUR_S  # of a second a step on all GPUs
    per_token_s = row.schedule.seconds_per_million_tokens
    return PolicyAnswer(
        policy=row.policy,
        rank=order.index(row.policy) + 1 if row.policy in order else 0,
        unranked=why,
        figure=per_token_s if by_token else mean_s,
        step_s=mean_s,
        rollout_s=row.rollout_s * row.token_factor,
        token_factor=row.token_factor,
        trained_tokens=row.schedule.trained_tokens,
        speedup=gain,
        gpu_hours=gpu_hours * mean_s,
        idle_share=row.idle_share,
        idle_gpu_hours=row.ledger.category_gpu_s("idle") / HOUR_S,
        saved_gpu_hours=_times(saved_s, gpu_hours),
        saved_usd=None if price is None else _times(saved_s, gpu_hours * price),
        on_policy=row.schedule.on_policy,
        keeps_order=row.schedule.keeps_order,
        staleness_mean=row.schedule.staleness_mean,
        staleness_max=row.schedule.staleness_max,
        wasted_share=row.schedule.wasted_share,
        left_behind=row.left_behind,
        unsettled=row.unsettled,
        clairvoyant=row.schedule.clairvoyant,
    )


def _times(estimate: Estimate, factor: float) -> Estimate:
    if estimate.interval is None:
        return Estimate(factor * estimate.value, None, estimate.reason)
    low, high = estimate.interval
    scaled = (factor * low, factor * high)
    return msgspec.structs.replace(estimate, value=factor * estimate.value, interval=scaled)
