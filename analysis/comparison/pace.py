"""How fast the machine ran under two policies, told by engine steps that are the same work under both.

Policies are trained one after the other, and meanwhile a host that others share, or that clocks itself, runs
faster or slower, for a rollout or for minutes. That is not the policy's doing, and it is not independent from
step to step, so no interval over steps holds it. Decode engine steps of one K and nearly one batch and
context (a cell of tlt.traces.runs.engine_steps) are the same work in every rollout, so their seconds are
taken as a product: what the cell takes at an even pace, times how slow the machine was in that rollout of
that worker. Both follow from all rollouts that share cells (alternating weighted means of logarithms of
medians). The even pace is that of the QUICK quantile of rollouts: of both policies if they share cells
enough, else of each by itself, for then nothing tells their machines apart but the rollouts that nothing
disturbed.

Two figures follow. How much longer than at that pace engine steps took while no worker was idle: nobody
trains then, so that what differs is the machine. And rollouts in which each decode engine step takes what its
cell takes at that pace, and each with prefill is as much shorter as the rest of its rollout: policies then
differ in the engine steps that they need, no longer in the machine, nor in what drafter training slows on a
neighbour that still decodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pandas as pd

from tlt.analysis.drawing.estimates import change, interval_words, outside
from tlt.analysis.load import Run
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate, Jackknife
from tlt.traces.runs.engine_steps import cells, read_engine_steps

QUICK = 0.25
ROUNDS = 30
COLUMNS = ("step", "worker", "t_s", "seconds", "batch", "context_tokens", "prompt_tokens", "k", "compiled")
ENOUGH = 0.1  # of each policy's engine steps in cells of both: less does not tie their paces
ROLLOUT, CELL = ["policy", "step", "worker"], ["of", "k", "cell"]
UNLIKE = 1.1  # paces further apart than this are told


class PaceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A policy beside another one, at one pace of the machine. Ratios are over RL steps, paired."""

    slower: Estimate  # this policy's engine steps while no worker is idle, over the other's, of like cells
    rollout_speedup: Estimate  # over the other policy, both at the even pace
    step_speedup: Estimate  # the same with all that is not rollout as it was measured
    shared: bool  # whether they have cells enough in common; else each is beside its own quick rollouts

    @property
    def unlike(self) -> bool:
        """Whether the machine surely ran so differently that a measured speedup is not the policy's alone."""
        far = not 1.0 / UNLIKE <= self.slower.value <= UNLIKE
        return far and outside(self.slower, 1.0)

    def words(self, policy: str, other: str) -> str:
        """Return what a reader of the measured speedup has to know, without a full stop."""
        told_by = (
            "engine steps of one K and batch"
            if self.shared
            else "engine steps beside those of each policy's own quick rollouts"
        )
        return (
            f"The machine ran {change(self.slower, 'faster', 'slower')} under {policy} than under {other}, "
            f"as {told_by} tell while no worker is idle: intervals over RL steps do not hold that. At one "
            f"pace its speedup is {interval_words(self.rollout_speedup)} in the rollout, "
            f"{interval_words(self.step_speedup)} end to end"
        )


@dataclass(frozen=True, slots=True)
class _Paced:
    """One policy; arrays of seconds, shape (steps,). `even` is at the even pace."""

    busy_s: Floats  # decode engine steps while no worker is idle, over all workers
    busy_even_s: Floats
    rollout_even_s: Floats
    step_even_s: Floats


def against(policy: Run, other: Run) -> PaceFacts | None:
    """Hold a policy against another one; None without a record of the single engine steps of both."""
    tables = [_engine_steps(each, place) for place, each in enumerate((policy, other))]
    known = [table for table in tables if table is not None]
    if len(known) < len(tables):
        return None
    table = pd.concat(known, ignore_index=True)
    shared = tied(table[table["like"]])
    table["of"] = 0 if shared else table["policy"]
    even, slow = even_pace(table[table["like"]])
    table = table.join(even, on=CELL).join(slow, on=ROLLOUT)
    table["even"] = np.where(table["like"], table["even"], table["seconds"] / table["slow"].fillna(1.0))
    mine, theirs = (
        _paced(each, table[table["policy"] == place]) for place, each in enumerate((policy, other))
    )
    sample = Jackknife(len(policy.steps))
    over = [sample.ratio(each.busy_s, each.busy_even_s) for each in (mine, theirs)]
    return PaceFacts(
        slower=sample.estimate(over[0] / over[1], positive=True),
        rollout_speedup=sample.estimate_ratio(theirs.rollout_even_s, mine.rollout_even_s, positive=True),
        step_speedup=sample.estimate_ratio(theirs.step_even_s, mine.step_even_s, positive=True),
        shared=shared,
    )


