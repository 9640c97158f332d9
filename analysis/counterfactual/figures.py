"""The policies of a counterfactual: seconds, speedup, idle GPU-hours and money over the observed steps.

A schedule that changes the order of samples trains, in the steps that are simulated, on other responses than
the observed run, and leaves some of the longest behind. Its rollouts are therefore counted as long as if it
had trained on as many tokens. One that leaves much behind at the end is not ranked: more steps would tell.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.analysis.comparison.compare import ComparisonTable, Row
from tlt.analysis.comparison.verdict import Ceiling, ceilings
from tlt.analysis.load import Run, RunSet
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate, mean_difference_s, speedup
from tlt.traces.common.regret import Regrets, regrets_over_steps
from tlt.traces.results.counterfactual import Counterfactual

HOUR_S = 3600.0
LEFT_BEHIND = 0.1  # of the trained responses, under way or put off at the end: more is not ranked


class PolicyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over all simulated steps. Savings are over the observed policy; no price, no money."""

    policy: str
    rank: int  # 1 is the fastest; 0: not ranked
    step_s: float
    rollout_s: float
    token_factor: float  # that its rollouts are counted longer, so that all policies train on as many tokens
    speedup: Estimate
    gpu_hours: float
    idle_gpu_hours: float
    saved_gpu_hours: Estimate
    saved_usd: Estimate | None
    on_policy: str
    keeps_order: bool
    staleness_mean: float
    staleness_max: int
    wasted_share: float
    left_behind: int  # responses under way or put off at the end
    unsettled: bool  # it leaves too much behind to be ranked
    clairvoyant: bool  # it knows lengths in advance: nobody can run it


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All policies, the observed one first, and how far any schedule could go."""

    policies: tuple[PolicyAnswer, ...]
    steps: int
    best: str
    runner_up: str | None
    regrets: Regrets | None  # of `best` among the ranked policies; None: there is no other
    ceilings: tuple[Ceiling, ...]


def answer_of(case: Counterfactual, runs: RunSet, table: ComparisonTable) -> Answer:
    """Return the answer; raises InputError if the runs are not of the same steps."""
    step_s = {run.policy: _counted_s(run, runs) for run in runs.runs}
    ranked = [run.policy for run, row in zip(runs.runs, table.rows, strict=True) if _is_ranked(run, row)]
    order = sorted(
        ranked, key=lambda policy: float(step_s[policy][0].sum())
    )  # stable: the observed one wins a tie
    return Answer(
        policies=tuple(
            _policy(case, (run, runs.runs[0]), row, step_s, order)
            for run, row in zip(runs.runs, table.rows, strict=True)
        ),
        steps=table.steps,
        best=order[0],
        runner_up=order[1] if len(order) > 1 else None,
        regrets=regrets_over_steps({policy: step_s[policy] for policy in ranked}, order[0]),
        ceilings=tuple(ceilings(runs.bounds, runs.runs[0])) if runs.bounds is not None else (),
    )


def token_factor(run: Run, baseline: Run) -> float:
    """Return the baseline's trained tokens over the run's; 1 where each step trains on its own responses."""
    tokens = [float(each.responses["response_tokens"].sum()) for each in (baseline, run)]
    return 1.0 if run.keeps_order() or not tokens[1] else tokens[0] / tokens[1]


def left_behind(run: Run) -> int:
    """Return the responses that are under way or put off at the end of a run."""
    return 0 if run.schedule is None else int(run.schedule[1]["carried_responses"].iloc[-1])


def _is_ranked(run: Run, row: Row) -> bool:
    return not row.schedule.clairvoyant and not _is_unsettled(run)


def _is_unsettled(run: Run) -> bool:
    return left_behind(run) > LEFT_BEHIND * len(run.responses)


def _counted_s(run: Run, runs: RunSet) -> Floats:
    """Return the step times of a run, shape (1 + draws, steps), its rollouts counted by `token_factor`."""
    step_s = runs.step_seconds(run)
    after_s = (run.steps["end_s"] - run.steps["rollout_end_s"]).to_numpy(np.float64)
    counted: Floats = step_s + (token_factor(run, runs.runs[0]) - 1.0) * (step_s - after_s)
    return counted


def _policy(
    case: Counterfactual,
    pair: tuple[Run, Run],
    row: Row,
    step_s: dict[str, Floats],
    order: list[str],
) -> PolicyAnswer:
    """Return the answer of one policy; `pair` is its run and the observed one's."""
    run, observed = pair
    observed_s, own_s = next(iter(step_s.values())), step_s[run.policy]
    gain = speedup(observed_s, own_s)
    saved_s = mean_difference_s(observed_s, own_s)
    if run is observed:
        gain = Estimate(1.0, (1.0, 1.0), "the observed policy itself")
        saved_s = Estimate(0.0, (0.0, 0.0), "the observed policy itself")
    gpu_hours = run.summary.gpus * len(run.steps) / HOUR_S  # of a second a step on all GPUs
    price, factor = case.price_usd_per_gpu_hour, token_factor(run, observed)
    mean_s = float(own_s[0].mean())
    return PolicyAnswer(
        policy=row.policy,
        rank=order.index(row.policy) + 1 if row.policy in order else 0,
        step_s=mean_s,
        rollout_s=mean_s - (row.mean_step_s - row.rollout_s),
        token_factor=factor,
        speedup=gain,
        gpu_hours=gpu_hours * mean_s,
        idle_gpu_hours=row.ledger.category_gpu_s("idle") / HOUR_S,
        saved_gpu_hours=_times(saved_s, gpu_hours),
        saved_usd=None if price is None else _times(saved_s, gpu_hours * price),
        on_policy=row.schedule.on_policy,
        keeps_order=row.schedule.keeps_order,
        staleness_mean=row.schedule.staleness_mean,
        staleness_max=row.schedule.staleness_max,
        wasted_share=row.schedule.wasted_share,
        left_behind=left_behind(run),
        unsettled=_is_unsettled(run),
        clairvoyant=row.schedule.clairvoyant,
    )


def _times(estimate: Estimate, factor: float) -> Estimate:
    if estimate.interval is None:
        return Estimate(factor * estimate.value, None, estimate.reason)
    low, high = estimate.interval
    return Estimate(factor * estimate.value, (factor * low, factor * high), estimate.reason)
