"""How fast a worker's rollout is under two policies, were its responses as long.

Policies that sample their own responses get other lengths, and the few longest end the rollouts: a chance
that a speedup holds, and that takes many steps to even out. The seconds of a worker's rollout are taken as a
line in its longest response (engine steps one after the other) and in all its tokens (work of the larger
batches), a line a policy, and both lines are read at the mean lengths of both.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.analysis.training.lengths import same_lengths
from tlt.analysis.training.run import TrainRun
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.common.intervals import Estimate, Jackknife, without_each

KNOWN = ("one", "longest", "tokens")  # of a row: what its seconds are a line in


def at_equal_lengths(run: TrainRun, baseline: TrainRun) -> Estimate | None:
    """Return the speedup of a worker's rollout over the baseline's at equal lengths, paired by RL step.

    None where they are equal anyway, or say nothing of seconds, as with one step or responses of one length.
    """
    if same_lengths(run, baseline):
        return None
    tables = [_rollouts(each) for each in (baseline, run)]
    means = pd.concat(tables)[["longest", "tokens"]].mean()
    for table in tables:
        table[["longest", "tokens"]] /= means
    steps = baseline.run.steps["step"].to_numpy()
    counted = without_each(len(steps))
    both, known = [np.tensordot(counted, _products(table, steps), 1) for table in tables], len(KNOWN)
    if min(np.linalg.matrix_rank(each[:, :known, :known], hermitian=True).min() for each in both) < known:
        return None
    at = np.sum(both, axis=0)[:, 0, :known]
    at /= at[:, :1]
    baseline_s, policy_s = (
        (np.linalg.solve(each[:, :known, :known], each[:, :known, known:])[..., 0] * at).sum(axis=1)
        for each in both
    )
    if not ((baseline_s > 0) & (policy_s > 0)).all():
        return None
    return Jackknife(len(steps), parameters=known).estimate(baseline_s / policy_s, positive=True)


def _rollouts(run: TrainRun) -> pd.DataFrame:
    """Return a row a step and worker that had responses: `seconds` of its rollout, `longest`, `tokens`."""
    responses = run.run.responses
    groups = responses.groupby(["step", "worker"], observed=True)
    table = groups.agg(
        longest=("response_tokens", "max"), tokens=("response_tokens", "sum"), end_s=("finish_s", "max")
    ).astype(np.float64)
    begun_s = run.run.steps.set_index("step")["start_s"]
    table["seconds"] = table["end_s"] - begun_s.reindex(table.index.get_level_values("step")).to_numpy()
    return table.assign(one=1.0).reset_index()


def _products(table: pd.DataFrame, steps: Ints) -> Floats:
    """Return each step's sum of the products of a row's KNOWN and seconds with themselves, [steps, 4, 4]."""
    rows = table[[*KNOWN, "seconds"]].to_numpy(np.float64)
    of_step = table["step"].to_numpy()
    return np.stack([rows[of_step == step].T @ rows[of_step == step] for step in steps])
