"""The figures of a training comparison, policy by policy, each with its interval over RL steps."""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.analysis.comparison.pace import against
from tlt.analysis.crosscheck.flags import Flag
from tlt.analysis.ledger import check_accounting
from tlt.analysis.training.acceptance import FrozenPair, acceptance_facts, frozen_pairs
from tlt.analysis.training.equal_lengths import at_equal_lengths
from tlt.analysis.training.facts import (
    AmdahlFacts,
    HeadFacts,
    IdleFacts,
    PhaseFacts,
    PolicyFacts,
    TimeFacts,
    WaitFacts,
)
from tlt.analysis.training.flags import find_flags
from tlt.analysis.training.lengths import length_facts
from tlt.analysis.training.rewards import reward_facts
from tlt.analysis.training.run import TrainRun, TrainSet
from tlt.analysis.training.time import (
    IDLE,
    PHASES,
    USEFUL_IN_TAIL,
    phase_seconds,
    rollout_gpu_seconds,
    step_gpu_seconds,
)
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate, Jackknife, divide

SELF = Estimate(1.0, (1.0, 1.0), "the baseline itself")


class TrainFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a training comparison; the first policy is the baseline."""

    name: str
    steps: int
    policies: tuple[PolicyFacts, ...]
    against_frozen: tuple[FrozenPair, ...]
    flags: tuple[Flag, ...]


def examine(runs: TrainSet) -> TrainFacts:
    """Return all figures. Raises AccountingError if the GPU time of a policy does not add up."""
    baseline = runs.policies[0]
    policies = tuple(_policy(run, baseline) for run in runs.policies)
    return TrainFacts(
        name=runs.name,
        steps=len(baseline.run.steps),
        policies=policies,
        against_frozen=frozen_pairs(runs.policies),
        flags=find_flags(runs, policies),
    )


def _policy(run: TrainRun, baseline: TrainRun) -> PolicyFacts:
    sample, summary = Jackknife(len(run.run.steps)), run.run.summary
    return PolicyFacts(
        policy=run.policy,
        steps=len(run.run.steps),
        kind=summary.kind,
        cost_source=summary.cost_source,
        lengths_source=summary.lengths_source,
        acceptance_source=summary.acceptance_source,
        time=_time(run, baseline, sample),
        idle=_idle(run, sample),
        wait=_wait(run, sample),
        lengths=length_facts(run, baseline),
        rewards=reward_facts(run, baseline),
        acceptance=acceptance_facts(run),
        head=_head(run),
        amdahl=None if run is baseline else _amdahl(run, baseline, sample),
        accounting_error=check_accounting(run.run.summary, run.run.intervals),
    )


def _time(run: TrainRun, baseline: TrainRun, sample: Jackknife) -> TimeFacts:
    step_s, rollout_s, tokens = run.step_s(), run.rollout_s(), run.tokens()
    parts = phase_seconds(run)
    rate = sample.ratio(tokens, rollout_s)
    base = run is baseline
    return TimeFacts(
        step_s=sample.mean(step_s, positive=True),
        rollout_s=sample.mean(rollout_s, positive=True),
        phases=tuple(
            PhaseFacts(
                phase=phase,
                seconds=sample.mean(parts[phase], positive=True),
                share=sample.share(parts[phase], step_s),
            )
            for phase in PHASES
            if parts[phase].any()
        ),
        step_speedup=SELF if base else sample.estimate_ratio(baseline.step_s(), step_s, positive=True),
        rollout_speedup=SELF
        if base
        else sample.estimate_ratio(baseline.rollout_s(), rollout_s, positive=True),
        tokens_per_s=sample.estimate_ratio(tokens, step_s, positive=True),
        rollout_tokens_per_s=sample.estimate(rate, positive=True),
        token_speedup=SELF
        if base
        else sample.estimate(rate / sample.ratio(baseline.tokens(), baseline.rollout_s()), positive=True),
        pace=None if base else against(run.run, baseline.run),
        equal_lengths=at_equal_lengths(run, baseline),
    )


def _idle(run: TrainRun, sample: Jackknife) -> IdleFacts:
    whole, rollout = step_gpu_seconds(run), rollout_gpu_seconds(run)
    idle = sum((whole[cause] for cause in IDLE), np.zeros(sample.count))
    unused = sum((rollout[cause] for cause in IDLE), np.zeros(sample.count))
    used = sum((rollout[cause] for cause in USEFUL_IN_TAIL), np.zeros(sample.count))
    early_gpu_s = float(rollout["logprob"].sum())
    return IdleFacts(
        idle_share=sample.share(idle, run.step_s() * run.run.summary.gpus),
        used_share=sample.share(used, used + unused),
        drafter_gpu_s=float(used.sum()) - early_gpu_s,
        early_logprob_gpu_s=early_gpu_s,
        idle_gpu_s=float(unused.sum()),
        scored_early_share=int(run.updates["scored_early"].sum()) / max(1, len(run.run.responses)),
    )


def _wait(run: TrainRun, sample: Jackknife) -> WaitFacts:
    handover_s = run.updates["handover_s"].to_numpy(np.float64)
    stops = _median_max(run.updates["stop_s"].to_numpy(np.float64))
    publishes = _median_max(run.updates["publish_s"].to_numpy(np.float64))
    return WaitFacts(
        handover_s=sample.mean(handover_s, positive=True),
        handover_share=sample.share(handover_s, run.step_s()),
        handover_median_s=float(np.median(handover_s)),
        handover_max_s=float(handover_s.max()),
        stop_median_s=stops[0],
        stop_max_s=stops[1],
        publish_median_s=publishes[0],
        publish_max_s=publishes[1],
    )


def _median_max(seconds: Floats) -> tuple[float | None, float | None]:
    """Return median and maximum over the steps in which it happened: it takes more than no time."""
    happened = seconds[seconds > 0]
    return (float(np.median(happened)), float(happened.max())) if len(happened) else (None, None)


def _head(run: TrainRun) -> HeadFacts | None:
    heads = run.heads
    if heads.empty:
        return None
    weighed = (
        heads.assign(weighed=heads["loss"] * heads["tokens"]).groupby("step")[["weighed", "tokens"]].sum()
    )
    loss = (weighed["weighed"] / weighed["tokens"].clip(lower=1)).to_numpy(np.float64)
    tokens = int(heads["tokens"].sum())
    return HeadFacts(
        training_steps=len(heads),
        tokens=tokens,
        tokens_per_step=tokens / len(run.run.steps),
        first_loss=float(loss[0]),
        last_loss=float(loss[-1]),
    )


def _amdahl(run: TrainRun, baseline: TrainRun, sample: Jackknife) -> AmdahlFacts:
    share = sample.ratio(baseline.rollout_s(), baseline.step_s())
    rollout = sample.ratio(baseline.rollout_s(), run.rollout_s())
    measured = sample.ratio(baseline.step_s(), run.step_s())
    predicted = amdahl(share, rollout)
    return AmdahlFacts(
        rollout_share=sample.estimate(share),
        rollout_speedup=sample.estimate(rollout, positive=True),
        predicted=sample.estimate(predicted, positive=True),
        measured=sample.estimate(measured, positive=True),
        measured_over_predicted=sample.estimate(measured / predicted, positive=True),
        ceiling=sample.estimate(divide(np.ones_like(share), 1.0 - share), positive=True),
    )


def amdahl(share: Floats, speedup: Floats) -> Floats:
    """Return the speedup of a whole of which `share` became `speedup` times as fast: 1 / ((1 - r) + r / s).

    G. Amdahl, Validity of the single processor approach to achieving large scale computing capabilities,
    AFIPS 1967.
    """
    return np.asarray(1.0 / ((1.0 - share) + share / speedup), dtype=np.float64)
