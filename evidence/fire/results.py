"""What a run of each task gave in the end, as rows that two runs must share."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pandas as pd

from evidence.fire.moments import Task
from tlt.traces.results.calibration_points import MeasuredPoints

Row = tuple[object, ...]


def results(task: Task, out: Path) -> list[Row]:
    """Return the rows of a finished run.

    Responses with their lengths; of a policy that is trained without drafts also each reward and the hash of
    the weights, which are the same to the bit; of a calibration, whose times differ, which points it has, of
    how many repeats each.
    """
    if task == "calibrate":
        points = msgspec.json.decode((out / "points.json").read_bytes(), type=MeasuredPoints)
        return [(each.draft_config, each.when_off, each.batch, each.repeats) for each in points.points]
    rows: list[Row] = []
    for path in sorted(out.glob("*/responses.parquet")):
        table = pd.read_parquet(path, columns=["step", "request", "response_tokens"])
        rows += [(path.parent.name, *row) for row in table.itertuples(index=False, name=None)]
    if task == "train_policy":
        rewards = pd.read_parquet(out / "none" / "rewards.parquet", columns=["step", "request", "reward"])
        rows += [("reward", *row) for row in rewards.itertuples(index=False, name=None)]
        saved = sorted((out / "none" / "checkpoint").rglob("*.safetensors"))
        rows += [(each.parent.name, hashlib.sha256(each.read_bytes()).hexdigest()) for each in saved]
    return rows
