"""How fast a worker's rollout is under two policies, were its responses as long.

Policies that sample their own responses get other lengths, and the few longest end the rollouts: a chance
that a speedup holds, and that takes many steps to even out. The seconds of a worker's rollout are taken as a
line in its longest response (engine steps one after the other) and in all its tokens (work of the larger
batches): one line for both policies, moved by a constant under one of them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.analysis.training.run import TrainRun
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate, Jackknife, without_each

KNOWN = ("one", "longest", "tokens", "under")  # of a row: what its seconds are a line in


def at_equal_lengths(run: TrainRun, baseline: TrainRun) -> Estimate | None:
    """Return the speedup of a worker's rollout over the baseline's at equal lengths, paired by RL step.

    None where lengths cannot be told from the policy, as with one step or responses of one length.
    """
    tables = [_rollouts(baseline).assign(under=0.0), _rollouts(run).assign(under=1.0)]
    means = pd.concat(tables)[["longest", "tokens"]].mean()
    for table in tables:
        table[["longest", "tokens"]] /= means
    steps = baseline.run.steps["step"].to_numpy()
    products = sum((_products(table, steps) for table in tables), np.zeros(1))
    summed = np.tensordot(without_each(len(steps)), products, 1)
    size = len(KNOWN)
    normal, wanted = summed[:, :size, :size], summed[:, :size, size]
    if np.linalg.matrix_rank(normal, hermitian=True).min() < size:
        return None
    more_s = np.linalg.solve(normal, wanted[..., np.newaxis])[:, size - 1, 0]
    rows, under, taken_s = summed[:, 0, 0], summed[:, 0, size - 1], summed[:, 0, size]
    baseline_s = (taken_s - more_s * under) / rows
    figures = baseline_s / (baseline_s + more_s)
    if not (np.isfinite(figures) & (figures > 0)).all():
        return None
    return Jackknife(len(steps), parameters=size).estimate(figures, positive=True)


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


def _products(table: pd.DataFrame, steps: Floats) -> Floats:
    """Return each step's sum of the products of a row's KNOWN and seconds with themselves, [steps, 5, 5]."""
    rows = table[[*KNOWN, "seconds"]].to_numpy(np.float64)
    of_step = table["step"].to_numpy()
    return np.stack([rows[of_step == step].T @ rows[of_step == step] for step in steps])
