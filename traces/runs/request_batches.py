"""Acceptance by batch out of drafts by request: of rollouts whose requests begin together and always draft.

The requests of a worker then run in step: one that drafted in n engine steps was there for the first n, and
the batch of engine step i is how many drafted in more than i. What a request gained in a bin of positions is
taken to have come evenly over its engine steps there (modelled).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Floats, Ints

TOGETHER_S = 1e-6


def begin_together(responses: pd.DataFrame) -> bool:
    """Return whether all requests (RESPONSE_COLUMNS) of a worker begin each rollout at one time."""
    start_s = responses.groupby(["step", "worker"])["start_s"].agg(["min", "max"])
    return bool((start_s["max"] - start_s["min"] <= TOGETHER_S).all())


def batches_of_requests(acceptance: pd.DataFrame, responses: pd.DataFrame) -> pd.DataFrame:
    """Return step, worker, batch, engine_steps, request_steps and accepted_tokens by range of batches.

    acceptance: ACCEPTANCE_COLUMNS of one draft configuration. Ranges are those whose ends double.
    """
    worker = responses[["step", "request", "worker"]]
    rows = acceptance.merge(worker, on=["step", "request"])
    rows = rows.sort_values(["step", "worker", "request", "from_token"], ignore_index=True)
    rollouts, requests = (_begins(rows[names]) for names in (["step", "worker"], ["step", "request"]))
    counts = rows[["request_steps", "accepted_tokens"]].to_numpy(np.float64)
    found: list[tuple[float, ...]] = []
    for begin, end in pairwise((*rollouts, len(rows))):
        inside = requests[(requests > begin) & (requests < end)] - begin
        curves = [
            np.vstack([np.zeros(2), part.cumsum(axis=0)]).T for part in np.split(counts[begin:end], inside)
        ]
        first = rows.iloc[begin]
        found += [(first["step"], first["worker"], *cell) for cell in _ranges(curves)]
    names = ["step", "worker", "batch", "engine_steps", "request_steps", "accepted_tokens"]
    return pd.DataFrame(found, columns=names)


def _begins(keys: pd.DataFrame) -> Ints:
    """Return the rows at which a key is another than in the row before, the first of all included."""
    other = (keys != keys.shift()).any(axis=1).to_numpy()
    return np.flatnonzero(other)


def _ranges(curves: list[Floats]) -> list[tuple[float, ...]]:
    """Return batch, engine steps, request-steps and accepted tokens of each range of one rollout.

    curves: of each request running sums of engine steps and of accepted tokens, from 0 on, [2, points].
    """
    ends = np.sort([steps[-1] for steps, _ in curves])[::-1]
    cells: list[tuple[float, ...]] = []
    most, below = 1, 0
    while below < len(ends):
        first = float(ends[most]) if most < len(ends) else 0.0  # from here on no more than `most` are left
        last = float(ends[below])  # and from here on no more than `below`
        if last > first:
            ran = sum(min(last, steps[-1]) - min(first, steps[-1]) for steps, _ in curves)
            gained = sum(float(np.diff(np.interp([first, last], *curve))[0]) for curve in curves)
            cells.append((ran / (last - first), last - first, ran, round(gained)))
        below, most = most, 2 * most
    return cells
