"""What a training run adds to a run folder (tlt.traces.runs.runfolder): rewards, updates, the drafter.

rewards.parquet    a row a response (REWARD_COLUMNS)
updates.parquet    a row an RL step (UPDATE_COLUMNS)
heads.parquet      a row a training step of the drafter's head (HEAD_COLUMNS)
probes.parquet     a row an RL step, head and position (PROBE_COLUMNS)
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

PREEMPTION_AIM_S = 0.1  # within which a drafter's trainer has to make way for the next phase
REWARD_COLUMNS = {
    "step": "int32",
    "request": "int32",
    "reward": "float64",
    "policy_version": "int32",  # policy updates that the weights had seen which generated the response
}
UPDATE_COLUMNS = {
    "step": "int32",
    "reward_mean": "float64",
    "loss": "float64",
    "entropy": "float64",  # nats a response token
    "kl": "float64",  # nats a response token to the initial policy; 0 without a reference
    "ratio_mean": "float64",
    "clip_share": "float64",
    "grad_norm": "float64",  # before clipping, mean over the optimizer steps
    "handover_s": "float64",  # the rollout's end to the last trainer's stop: the wait that training added
    "stop_s": "float64",  # slowest worker from reading the order to leaving training
    "scored_early": "int32",  # responses whose log-probabilities were taken on idle workers
    "publish_s": "float64",
}
HEAD_COLUMNS = {
    "step": "int32",
    "worker": "int16",
    "tokens": "int32",
    "loss": "float64",
}
PROBE_COLUMNS = {
    "step": "int32",
    "head": "object",  # "serving" or "initial", both on the newest responses of this step
    "position": "int16",  # of the draft, from 0
    "greedy": "float64",  # share of chains accepted up to here when both sides are greedy
    "sampled": "float64",  # the same, expected, when drafts and target are sampled at temperature 1
}


@dataclass(frozen=True)
class LateStops:
    """Steps in which drafter training made way later than PREEMPTION_AIM_S."""

    late: int
    steps: int
    longest_s: float


def late_stops(updates: pd.DataFrame) -> LateStops:
    """Count them from UPDATE_COLUMNS.

    `stop_s` starts when a trainer reads the order, so a training step that was under way is in the hand-over
    alone; a trainer that was stopped for a lost worker's requests is in `stop_s` alone.
    """
    waits_s = updates[["handover_s", "stop_s"]].max(axis=1)
    return LateStops(int((waits_s > PREEMPTION_AIM_S).sum()), len(waits_s), float(waits_s.max()))
