"""Decision epochs out of a run's record: what was drafted, what it took, what was accepted where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tlt.traces.runs.engine_steps import STRETCH_COLUMNS
from tltsched.event_log import read
from tltsched.events import BatchFormed, EpochEnded, RolloutBegan

RECORDS = "records.jsonl"
POSITION_COLUMNS = {
    "step": "int32",
    "position": "int16",  # of the draft, from 0
    "drafted": "int64",  # request cycles that drafted this far
    "accepted": "int64",  # of these, accepted at this position
}


@dataclass(frozen=True)
class Epochs:
    """stretches: STRETCH_COLUMNS, a row an epoch; positions: POSITION_COLUMNS."""

    stretches: pd.DataFrame
    positions: pd.DataFrame


def read_epochs(path: Path) -> Epochs:
    """Read a record; raises InputError for a line that is none.

    A cycle whose arm has depth d drafts positions 0 to d - 1. The context of an epoch is the mean of those
    before and after it.
    """
    counts: dict[tuple[int, int], list[int]] = {}
    rows: list[tuple[Any, ...]] = []
    step_of: dict[int, int] = {}
    context_of: dict[int, float] = {}
    with path.open("rb") as lines:
        for record in read(lines):
            body = record.body
            if isinstance(body, RolloutBegan):
                step_of[body.worker] = body.step
            elif isinstance(body, BatchFormed):
                context_of[body.worker] = body.context_tokens / max(body.requests, 1)
            elif isinstance(body, EpochEnded):
                rows.append(_stretch(body, context_of))
                if body.arm.depth:
                    _count(counts, step_of.get(body.worker, -1), body)
    frame = pd.DataFrame(rows, columns=list(STRETCH_COLUMNS)).astype(STRETCH_COLUMNS)
    used = (frame["cycles"] > 0) & (frame["request_cycles"] > 0) & (frame["seconds"] > 0)
    at = [(*key, *count) for key, count in sorted(counts.items())]
    places = pd.DataFrame(at, columns=list(POSITION_COLUMNS)).astype(POSITION_COLUMNS)
    return Epochs(frame[used].reset_index(drop=True), places)


def positions(path: Path) -> pd.DataFrame:
    """Return how many drafts were accepted at each position in each step; empty without the file."""
    if not path.is_file():
        return pd.DataFrame(columns=list(POSITION_COLUMNS)).astype(POSITION_COLUMNS)
    return read_epochs(path).positions


def _stretch(epoch: EpochEnded, context_of: dict[int, float]) -> tuple[Any, ...]:
    after = epoch.context_tokens / epoch.requests if epoch.requests else None
    before = context_of.get(epoch.worker, after or 0.0)
    context_of[epoch.worker] = before if after is None else after
    return (
        str(epoch.arm), epoch.arm.depth, epoch.cycles, epoch.request_cycles, epoch.decode_s,
        (before + context_of[epoch.worker]) / 2, sum(epoch.accepted_by_position),
    )  # fmt: skip


def _count(counts: dict[tuple[int, int], list[int]], step: int, epoch: EpochEnded) -> None:
    for position in range(epoch.arm.depth):
        count = counts.setdefault((step, position), [0, 0])
        count[0] += epoch.request_cycles
        if position < len(epoch.accepted_by_position):
            count[1] += epoch.accepted_by_position[position]
