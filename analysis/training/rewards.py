"""Rewards over a training run, and whether policies differ in them.

All policies ask the same prompts in the same steps, so they are paired by (step, prompt group). Intervals are
over prompt groups: they say how much a mean varies with the prompts asked, not how much
a second training run with other seeds would differ.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd

from tlt.analysis.training.run import TrainRun
from tlt.traces.common.intervals import Estimate, Jackknife

FINAL_SHARE = 3  # the last third of the steps stands for where training has come to


class StepReward(msgspec.Struct, frozen=True, kw_only=True):
    """The mean over the prompt groups of one RL step."""

    step: int
    reward: Estimate


class RewardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of one policy; differences are this policy less the baseline, and None for the baseline."""

    by_step: tuple[StepReward, ...]
    first: Estimate  # mean over the first `final_steps` steps
    final: Estimate  # and over the last
    final_steps: int
    final_difference: Estimate | None
    difference: Estimate | None  # over all steps


def reward_facts(run: TrainRun, baseline: TrainRun) -> RewardFacts:
    """Return the rewards of a policy, against those of the baseline."""
    groups, theirs = group_rewards(run), group_rewards(baseline)
    steps = run.run.steps["step"].tolist()
    count = max(1, len(steps) // FINAL_SHARE)
    first, last = steps[:count], steps[-count:]
    rival = run is not baseline
    return RewardFacts(
        by_step=tuple(StepReward(step=step, reward=_mean(groups, [step])) for step in steps),
        first=_mean(groups, first),
        final=_mean(groups, last),
        final_steps=count,
        final_difference=_difference(groups, theirs, last) if rival else None,
        difference=_difference(groups, theirs, steps) if rival else None,
    )


def group_rewards(run: TrainRun) -> pd.Series[float]:
    """Return the mean reward of each prompt group, by (step, group)."""
    return run.rewards.groupby(["step", "group"])["reward"].mean()


def _mean(groups: pd.Series[float], steps: list[int]) -> Estimate:
    values = np.asarray(groups[groups.index.get_level_values("step").isin(steps)], dtype=np.float64)
    return Jackknife(len(values), "prompt groups").mean(values)


def _difference(groups: pd.Series[float], theirs: pd.Series[float], steps: list[int]) -> Estimate:
    paired = (groups - theirs).dropna()
    return _mean(paired, steps)