def tied(like: pd.DataFrame) -> bool:
    """Return whether ENOUGH of either policy's engine steps, a row each, lie in cells that both have."""
    counts = like.groupby(["k", "cell", "policy"]).size().unstack(fill_value=0)
    common = (counts > 0).all(axis=1)
    return bool((counts[common].sum() >= ENOUGH * counts.sum()).all())


def even_pace(like: pd.DataFrame) -> tuple[pd.Series[float], pd.Series[float]]:
    """Return the seconds of an engine step at the even pace, and how slow rollouts were.

    `like` has a row an engine step: ROLLOUT, CELL, seconds; rollouts of one `of` have one even pace. The
    first, `even`, is by CELL; the second, `slow`, is a factor by ROLLOUT.
    """
    grouped = like.groupby([*ROLLOUT, *CELL])["seconds"]
    rows = pd.DataFrame({"log": np.log(grouped.median()), "weight": grouped.size()}).reset_index()
    cell = rows.groupby(CELL).ngroup().to_numpy()
    rollout = rows.groupby(ROLLOUT).ngroup().to_numpy()
    log, weight = rows["log"].to_numpy(), rows["weight"].to_numpy(np.float64)
    in_cell, in_rollout = np.bincount(cell, weight), np.bincount(rollout, weight)
    slow = np.zeros(len(in_rollout))
    for _ in range(ROUNDS):
        takes = np.bincount(cell, weight * (log - slow[rollout])) / in_cell
        slow = np.bincount(rollout, weight * (log - takes[cell])) / in_rollout
    of_rollout = rows.groupby(ROLLOUT)["of"].first().to_numpy()
    for group in np.unique(of_rollout):
        mine = of_rollout == group
        level = np.quantile(slow[mine], QUICK)
        takes[np.unique(cell[mine[rollout]])] += level
        slow[mine] -= level
    return (
        pd.Series(np.exp(takes), index=rows.groupby(CELL).size().index, name="even"),
        pd.Series(np.exp(slow), index=rows.groupby(ROLLOUT).size().index, name="slow"),
    )


def _engine_steps(policy: Run, place: int) -> pd.DataFrame | None:
    """Return all engine steps, with their cell, and whether they are `like` others: decode, not compiled."""
    table = read_engine_steps(policy.path, *COLUMNS)
    if table is None:
        return None
    like = (table["prompt_tokens"] == 0) & ~table["compiled"] & (table["batch"] > 0) & (table["seconds"] > 0)
    if not like.any():
        return None
    stretches = pd.DataFrame(
        {
            "request_steps": table["batch"],
            "engine_steps": 1,
            "context_tokens": table["context_tokens"] / table["batch"].clip(lower=1),
        }
    )
    return table.assign(policy=place, like=like, cell=cells(stretches))


def _paced(policy: Run, table: pd.DataFrame) -> _Paced:
    steps = policy.steps["step"]
    first_idle_s = table.groupby(["step", "worker"])["t_s"].max().groupby("step").min()
    busy = table[table["like"] & (table["t_s"] <= table["step"].map(first_idle_s))]
    by_step = busy.groupby("step")[["seconds", "even"]].sum().reindex(steps, fill_value=0.0)
    by_worker = table.groupby(["step", "worker"])[["seconds", "even"]].sum()
    longest = by_worker.groupby("step").max().reindex(steps, fill_value=0.0)
    saved_s = (longest["seconds"] - longest["even"]).to_numpy(np.float64)
    return _Paced(
        busy_s=by_step["seconds"].to_numpy(np.float64),
        busy_even_s=by_step["even"].to_numpy(np.float64),
        rollout_even_s=policy.rollout_seconds() - saved_s,
        step_even_s=policy.step_seconds() - saved_s,
    )
