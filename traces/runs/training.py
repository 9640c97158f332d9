"""What a training run adds to a run folder (tlt.traces.runs.runfolder): rewards, updates, the drafter.

rewards.parquet    a row a response (REWARD_COLUMNS)
updates.parquet    a row an RL step (UPDATE_COLUMNS)
heads.parquet      a row a training step of the drafter's head (HEAD_COLUMNS)
probes.parquet     a row an RL step, head and position (PROBE_COLUMNS)
prompts.parquet    a row a prompt whose kind is known (PROMPT_COLUMNS); left out where none is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tlt.traces.runs.runfolder import read_table, write_table

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
PROMPT_COLUMNS = {
    "step": "int32",
    "group": "int32",
    "kind": "str",  # the family, task or data set that the prompt is of
}


def write_kinds(folder: Path, kinds: Mapping[int, Sequence[str]]) -> None:
    """Write the kind of each prompt by step; no file where none is known."""
    rows = [(step, group, kind) for step, told in kinds.items() for group, kind in enumerate(told)]
    if rows:
        table = pd.DataFrame(rows, columns=list(PROMPT_COLUMNS)).astype(PROMPT_COLUMNS)
        write_table(folder / "prompts.parquet", table)


def prompt_kinds(folder: Path, responses: pd.DataFrame) -> pd.Series[str] | None:
    """Return the kind of prompt of each response (step, group), "" if not known; None without the file.

    Raises InputError for a file of another form.
    """
    path = folder / "prompts.parquet"
    if not path.is_file():
        return None
    rows = read_table(path, PROMPT_COLUMNS).drop_duplicates(["step", "group"])
    kinds = responses[["step", "group"]].merge(rows, on=["step", "group"], how="left")["kind"].fillna("")
    return kinds.set_axis(responses.index)


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
